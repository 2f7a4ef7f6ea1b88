"""hybrid_io_advise: what is read again stays in the cache, what harms nobody stays as it is, and no gain is claimed
that was not tried on that very file system.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from page_cache_scenes import DATA, HOT, OTHER, Cache, rereading, streaming
from recordings import PID

from whystall.prompts.render import voice
from whystall.tools.collect.tables import CALIBRATION
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.params import parse_params
from whystall.tools.contract.registry import Judgement
from whystall.tools.contract.result import Status
from whystall.tools.host.hybrid_io_advise import tool
from whystall.tools.host.hybrid_io_advise.advice import Advice, Observed, Tried, advise
from whystall.tools.host.hybrid_io_advise.trials import Clear, Compared
from whystall.tools.recording.judging import judge as envelope
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target

KIB, MIB = 1 << 10, 1 << 20
STREAM = Observed(
    operation="read",
    request_bytes=4 * MIB,
    bytes=1 << 30,
    reread_pct=0.0,
    cached_pct=0.0,
    one_pass_pct=99.0,
    pressed=True,
    harms=True,
)
"""Somebody reads much, once, and others suffer."""


def compared(
    size: int,
    ratio: float,
    *,
    way: str = "direct",
    operation: Any = "read",
    spread: float = 1.1,
    cpu: float = 1.0,
    trials: int = 16,
) -> Compared:
    low, high = ratio / spread, ratio * spread
    clear: Clear = "unclear" if low <= 1 <= high else "faster" if low > 1 else "slower"
    return Compared(
        directory="/data",
        dev="7:0",
        filesystem="ext4",
        operation=operation,
        way=way,
        request_bytes=size,
        trials=trials,
        moved_bytes_rate=1e9 * ratio,
        base_bytes_rate=1e9,
        ratio=ratio,
        low_ratio=low,
        high_ratio=high,
        cpu_ratio=cpu,
        cpu_low_ratio=cpu / 1.05,
        cpu_high_ratio=cpu * 1.05,
        clear=clear,
    )


FASTER = Tried([compared(64 * KIB, 0.5), compared(MIB, 1.5, cpu=0.3), compared(16 * MIB, 2.0, cpu=0.1)])
SLOWER = Tried([compared(64 * KIB, 0.2), compared(MIB, 0.7, cpu=0.3), compared(16 * MIB, 0.8, cpu=0.1)])
NOISE = Tried([compared(64 * KIB, 0.9, spread=3), compared(MIB, 1.1, spread=3), compared(16 * MIB, 1.2, spread=3)])
CHEAPER = Tried([compared(64 * KIB, 0.9, spread=1.2), compared(MIB, 1.05, spread=1.2, cpu=0.3)])


GIVEN_BACK = compared(64 * KIB, 0.95, way="dontneed")
REREAD = ("buffered", "reread", False, False)


def said(advice: Advice) -> tuple[str, str, bool, bool]:
    """Way, reason, whether it is a change, and whether something tried is named for it."""
    return advice.method, advice.reason, advice.change, advice.tried is not None


@pytest.mark.parametrize(
    ("seen", "tried", "expected"),
    [
        # one pass that harms others, without trials: by rule, and no gain is named
        (STREAM, Tried(), ("direct", "large", True, False)),
        (replace(STREAM, request_bytes=256 * KIB), Tried(), ("dontneed", "untried", True, False)),
        (replace(STREAM, request_bytes=16 * KIB), Tried(), ("dontneed", "small", True, False)),
        # with trials
        (STREAM, FASTER, ("direct", "faster_here", True, True)),
        (STREAM, SLOWER, ("dontneed", "slower_here", True, False)),
        (STREAM, NOISE, ("dontneed", "no_crossover", True, False)),
        (STREAM, CHEAPER, ("direct", "less_cpu_here", True, True)),
        # what giving back costs was tried too
        (STREAM, Tried([*SLOWER.compared, GIVEN_BACK]), ("dontneed", "slower_here", True, True)),
        (STREAM, Tried([*NOISE.compared, GIVEN_BACK]), ("dontneed", "no_crossover", True, True)),
        (replace(STREAM, request_bytes=16 * KIB), Tried([GIVEN_BACK]), ("dontneed", "small", True, False)),
        (replace(STREAM, request_bytes=64 * KIB), FASTER, ("dontneed", "slower_here", True, False)),
        (replace(STREAM, request_bytes=16 * KIB), FASTER, ("dontneed", "small", True, False)),
        (STREAM, Tried([], ["no_direct"]), ("dontneed", "direct_unsupported", True, False)),
        (STREAM, Tried([], ["no_room"]), ("direct", "large", True, False)),
        # read again, or in the cache: never direct, whatever the trials say
        (replace(STREAM, reread_pct=30.0), FASTER, ("buffered", "reread", False, False)),
        (replace(STREAM, reread_pct=5.0), FASTER, ("buffered", "reread", False, False)),
        (replace(STREAM, cached_pct=60.0), FASTER, ("buffered", "cached", False, False)),
        (replace(STREAM, one_pass_pct=50.0), FASTER, ("buffered", "reread", False, False)),
        (
            replace(STREAM, reread_pct=90.0, refaulted_pct=80.0),
            FASTER,
            ("buffered", "evicted_before_reread", False, False),
        ),
        (replace(STREAM, reread_pct=90.0, refaulted_pct=80.0, cached_pct=95.0), FASTER, REREAD),
        (replace(STREAM, reread_pct=90.0, refaulted_pct=0.1, cached_pct=85.0), FASTER, REREAD),
        # given back by the program itself: the cache does not serve it, and nobody evicted it
        (
            replace(STREAM, reread_pct=90.0, refaulted_pct=0.1),
            FASTER,
            ("buffered", "dropped_before_reread", False, False),
        ),
        (replace(STREAM, filesystem="proc"), FASTER, ("buffered", "in_memory", False, False)),
        # not known: no change
        (replace(STREAM, reread_pct=None), FASTER, ("buffered", "reread_unknown", False, False)),
        # nobody suffers
        (replace(STREAM, harms=False, pressed=False), FASTER, ("buffered", "no_pressure", False, True)),
        (replace(STREAM, harms=False, pressed=False), Tried(), ("buffered", "no_pressure", False, False)),
        (replace(STREAM, harms=False), Tried(), ("buffered", "no_harm", False, False)),
        (replace(STREAM, harms=False), NOISE, ("buffered", "no_crossover", False, True)),
        (replace(STREAM, harms=False), CHEAPER, ("buffered", "no_crossover", False, True)),
        (replace(STREAM, harms=False), SLOWER, ("buffered", "slower_here", False, True)),
        (replace(STREAM, harms=False), FASTER, ("direct", "faster_here", True, True)),
        # where there is nothing to go direct to, or it is done already
        (replace(STREAM, filesystem="tmpfs"), FASTER, ("buffered", "in_memory", False, False)),
        (replace(STREAM, direct_pct=100.0), FASTER, ("direct", "already_direct", False, True)),
        (replace(STREAM, direct_pct=100.0, reread_pct=None), Tried(), ("direct", "already_direct", False, False)),
        (replace(STREAM, direct_pct=100.0), SLOWER, ("direct", "already_direct", False, True)),
        (replace(STREAM, direct_pct=100.0, sequential=True), SLOWER, ("buffered", "direct_slower_here", True, True)),
    ],
)
def test_reads(seen: Observed, tried: Tried, expected: tuple[str, str, bool, bool]) -> None:
    assert said(advise(seen, tried)) == expected


WRITES = replace(STREAM, operation="write", waited=True)
W_FASTER = Tried([compared(MIB, 1.5, operation="write")])
W_SLOWER = Tried([compared(MIB, 0.5, operation="write")])


@pytest.mark.parametrize(
    ("seen", "tried", "expected"),
    [
        (WRITES, Tried(), ("direct", "large", True, False)),
        (WRITES, W_FASTER, ("direct", "faster_here", True, True)),
        (WRITES, W_SLOWER, ("dontneed", "slower_here", True, False)),
        (WRITES, FASTER, ("direct", "large", True, False)),  # reads were tried, not writes
        # nobody waits for these writes: direct ones would make the writer wait
        (replace(WRITES, waited=False), W_FASTER, ("dontneed", "write_not_waited", True, False)),
        (replace(WRITES, waited=False, harms=False), W_FASTER, ("buffered", "no_harm", False, False)),
        # it syncs, and nobody suffers: for its own sake, and only if that was seen
        (replace(WRITES, harms=False, pressed=False), W_FASTER, ("direct", "faster_here", True, True)),
        (replace(WRITES, harms=False, pressed=False), W_SLOWER, ("buffered", "slower_here", False, True)),
        (replace(WRITES, harms=False, pressed=False), Tried(), ("buffered", "no_pressure", False, False)),
        (replace(WRITES, reread_pct=40.0), W_FASTER, ("buffered", "read_back", False, False)),
    ],
)
def test_writes(seen: Observed, tried: Tried, expected: tuple[str, str, bool, bool]) -> None:
    assert said(advise(seen, tried)) == expected


SMALL = replace(STREAM, request_bytes=16 * KIB, sequential=True, stalled_pct=40.0, harms=False, pressed=False)
AHEAD = Tried([compared(4 * KIB, 2.5, way="readahead"), compared(4 * KIB, 0.1)])


@pytest.mark.parametrize(
    ("seen", "tried", "expected"),
    [
        (SMALL, Tried(), ("readahead", "small_and_cold", True, False)),
        (SMALL, AHEAD, ("readahead", "faster_here", True, True)),
        (SMALL, Tried([compared(4 * KIB, 1.0, way="readahead")]), ("buffered", "no_pressure", False, False)),
        (replace(SMALL, sequential=None), AHEAD, ("buffered", "no_pressure", False, True)),
        (replace(SMALL, sequential=False), AHEAD, ("buffered", "no_pressure", False, True)),
        (replace(SMALL, stalled_pct=1.0), AHEAD, ("buffered", "no_pressure", False, True)),
        (replace(SMALL, request_bytes=MIB), AHEAD, ("buffered", "no_pressure", False, True)),
        (replace(SMALL, cached_pct=90.0), AHEAD, ("buffered", "cached", False, False)),
    ],
)
def test_small_reads_that_wait(seen: Observed, tried: Tried, expected: tuple[str, str, bool, bool]) -> None:
    assert said(advise(seen, tried)) == expected


def test_from_which_size_on_it_should_go_direct() -> None:
    assert advise(STREAM, FASTER).direct_bytes == MIB
    assert advise(STREAM, Tried()).direct_bytes == 2 * MIB
    assert advise(STREAM, CHEAPER).direct_bytes == MIB
    one_good_size = Tried([compared(MIB, 0.5), compared(4 * MIB, 1.5), compared(16 * MIB, 1.0)])
    assert advise(STREAM, one_good_size).direct_bytes == 4 * MIB
    assert advise(STREAM, one_good_size).crossover_bytes is None


# --- over recordings ------------------------------------------------------------------------------------------


def sized(
    cache: Cache, path: str = DATA, *, pid: int = PID, size: int = 4 * MIB, mib: int = 4000, **more: Any
) -> Cache:
    """Requests of one size on a file."""
    row = {"operation": "read", "direct": False} | more
    cache.scene._add(
        "page_cache.sizes",
        file=cache.file(path),
        pid=pid,
        low_bytes=size,
        high_bytes=2 * size,
        count=mib * MIB // size,
        bytes=mib * MIB,
        **row,
    )
    return cache


def harmful(cache: Cache | None = None, *, pid: int = PID, size: int = 4 * MIB) -> Cache:
    """A stream that pushes out what another process reads again."""
    victim = OTHER if pid == PID else PID
    cache = rereading(streaming(cache, pid=pid).short(3200), pid=victim, back=100)
    sized(cache, pid=pid, size=size)
    return sized(cache, HOT, pid=victim, size=128 * KIB, mib=3000)


def tried_rows(
    *, dev: str = "7:0", operation: str = "read", size: int = MIB, ratio: float = 2.0
) -> list[dict[str, Any]]:
    """Eight rounds in which direct I/O moved `ratio` times as much, for a fifth of the CPU time."""
    place = {"directory": "/data", "dev": dev, "fstype": "ext4", "operation": operation, "request_bytes": size}
    base = "buffered" if operation == "read" else "synced"
    found = []
    for number in range(8):
        moved = {"bytes": 16 * MIB, "trial": number}
        found.append({**place, **moved, "way": base, "wall_ns": 10_000_000, "cpu_ns": 5_000_000})
        found.append({**place, **moved, "way": "direct", "wall_ns": int(1e7 / ratio), "cpu_ns": 1_000_000})
    return found


def judged(cache: Cache, rows: list[dict[str, Any]] | None = None, **params: Any) -> Judgement[tool.Data]:
    return tool.judge(recorded(cache, rows), tool.Params(**params))


def recorded(cache: Cache, rows: list[dict[str, Any]] | None = None, **how: Any) -> Recording:
    made = cache.build(without=() if rows is not None else ("calibration",), **how)
    if rows is None:
        return made
    frame = pl.DataFrame(rows, schema=CALIBRATION["trials"], orient="row")
    return Recording.in_memory(made.manifest, made.tables() | {"calibration.trials": frame})


def of(judgement: Judgement[tool.Data], path: str) -> Finding:
    return next(f for f in judgement.findings if f.subject.path == path)


def test_a_stream_that_harms_is_told_to_go_direct_and_its_neighbour_to_stay() -> None:
    answer = tool.judge(recorded(harmful(), target=Target(everything=True)), tool.Params())
    stream = of(answer, DATA)
    assert stream.polarity is Polarity.ABNORMAL
    assert (stream.attributes["advice"], stream.attributes["reason"]) == ("direct", "large")
    assert (stream.subject.type, stream.subject.pid, stream.subject.tid) == ("file", PID, None)
    assert not {"ratio", "cpu_ratio", "low_ratio", "high_ratio", "crossover_bytes"} & stream.metrics.keys()
    assert stream.metrics["request_bytes"] == 4 * MIB
    assert stream.metrics["spared_rate"] == pytest.approx(4000 * MIB / 10)
    hot = of(answer, HOT)
    assert hot.polarity is Polarity.NORMAL
    assert (hot.attributes["advice"], hot.attributes["reason"]) == ("buffered", "reread")
    row = next(row for row in answer.data.rows if row.path == DATA)
    assert row.basis == "rule"
    assert row.spared_bytes_rate == pytest.approx(4000 * MIB / 10)
    (remedy,) = answer.data.remedies
    assert remedy.command == "whystall hybrid-run --read-direct 2097152 -- COMMAND"


def test_the_neighbour_that_harms_is_advised_too() -> None:
    assert of(judged(harmful(pid=OTHER)), DATA).subject.pid == OTHER


def test_whoever_is_neither_asked_about_nor_harms_is_not_advised() -> None:
    """Somebody else's job, on the same machine, may be as it likes."""
    cache = sized(harmful(pid=OTHER), "/else/data.bin", pid=6000, size=4 * KIB, mib=9000, direct=True)
    cache.use("/else/data.bin", pid=6000)
    asked = {(f.subject.path, f.subject.pid) for f in judged(cache).findings}
    assert asked == {(DATA, OTHER), (HOT, PID)}
    other = sized(Cache(), pid=OTHER).use(DATA, pid=OTHER, accessed=4000, added=4000)
    assert judged(other).data.rows == []
    assert [row.pid for row in tool.judge(recorded(other, target=Target(everything=True)), tool.Params()).data.rows]


