"""Traces and profiles into recordings and back, and through files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.recording.redact import redact
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.profile import ACTIVITIES, STEPS, Profile
from whystall.tools.timeline.recorded import UNKNOWN_START, recording_of, trace_of, with_profile
from whystall.tools.timeline.sched import TABLES, Odd, SchedTrace, empty_tables

START = 5_000_000_000
WINDOW = 1_000_000
REAL = 1_700_000_000_000_000_000


def frame(schema: pl.Schema, *rows: dict[str, Any]) -> pl.DataFrame:
    """Rows of a table; what is not given is unknown."""
    unknown: dict[Any, Any] = {pl.String: "", pl.Boolean: False}
    full = [{c: row.get(c, unknown.get(t, -1)) for c, t in schema.items()} for row in rows]
    return pl.DataFrame(full, schema=schema, orient="row")


def made(*, clock: str = "mono", cpus: tuple[int, ...] = (0, 1), lost: int = 0, clocks: bool = True) -> SchedTrace:
    """A switch to thread 7 and back, one of its wakeups, and a hole."""
    tables = empty_tables()
    tables["switches"] = frame(
        TABLES["switches"],
        {"at_ns": START + 100, "cpu": 0, "prev_tid": 0, "next_tid": 7, "prev_arrived_ns": 0, "prev_state": "R"},
        {"at_ns": START + 900, "cpu": 0, "prev_tid": 7, "next_tid": 0, "prev_arrived_ns": START + 100},
        {"at_ns": START + 950, "cpu": 0, "prev_tid": 0, "next_tid": 7, "prev_arrived_ns": START - 5},
    )
    tables["wakeups"] = frame(TABLES["wakeups"], {"at_ns": START + 90, "cpu": 1, "kind": "waking", "tid": 7})
    tables["names"] = frame(TABLES["names"], {"at_ns": START, "tid": 7, "pid": 7, "comm": "train"})
    tables["tasks"] = frame(TABLES["tasks"], {"at_ns": START, "cpu": 0, "kind": "rename", "tid": 7, "text": "train"})
    if lost:
        row = {"start_ns": START + 200, "end_ns": START + 300, "cpu": 1, "lost": lost, "why": "lost"}
        tables["holes"] = frame(TABLES["holes"], row)
    if clocks:
        now = START + 1_000
        point = {"mono": now, "mono_raw": now + 3_000_000, "boot": now + 9, "real": REAL + 1_000, "error_ns": 50}
        tables["clocks"] = frame(TABLES["clocks"], point)
    return SchedTrace(
        tables=tables,
        start_ns=START,
        end_ns=START + WINDOW,
        cpus=cpus,
        clock=clock,
        others={"sched_stat_runtime": 3},
        odd=Odd(2, ("x", "y")),
        notes=(("not_permitted", "syscalls"),),
    )


def profile(*spans: tuple[int, int], steps: tuple[tuple[int, int], ...] = ()) -> Profile:
    """Kernels and steps at instants since `START`."""
    work = [{"start_ns": START + a, "end_ns": START + b, "kind": "kernel", "name": "k", "device": 0} for a, b in spans]
    ranges = [{"start_ns": START + a, "end_ns": START + b, "step": i} for i, (a, b) in enumerate(steps)]
    tables = {"activities": frame(ACTIVITIES, *work), "steps": frame(STEPS, *ranges)}
    return Profile(tables=tables, clock="mono", source="kineto", notes=(("not_permitted", "memory"),))


@pytest.mark.parametrize("clock", ["mono", "mono_raw", "boot", "local", ""])
@pytest.mark.parametrize("cpus", [(0, 1), (1, 4)])
def test_a_trace_survives_being_a_recording(clock: str, cpus: tuple[int, ...], tmp_path: Path) -> None:
    trace = made(clock=clock, cpus=cpus)
    recording_of(trace, name="trace.txt", host="node7").save(tmp_path / "out")
    recording = Recording.open(tmp_path / "out", COLLECTORS)
    assert recording.manifest.host == "node7"
    assert recording.manifest.id == "trace.txt"
    back = trace_of(recording, absolute=True)
    assert (back.clock, back.start_ns, back.end_ns) == (clock, START, START + WINDOW)
    assert set(cpus) <= set(back.cpus) <= {*cpus, 0}  # events of a CPU prove that it was traced
    for name in TABLES.keys() - {"switches"}:
        assert back.table(name).equals(trace.table(name)), name
    arrived = back.table("switches")["prev_arrived_ns"].to_list()
    assert arrived == [0, START + 100, 0]  # before the start is as good as unknown
    assert back.table("switches").drop("prev_arrived_ns").equals(trace.table("switches").drop("prev_arrived_ns"))


def test_instants_of_a_recording_count_from_its_start() -> None:
    trace = trace_of(recording_of(made()))
    assert (trace.start_ns, trace.end_ns) == (0, WINDOW)
    assert trace.table("switches")["at_ns"].to_list() == [100, 900, 950]
    assert trace.table("switches")["prev_arrived_ns"].to_list() == [0, 100, 0]
    assert trace.table("clocks")["mono"].to_list() == [START + 1_000]  # the host's clocks are absolute everywhere


def test_the_manifest_reports_what_the_trace_could_not() -> None:
    entry = recording_of(made(lost=-1)).manifest.collectors["ftrace"]
    assert (entry.engine, entry.lost, entry.kept, entry.seen) == ("file", 1, 5, 9)
    assert entry.hooks == ["switches", "wakeups", "tasks"]
    assert {(s.code, s.detail) for s in entry.not_seen} == {("not_permitted", "syscalls"), ("odd_lines", "2")}
    assert entry.proven
    assert recording_of(made(lost=40)).manifest.collectors["ftrace"].lost == 40
    nothing = SchedTrace(tables=empty_tables(), start_ns=START, end_ns=START, cpus=())
    assert not recording_of(nothing).manifest.collectors["ftrace"].proven


@pytest.mark.parametrize(
    ("trace", "started"),
    [
        (made(), "2023-11-14T22:13:20.000Z"),
        (made(clock="mono_raw"), "2023-11-14T22:13:19.997Z"),
        (made(clock="local"), UNKNOWN_START),
        (made(clocks=False), UNKNOWN_START),
    ],
)
def test_the_start_is_reported_where_the_trace_knows_it(trace: SchedTrace, started: str) -> None:
    assert recording_of(trace).manifest.started == started


def test_a_recording_without_a_trace_has_none() -> None:
    recording = recording_of(made())
    del recording.manifest.collectors["ftrace"]
    with pytest.raises(ToolError) as refused:
        trace_of(recording)
    assert refused.value.code is ErrorCode.MISSING_COLLECTOR


def test_a_profile_is_cut_to_the_window(tmp_path: Path) -> None:
    plain = recording_of(made())
    spans = ((-500, -100), (-50, 200), (300, 400), (WINDOW - 1, WINDOW + 9), (WINDOW + 1, WINDOW + 5))
    both = with_profile(plain, profile(*spans, steps=((-50, 100), (200, 900), (900, WINDOW + 1))))
    assert not plain.has("profile")
    both.save(tmp_path / "out")
    read = Recording.open(tmp_path / "out", COLLECTORS)
    activities = read.table("profile.activities")
    assert activities.select("start_ns", "end_ns").rows() == [(0, 200), (300, 400), (WINDOW - 1, WINDOW)]
    assert read.table("profile.steps").select("start_ns", "end_ns").rows() == [(200, 900)]
    entry = read.manifest.collectors["profile"]
    assert (entry.engine, entry.seen, entry.kept) == ("kineto", 5, 3)
    assert {(s.code, s.detail) for s in entry.not_seen} == {
        ("not_permitted", "memory"),
        ("profile_outside", "2 activities, 2 steps"),
    }
    assert trace_of(read).table("switches").height == 3


def test_a_profile_of_another_time_is_refused() -> None:
    with pytest.raises(ToolError) as refused:
        with_profile(recording_of(made()), profile((-500, -100), (WINDOW + 1, WINDOW + 5)))
    assert refused.value.code is ErrorCode.NO_OVERLAP


def test_redaction_hides_the_names_of_threads_and_keeps_them_equal() -> None:
    hidden = redact(recording_of(made()))
    name, renamed = hidden.table("ftrace.names")["comm"][0], hidden.table("ftrace.tasks")["text"][0]
    assert name == renamed != "train"
    assert hidden.table("ftrace.switches").equals(recording_of(made()).table("ftrace.switches"))
