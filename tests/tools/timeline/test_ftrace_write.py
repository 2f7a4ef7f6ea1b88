"""Traces written as ftrace's text and read again."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from machine import Machine, changed, trace_of

from whystall.tools.timeline.drawing.names import Names
from whystall.tools.timeline.ftrace import text as ftrace_text
from whystall.tools.timeline.ftrace.holes import unseen_holes
from whystall.tools.timeline.sched import TABLES, SchedTrace
from whystall.tools.timeline.writers import ftrace as ftrace_write
from whystall.tools.timeline.writers import ftrace_lines as ftrace_write_lines

EVENTS = ("switches", "wakeups", "migrations", "interrupts", "syscalls", "tasks", "power", "block", "markers")


def again(trace: SchedTrace, tmp_path: Path) -> SchedTrace:
    path = tmp_path / "ftrace.txt"
    lines = ftrace_write.write(trace, path)
    assert lines == path.read_text("utf-8").count("\n")
    back = ftrace_text.read(path)
    assert back.odd.count == 0
    assert back.others == {}
    return back


def check_same(back: SchedTrace, trace: SchedTrace) -> None:
    for name in EVENTS:
        table = trace.table(name)
        if name == "switches":  # a preempted thread is marked in a column of its own
            table = table.with_columns(prev_state=pl.col("prev_state").str.head(1))
        assert back.table(name).equals(table), name


@pytest.mark.parametrize("seed", range(5))
def test_the_tables_come_back(seed: int, tmp_path: Path) -> None:
    trace = Machine(seed).trace()
    back = again(trace, tmp_path)
    check_same(back, trace)
    assert (back.clock, back.cpus) == (trace.clock, trace.cpus)
    seen = {*trace.table("switches")["prev_tid"], *trace.table("switches")["next_tid"], *trace.table("wakeups")["tid"]}
    expected = trace.table("names").filter(pl.col("tid").is_in(seen - {0}))
    found = back.table("names").filter(pl.col("tid").is_in(seen - {0}))
    assert sorted(found.select("tid", "pid", "comm").rows()) == sorted(expected.select("tid", "pid", "comm").rows())


def test_events_of_all_kinds(tmp_path: Path) -> None:
    trace = trace_of(
        switches=[(100, 0, 7, 120, "?", False, 0, 8, 98), (2_000_000_001, 1, 0, 120, "R", True, 0, 9, -1)],
        wakeups=[
            (110, 0, "waking", 8, "nmi", 7, 120, 0), (120, 0, "wakeup", 8, "", 7, 120, -1),
            (130, 1, "new", 0, "softirq", 9, 120, 1),
        ],
        syscalls=[
            (200, 0, 8, True, 202, "", -1, 4096, 0, -1), (210, 0, 8, False, 202, "", -1, -1, -1, -110),
            (220, 0, 8, True, -1, "openat", -100, 1 << 62, 7, -1), (230, 0, 8, False, -1, "openat", -1, -1, -1, -2),
        ],
        tasks=[
            (300, 0, "fork", 8, 10, ""), (310, 0, "exec", 8, -1, "/usr/bin/a b"), (320, 0, "rename", 8, -1, "other"),
            (330, 0, "exit", 8, -1, ""),
        ],
        power=[(400, 0, "idle", 2), (410, 0, "idle", -1), (420, 0, "frequency", 2_400_000)],
        block=[
            (500, 0, 8, "insert", "8,0", "WS", 1234, 4096), (510, 0, 8, "issue", "259,1", "R", -1, 0),
            (520, 0, 8, "complete", "8,0", "WS", 1234, 4096),
        ],
        markers=[
            (600, 0, 8, "begin", 7, "load|batch", -1), (610, 0, 8, "counter", -1, "queued", -3),
            (620, 0, 8, "async_begin", 7, "copy", 99), (630, 0, 8, "async_end", 7, "copy", 99),
            (640, 0, 8, "instant", 7, "epoch", -1), (650, 0, 8, "end", 7, "", -1),
        ],
        names=[(0, 7, 7, "seven"), (0, 8, 7, "eight"), (320, 8, 7, "other"), (0, 10, -1, "child")],
        clocks=[(5, 6, 7, 8, 9), (15, 16, 17, 18, 19)],
        cpus=(0, 1),
        end=2_000_000_001,
    )  # fmt: skip
    back = again(trace, tmp_path)
    check_same(back, trace)
    assert back.table("clocks").equals(trace.table("clocks"))


def test_reported_holes_come_back(tmp_path: Path) -> None:
    """A tracer's hole is from the last event before to the first one after."""
    switches = [(at, cpu, 7 + cpu, 120, "S", False, 0, 7 + cpu, 120) for at in (100, 200, 300, 900) for cpu in (0, 1)]
    holes = [(100, 200, 0, 5, "lost"), (200, 300, 1, -1, "lost")]
    trace = trace_of(switches=switches, holes=holes, cpus=(0, 1), start=100, end=900)
    assert again(trace, tmp_path).table("holes").equals(trace.table("holes"))