def test_trials_say_most_where_something_should_change() -> None:
    cache = harmful(pid=OTHER)
    assert tool.worth_trying(recorded(cache)) == [cache.file(DATA)]
    assert tool.worth_trying(Cache().build(without=("page_cache", "calibration"))) == []


def test_what_was_tried_on_its_file_system_is_told_with_bounds() -> None:
    stream = of(judged(harmful(), tried_rows()), DATA)
    assert (stream.attributes["advice"], stream.attributes["reason"]) == ("direct", "faster_here")
    assert stream.metrics["ratio"] == 2
    assert stream.metrics["low_ratio"] <= 2 <= stream.metrics["high_ratio"]
    assert stream.metrics["cpu_ratio"] == 0.2
    assert stream.metrics["crossover_bytes"] == MIB


def test_what_was_tried_on_another_disk_says_nothing_of_this_one() -> None:
    answer = judged(harmful(), tried_rows(dev="8:1"))
    stream = of(answer, DATA)
    assert stream.attributes["reason"] == "large"
    assert "ratio" not in stream.metrics
    assert answer.data.crossovers[0].crossover_bytes == MIB  # it is told where it was found, all the same


def test_a_stream_with_free_memory_is_left_alone() -> None:
    cache = sized(Cache().use(accessed=4000, added=4000).gone(once=4000, tracked=4000))
    stream = of(judged(cache, tried_rows()), DATA)
    assert stream.polarity is Polarity.NORMAL
    assert stream.attributes["reason"] == "no_pressure"
    assert "ratio" not in stream.metrics
    assert judged(cache, tried_rows()).data.remedies == []


