"""One judgement on what several hosts observe of a running job: collective_live and slow_node_check --live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from collective_hosts import windows
from collective_windows import PID, Job

from whystall.agent_server.fleet.answers import Answer, Located
from whystall.agent_server.fleet.merge import FleetResult, merge
from whystall.agent_server.fleet.text import fleet_text
from whystall.tools.ranks.traces.hosts import calls_of, ranks_of
from whystall.tools.recording.packed import pack
from whystall.tools.recording.store import Recording

pytestmark = pytest.mark.thorough

HOSTS = {f"node{n}": (2 * n, 2 * n + 1) for n in range(4)}
SLOW = {"live": True, "duration": 4}
LATE = Job(ranks=8, late_ms={3: 30})
PART = {"collective_live": calls_of, "slow_node_check": ranks_of}
ARGUMENTS: dict[str, dict[str, Any]] = {"collective_live": {"duration": 4}, "slow_node_check": SLOW}
TOOLS = sorted(PART)


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def answers(tool: str, recordings: Mapping[str, Recording]) -> list[Answer]:
    """What hosts answer that were called at 100 s for 4 s."""
    content = {host: pack(PART[tool](one)) for host, one in recordings.items()}
    return [Answer(host, "answered", content=one, began=100.0, ended=105.0) for host, one in content.items()]


def of(tool: str, job: Job, hosts: Mapping[str, tuple[int, ...]] = HOSTS, **window: Any) -> list[Answer]:
    return answers(tool, windows(job, hosts, **window))


def judged(tool: str, given: list[Answer]) -> FleetResult:
    return merge(tool, given, ARGUMENTS[tool])


def data(result: FleetResult) -> Any:
    assert result.joint is not None
    return result.joint


def named(result: FleetResult) -> list[int]:
    joint = data(result)
    return [row.rank for row in (joint.late if result.tool == "collective_live" else joint.accused)]


# --- both tools -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", TOOLS)
def test_the_late_rank_is_named_with_its_host(tool: str) -> None:
    result = judged(tool, of(tool, LATE))
    assert (result.verdict, named(result), result.disputed) == ("abnormal", [3], [])
    assert result.suspect is not None
    assert (result.suspect.rank, result.suspect.host, result.suspect.pid) == (3, "node1", PID + 1)
    for lang in ("en", "zh"):
        assert "rank 3 -> node1" in fleet_text(result, lang)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("library", ["gloo", "mpi", "nccl"])
def test_nobody_is_named_in_a_healthy_job(tool: str, seed: int, library: str) -> None:
    result = judged(tool, of(tool, Job(ranks=8, seed=seed, library=library, environment=True)))
    assert (named(result), result.findings, result.suspect) == ([], [], None)
    if library == "gloo":
        assert result.verdict == "clear"


@pytest.mark.parametrize("tool", TOOLS)
def test_a_rank_of_a_host_without_an_answer_is_absent_and_never_late(tool: str) -> None:
    given = of(tool, LATE)
    given[1] = Answer("node1", "unreachable", "no connection")
    result = judged(tool, given)
    assert (named(result), result.findings) == ([], [])
    assert result.verdict in ("unknown", "clear_in_part")
    assert [(one.status, one.hosts) for one in result.missing] == [("unreachable", "node1")]


def test_a_late_rank_is_named_though_others_are_absent() -> None:
    given = of("collective_live", LATE)
    given[0] = Answer("node0", "slow", "no answer within 30 s")
    result = judged("collective_live", given)
    assert (named(result), data(result).absent) == ([3], "0-1")
    assert "not observed: ranks 0-1" in fleet_text(result, "en")


@pytest.mark.parametrize("tool", TOOLS)
def test_a_rank_that_two_hosts_claim_is_believed_of_none(tool: str) -> None:
    """node9 claims to have rank 3, which is late there, and rank 1."""
    given = of(tool, Job(ranks=8))
    given += of(tool, LATE, {"node9": (1, 3)})
    result = judged(tool, given)
    assert [(one.rank, one.hosts) for one in result.disputed] == [(1, ["node0", "node9"]), (3, ["node1", "node9"])]
    assert named(result) == []


@pytest.mark.parametrize("tool", TOOLS)
def test_a_host_that_claims_all_ranks_accuses_nobody(tool: str) -> None:
    given = [*of(tool, LATE), *of(tool, Job(ranks=8, late_ms={0: 50}), {"node9": tuple(range(8))})]
    result = judged(tool, given)
    assert (named(result), len(result.disputed), result.findings) == ([], 8, [])


@pytest.mark.parametrize("tool", TOOLS)
def test_a_rank_that_no_job_of_its_size_has_spoils_nothing(tool: str) -> None:
    odd = windows(Job(ranks=8), {"node9": (0, 1)})["node9"]
    groups = odd.table("objects.process_groups").with_columns(pl.col("rank") + 8)
    tables = odd.tables() | {"objects.process_groups": groups}
    result = judged(tool, [*of(tool, LATE), *answers(tool, {"node9": Recording.in_memory(odd.manifest, tables)})])
    assert (named(result), result.disputed) == ([3], [])


@pytest.mark.parametrize("tool", TOOLS)
def test_hosts_of_another_job_or_time_are_not_compared(tool: str) -> None:
    given = of(tool, LATE)
    given += of(tool, Job(ranks=2), {"node8": (0, 1)})
    late_call = of(tool, Job(ranks=8), {"node9": (6, 7)})[0]
    given.append(replace(late_call, began=200.0, ended=205.0))
    result = judged(tool, given)
    assert {one.hosts: one.status for one in result.missing} == {"node8": "other_job", "node9": "apart"}
    assert (named(result), result.disputed) == ([3], [])


@pytest.mark.parametrize("tool", TOOLS)
def test_a_host_that_found_another_job_by_the_same_words_is_not_used(tool: str) -> None:
    ids = ("slurm:1", "slurm:1", "slurm:1", "slurm:2")
    given = [replace(one, located=Located(7, job=id)) for one, id in zip(of(tool, LATE), ids, strict=True)]
    result = judged(tool, given)
    assert [(one.status, one.hosts) for one in result.missing] == [("other_job", "node3")]


@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_no_window_is_reported(tool: str) -> None:
    good = of(tool, LATE)
    other = of("slow_node_check" if tool == "collective_live" else "collective_live", LATE)
    for content in (b"", b"PK", b"x" * 1000, other[0].content):
        result = judged(tool, [replace(good[0], content=content), *good[1:]])
        assert [(one.status, one.hosts) for one in result.missing] == [("invalid", "node0")]
        assert named(result) == [3]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_reply_of_another_host_is_not_used(tool: str) -> None:
    good = of(tool, LATE)
    other = replace(good[0], host="node7", identity=True)
    result = judged(tool, [other, *(replace(one, identity=True) for one in good[1:])])
    assert [(one.status, one.hosts) for one in result.missing] == [("wrong_host", "node7")]


def test_no_usable_answer_is_no_verdict() -> None:
    for tool in TOOLS:
        result = judged(tool, [Answer("node0", "slow", "no answer")])
        assert (result.verdict, result.findings) == ("unknown", [])


# --- collective_live: clocks, order and count -----------------------------------------------------------------------


def test_the_lateness_is_measured_on_estimated_clocks() -> None:
    joint = data(judged("collective_live", of("collective_live", LATE)))
    (late,) = joint.late
    assert (late.rank, late.host, late.pid, late.last) == (3, "node1", PID + 1, late.compared)
    assert 28 < late.low_ms <= late.late_ms <= late.high_ms < 31
    # transfers of half a millisecond cannot show clocks better than that
    assert 0.4 < joint.clock_ms < 0.6
    assert joint.no_clock == ""


def test_one_rank_per_host_is_enough() -> None:
    hosts = {f"node{n}": (n,) for n in range(4)}
    assert named(judged("collective_live", of("collective_live", Job(late_ms={2: 30}), hosts))) == [2]
    assert named(judged("collective_live", of("collective_live", Job(), hosts))) == []


def test_a_lateness_below_what_clocks_are_known_to_is_not_claimed() -> None:
    """Each operation takes 100 ms: ranks may leave it 30 ms apart."""
    result = judged("collective_live", of("collective_live", Job(ranks=8, late_ms={3: 30}, transfer_ms=100)))
    assert (result.verdict, data(result).verdict, named(result)) == ("unknown", "unclear", [])
    assert data(result).clock_ms > 30
    assert "by less than the clocks of the hosts are known" in fleet_text(result, "en")


def test_ranks_of_one_host_need_no_estimate() -> None:
    """The same, but both ranks of the group are on one host."""
    job = Job(ranks=4, late_ms={0: 30}, transfer_ms=100)
    hosts = {"node0": (0, 1), "node1": (2, 3)}
    recordings = windows(job, hosts)
    alone = judged("collective_live", answers("collective_live", {"node0": recordings["node0"]}))
    assert named(alone) == [0]
    assert data(alone).clock_ms is None


def test_operations_that_are_only_enqueued_show_no_clock() -> None:
    job = Job(ranks=8, library="nccl", environment=True, late_ms={3: 30})
    result = judged("collective_live", of("collective_live", job))
    assert (data(result).verdict, data(result).no_clock, named(result)) == ("unmatched", "0-7", [])
    assert "ranks 0-7" in fleet_text(result, "en")


def test_numbers_that_also_count_sends_are_not_compared_between_hosts() -> None:
    job = Job(ranks=8, sends=(0, 1, 2, 0, 1, 2, 0, 0), late_ms={3: 30})
    assert named(judged("collective_live", of("collective_live", job))) == [3]


def test_a_rank_is_outside_only_of_what_others_entered_long_before_the_end() -> None:
    """Rank 3 does not enter the last operation, which the others entered 200 ms before the end."""
    recordings = windows(Job(ranks=8, hangs_on=3), HOSTS, begins_ms=(0, 5, 9, 2))
    for ended, outside in ((104.0, "3"), (105.0, "")):
        given = [
            replace(one, ended=ended, began=ended - recordings[one.host].manifest.window_ns / 1e9 - 0.01)
            for one in answers("collective_live", recordings)
        ]
        if not outside:
            given[0] = replace(given[0], began=103.0 - recordings["node0"].manifest.window_ns / 1e9)
        found = data(judged("collective_live", given)).open
        assert {(row.seq, row.outside) for row in found if "4" in row.inside} == {(260, outside)}


# --- hostile reports ------------------------------------------------------------------------------------------------


def changed(recording: Recording, table: str, **columns: Any) -> Recording:
    tables = recording.tables()
    frame = tables[table]
    values = {name: pl.lit(value).cast(frame.schema[name]) for name, value in columns.items()}
    return Recording.in_memory(recording.manifest.model_copy(deep=True), tables | {table: frame.with_columns(**values)})


_EXTREME = (-(2**63), 2**63 - 1)
_NUMBERS = {
    "collectives.calls": ("pid", "tid", "group", "seq", "count", "bytes", "peer", "queued_ns"),
    "collectives.processes": ("pid", "rank", "world_size", "cost_ns"),
    "objects.process_groups": ("pid", "group", "rank", "size"),
}
_ODD: list[tuple[str, dict[str, Any]]] = [
    *((table, {name: value}) for table, names in _NUMBERS.items() for name in names for value in _EXTREME),
    *(("collectives.calls", {"op": op}) for op in ("", "nonsense", "x" * 10_000)),
    *(("collectives.calls", {"library": library}) for library in ("", "nccl", "\x1b[0m")),
    ("collectives.calls", {"open": True}),
    ("collectives.calls", {"start_ns": 1, "end_ns": 1, "queued_ns": 1}),
    ("objects.process_groups", {"size": 2**40}),
]


@pytest.mark.parametrize("tool", TOOLS)
def test_odd_values_neither_raise_nor_accuse_a_rank_of_another_host(tool: str) -> None:
    recordings = windows(Job(ranks=8, steps=40), HOSTS)
    good = answers(tool, recordings)
    part = PART[tool](recordings["node1"])
    odd = _ODD
    if tool == "slow_node_check":
        numbers = {
            "ranks.ranks": ("rank", "pid", "world_size", "start_ns"),
            "ranks.collectives": ("seq", "bytes", "peer"),
        }
        odd = [(t, {n: v}) for t, names in numbers.items() for n in names for v in (-(2**31), 2**31 - 1)]
        odd += [
            ("ranks.collectives", {"op": "x"}),
            ("ranks.collectives", {"group": "x"}),
            ("ranks.ranks", {"clock": ""}),
        ]
    for table, columns in odd:
        content = pack(changed(part, table, **columns))
        result = judged(tool, [good[0], replace(good[1], content=content), *good[2:]])
        assert set(named(result)) <= {2, 3}, (table, columns)
        assert fleet_text(result, "en")


@pytest.mark.parametrize("start_ns", [0, 2**62, 2**63 - 1])
@pytest.mark.parametrize("window_ns", [0, 10**15, 2**62, 2**63])
def test_an_odd_manifest_is_no_reason_to_fail(start_ns: int, window_ns: int) -> None:
    for tool in TOOLS:
        recordings = windows(Job(ranks=8), HOSTS)
        good = answers(tool, recordings)
        part = PART[tool](recordings["node1"])
        part.manifest.start_ns, part.manifest.window_ns = start_ns, window_ns
        result = judged(tool, [good[0], replace(good[1], content=pack(part)), *good[2:]])
        assert named(result) == []
        assert fleet_text(result, "zh")