def test_a_cpu_whose_oldest_events_were_overwritten(tmp_path: Path) -> None:
    switches = [
        (at, cpu, 7 + cpu, 120, "S", False, 0, 7 + cpu, 120) for at, cpu in ((100, 0), (200, 0), (300, 1), (400, 0))
    ]
    trace = trace_of(switches=switches, holes=[(100, 300, 1, -1, "rotated")], cpus=(0, 1), start=100, end=400)
    path = tmp_path / "ftrace.txt"
    ftrace_write.write(trace, path)
    assert "##### CPU 1 buffer started ####\n" in path.read_text("utf-8")
    assert ftrace_text.read(path).table("holes").filter(cpu=1).select("start_ns", "end_ns").rows() == [(100, 300)]


def test_unseen_switches_are_visible_again_or_written_as_lost(tmp_path: Path) -> None:
    machine = Machine(7)
    trace = machine.trace()
    switches = trace.table("switches")
    switches = switches.filter(pl.Series([number % 5 != 2 for number in range(switches.height)]))
    holes = unseen_holes(switches)
    nothing = {name: trace.table(name).clear() for name in EVENTS}
    trace = changed(trace, **{**nothing, "switches": switches, "holes": holes})
    back = again(trace, tmp_path)
    assert sorted(back.table("holes").rows()) == sorted(holes.rows())
    path = tmp_path / "marked.txt"
    ftrace_write.write(trace, path, unseen_as_lost=True)
    marks = [line for line in path.read_text("utf-8").splitlines() if line.startswith("CPU:")]
    assert sorted(marks) == sorted(f"CPU:{cpu} [LOST EVENTS]" for cpu in holes["cpu"])


def test_some_cpus(tmp_path: Path) -> None:
    trace = Machine(8).trace()
    path = tmp_path / "ftrace.txt"
    ftrace_write.write(trace, path, cpus=[1])
    back = ftrace_text.read(path)
    assert back.cpus == (1,)
    assert back.table("switches").height == trace.table("switches").filter(cpu=1).height


@pytest.mark.thorough
def test_long_traces_are_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Machine(9).trace()
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    count = ftrace_write.write(trace, whole)
    monkeypatch.setattr(ftrace_write, "_ROWS", 7)
    assert ftrace_write.write(trace, parts) == count
    assert parts.read_bytes() == whole.read_bytes()


def test_lines_look_like_the_kernels() -> None:
    tables = {name: schema.to_frame() for name, schema in TABLES.items()}
    tables["switches"] = pl.DataFrame(
        [(1_234_000_005_678, 3, 7, 120, "R+", True, 0, 0, 120)], schema=TABLES["switches"], orient="row"
    )
    tables["migrations"] = tables["migrations"].with_columns(running=pl.lit(0))
    trace = trace_of(names=[(0, 7, 5, "python")])
    lines = pl.concat(ftrace_write_lines.lines(tables, Names(trace, {}), True))["line"].to_list()
    assert lines == [
        "          python-7       (      5) [003] d....  1234.000005678: sched_switch: prev_comm=python prev_pid=7 "
        "prev_prio=120 prev_state=R+ ==> next_comm=swapper/3 next_pid=0 next_prio=120"
    ]