def test_what_was_in_the_cache_before_the_window_stays_there() -> None:
    cache = sized(Cache().use(accessed=4000, added=10).gone(tracked=10, once=10).short(3200))
    assert of(judged(cache, tried_rows()), DATA).attributes["reason"] == "cached"


def test_a_kernel_that_does_not_tell_what_is_asked_for_leaves_it_unknown() -> None:
    cache = sized(Cache().use(accessed=4000, added=4000, known=False).gone(reclaimed=4000, known=False).short(3200))
    assert of(judged(cache, tried_rows()), DATA).attributes["reason"] == "reread_unknown"


def test_what_somebody_has_mapped_may_be_used_again_without_a_trace() -> None:
    cache = harmful()
    cache.use(DATA, pid=6000, mapped=400)
    found = of(judged(cache, tried_rows()), DATA)
    assert (found.attributes["advice"], found.attributes["reason"]) == ("buffered", "reread_unknown")


def test_somebody_else_who_reads_the_same_file_again_keeps_it_in_the_cache() -> None:
    cache = streaming().short(3200)
    cache.use(DATA, pid=OTHER, accessed=4000, again=4000)
    found = of(judged(sized(cache), tried_rows()), DATA)
    assert found.attributes["reason"] == "reread"


def test_checkpoints_are_one_series_and_writes_are_judged_by_writes() -> None:
    cache = Cache()
    for number in range(4):
        path = f"/data/chk_{number:04d}.bin"
        cache.use(path, added=500, dirtied=500).gone(path, reclaimed=450, one_pass=450, once=50, tracked=500)
        sized(cache, path, mib=500, operation="write", size=2 * MIB)
    rereading(cache.short(1800), back=100).stall("dirty_throttle", 900)
    answer = judged(cache, tried_rows(operation="write"))
    found = of(answer, "/data/chk_*.bin")
    assert (found.attributes["operation"], found.attributes["advice"]) == ("write", "direct")
    assert found.metrics["bytes"] == 2000 * MIB
    assert found.metrics["ratio"] == 2
    assert answer.data.remedies[0].command == "whystall hybrid-run --write-direct 1048576 -- COMMAND"
    reads_only = of(judged(cache, tried_rows(operation="read")), "/data/chk_*.bin")
    assert "ratio" not in reads_only.metrics


def test_most_of_the_bytes_say_the_size() -> None:
    cache = harmful()
    sized(cache, size=4 * KIB, mib=10)  # many small ones beside the large ones
    assert of(judged(cache), DATA).metrics["request_bytes"] == 4 * MIB
    sized(cache, size=8 * KIB, mib=9000)
    assert of(judged(cache), DATA).metrics["request_bytes"] == 8 * KIB


def test_little_is_not_worth_advice() -> None:
    cache = sized(Cache().use(accessed=4, added=4), mib=4)
    answer = judged(cache)
    assert answer.findings == []
    assert answer.data.rows == []


def test_nothing_seen_is_no_answer() -> None:
    result = envelope(tool.TOOL, recorded(Cache()), tool.Params())
    assert result.status is Status.NO_DATA


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        ([("read", "direct", 4 * MIB, 2 * MIB)], "--read-direct 2097152"),
        ([("read", "direct", 4 * MIB, 2 * MIB), ("read", "direct", MIB, MIB)], "--read-direct 1048576"),
        (
            [("read", "direct", 4 * MIB, 2 * MIB), ("write", "direct", 4 * MIB, MIB)],
            "--read-direct 2097152 --write-direct 1048576",
        ),
        # hybrid-run would send these direct by itself
        ([("read", "dontneed", 4 * MIB, None)], "--read-direct 1g --pressure-direct 1g"),
        ([("write", "dontneed", 256 * KIB, None)], "--write-direct 1g --pressure-direct 1g"),
        (
            [("read", "direct", 4 * MIB, 2 * MIB), ("write", "dontneed", 4 * MIB, None)],
            "--read-direct 2097152 --write-direct 1g --pressure-direct 1g",
        ),
        # and these not
        ([("read", "dontneed", 16 * KIB, None)], ""),
    ],
)
def test_the_command_does_what_is_advised(rows: list[tuple[Any, ...]], options: str) -> None:
    made = []
    for operation, way, size, since in rows:
        one = replace(STREAM, operation=operation, request_bytes=size, pid=7, comm="cp")
        made.append(tool._row(one, Advice(way, "large", direct_bytes=since, change=True), 1))
    (remedy,) = tool._remedies(made)
    assert remedy.command == " ".join(["whystall hybrid-run", *([options] if options else []), "-- COMMAND"])
    assert remedy.who == "cp (7)"


def test_every_remedy_reads_in_both_languages() -> None:
    for reason, way in (
        ("large", "direct"),
        ("small", "dontneed"),
        ("faster_here", "readahead"),
    ):
        way_: Any = way
        row = tool._row(replace(STREAM, pid=7, comm="cp"), Advice(way_, reason, change=True), 1)
        (remedy,) = tool._remedies([row])
        for lang in ("en", "zh"):
            text = voice("txt", lang).remedy(remedy)
            assert "cp (7)" in text
            assert ("hybrid-run" in text) == remedy.code.startswith("hybrid")


def test_small_forward_reads_that_wait_want_readahead() -> None:
    cache = sized(Cache().use(accessed=400, added=400).gone(once=400, tracked=400), size=16 * KIB, mib=400)
    file = cache.scene.file(DATA)
    for number in range(20):
        cache.scene.call(0.4 * number, 100, "read", DATA, size=16 * KIB)
    for number, row in enumerate(cache.scene.tables["syscalls.calls"]):
        row["offset"] = number * 20 * MIB
    assert file >= 0
    # the scene's table of files is shared by the collectors of calls; this collector has its own
    assert of(judged(cache), DATA).attributes["advice"] == "readahead"
    for number, row in enumerate(cache.scene.tables["syscalls.calls"]):
        row["offset"] = (number * 7919) % 20 * MIB
    assert of(judged(cache), DATA).attributes["advice"] == "buffered"


# --- given sizes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "advice", "reason"),
    [
        ({"request_bytes": 4 * MIB}, "direct", "large"),
        ({"request_bytes": 4 * MIB, "operation": "write"}, "direct", "large"),
        ({"request_bytes": 64 * KIB}, "dontneed", "untried"),
        ({"request_bytes": 4 * KIB}, "dontneed", "small"),
        ({"request_bytes": 4 * MIB, "reread_pct": 50}, "buffered", "reread"),
        ({"request_bytes": 4 * MIB, "operation": "write", "reread_pct": 50}, "buffered", "read_back"),
    ],
)
def test_given_sizes_are_judged_without_observing(given: dict[str, Any], advice: str, reason: str) -> None:
    params = tool.Params(**given)
    assert tool.TOOL.needs(params) == []
    recording = Cache().build(without=("page_cache", "calibration"))
    (found,) = tool.judge(recording, params).findings
    assert (found.attributes["advice"], found.attributes["reason"]) == (advice, reason)
    assert found.subject.path is None


def test_given_sizes_take_what_was_tried_where_it_was_asked_for() -> None:
    params = {"request_bytes": 2 * MIB, "calibrate": True, "directory": "/data"}
    (found,) = judged(Cache(), tried_rows(), **params).findings
    assert found.attributes["reason"] == "faster_here"
    assert found.attributes["filesystem"] == "ext4"
    assert found.metrics["ratio"] == 2


@pytest.mark.parametrize(
    "given",
    [
        {"operation": "read"},
        {"reread_pct": 3},
        {"directory": "/data"},
        {"request_bytes": 4096, "calibrate": True},
        {"request_bytes": 4096, "pid": 1},
        {"request_bytes": 0},
        {"request_bytes": 1 << 40},
        {"request_bytes": 4096, "operation": "append"},
        {"request_bytes": 4096, "reread_pct": 101},
        {"request_bytes": True},
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ToolError) as refused:
        parse_params(tool.Params, given)
    assert refused.value.code.value == "bad_argument"


def test_it_reads_in_both_languages() -> None:
    answer = judged(harmful(), tried_rows())
    for lang in ("en", "zh"):
        for finding in answer.findings:
            text = voice("txt", lang).finding(finding)
            assert "{" not in text
            assert finding.attributes["reason"] not in text
            assert finding.attributes["advice"] not in text.replace("direct I/O", "").replace("buffered I/O", "")
