"""Reading ftrace's text: recorded traces, in all renderings and in blocks of any size."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from whystall.tools.timeline.ftrace import events as ftrace_events
from whystall.tools.timeline.ftrace import source as ftrace_source
from whystall.tools.timeline.ftrace import text as ftrace_text
from whystall.tools.timeline.ftrace.text import read
from whystall.tools.timeline.sched import TABLES

pytestmark = pytest.mark.thorough

DATA = Path(__file__).with_name("data") / "ftrace"
SAMPLE = Path(__file__).parents[4] / "shared" / "data" / "ftrace" / "trappy_trace.txt"
TEXTS = sorted(path.name for path in DATA.glob("*.txt"))
HOSTILE = ["a b: c", "x ==> y", "[000] 1.5: z", "prev_pid=7", "evil-12", "näme", "back\\slash", "\\xff\\xfebad"]
HOSTILE += ["next_pid=3 q", " lead", "trail ", "comm=x pid=1", "tab\\x09here", "nl\\x0aline", "esc\\x1b[31m", "=", "-"]
HOSTILE += ["(12) [001] d..", "CPU:1 [LOST]", "# comment", "  prev_prio=1"]


def test_one_trace_reads_the_same_in_every_rendering() -> None:
    base = read(DATA / "linux61_tgid.txt")
    assert base.odd.count == 0
    assert {name: len(base.table(name)) for name in ("switches", "wakeups", "interrupts", "tasks", "power")} == {
        "switches": 42, "wakeups": 40, "interrupts": 29, "tasks": 19, "power": 36,
    }  # fmt: skip
    assert base.others == {
        "sched_stat_runtime": 40, "softirq_raise": 16, "sched_process_free": 2, "sched_wake_idle_without_ipi": 1,
    }  # fmt: skip
    for rendering in ("pipe", "noirq", "latency", "verbose"):
        other = read(DATA / f"linux61_{rendering}.txt")
        assert other.odd.count == 0, rendering
        assert other.others == base.others
        # the latency formats count from elsewhere, cut to microseconds; two have no flags, three no thread groups
        shift = other.start_ns - base.start_ns
        for name in TABLES:
            ours, expected_side = base.table(name), other.table(name)
            skip = {"context"} if rendering in ("noirq", "verbose") else set()
            skip |= {"pid"} if rendering != "noirq" else set()
            columns = [column for column in ours.columns if column not in skip and not column.endswith("_ns")]
            assert ours.select(columns).equals(expected_side.select(columns)), (rendering, name)
            for column in set(ours.columns) & {"at_ns", "start_ns", "end_ns"}:
                assert (expected_side[column] - ours[column] - shift).abs().max() in (None, 0, 1000), (rendering, name)


def test_whatever_a_thread_is_called_it_is_read() -> None:
    names = set(read(DATA / "linux618_tgid.txt").table("names")["comm"])
    assert set(HOSTILE) <= names


@pytest.mark.parametrize("name", ["linux61_tgid.txt", "linux61_noirq.txt"])
def test_the_thread_group_is_that_of_the_column(name: str) -> None:
    names = read(DATA / name).table("names")
    assert set(names.filter(pl.col("comm").is_in(HOSTILE))["pid"]) == {362}
    assert names.filter(pl.col("tid") == 0).select("pid", "comm").rows() == [(0, "swapper")]


def test_a_name_with_a_line_feed_loses_no_switch() -> None:
    trace = read(DATA / "linux618_tgid.txt")
    # the heads are cut too: what is before the line feed is all that is lost
    assert set(trace.odd.examples) == {"         nl"}
    tid = trace.table("names").filter(pl.col("comm") == "nl\\x0aline")["tid"].item()
    switches = trace.table("switches")
    assert (switches["prev_tid"] == tid).sum() > 0
    assert (switches["next_tid"] == tid).sum() > 0


def test_the_kernel_that_does_not_tell_every_switch_shows_holes() -> None:
    trace = read(DATA / "linux618_tgid.txt")
    assert [hole[-1] for hole in trace.table("holes").rows()] == ["unseen"]
    assert read(DATA / "linux61_tgid.txt").table("holes").is_empty()


def test_a_call_recorded_by_two_events_is_one_row() -> None:
    calls = read(DATA / "linux618_tgid.txt").table("syscalls")
    futex = calls.filter(pl.col("name") == "futex")
    assert futex["nr"].unique().to_list() == [202]
    assert not calls.filter(pl.col("nr") == 202, pl.col("name") == "").height
    assert set(futex.filter("entry")["arg1"]) <= {0x80, 0x81, 0x89, 0x189}
    assert (futex.filter(~pl.col("entry"))["arg0"] == -1).all()


def test_a_clock_that_counts_no_time_is_reported() -> None:
    trace = read(DATA / "linux618_counter.txt")
    assert trace.clock == ftrace_text.COUNTER
    assert trace.start_ns == 736
    assert read(DATA / "linux61_tgid.txt").clock == ""


def test_overwritten_events_are_a_hole_until_the_first_of_that_cpu() -> None:
    trace = read(DATA / "linux61_wrapped.txt")
    first = trace.table("interrupts").filter(pl.col("cpu") == 1)["at_ns"].min()
    (start, end, cpu, lost, why), *others = trace.table("holes").rows()
    assert (start, cpu, lost, why, others) == (trace.start_ns, 1, -1, "lost", [])
    assert trace.start_ns < end <= first


def test_events_lost_by_the_pipe_are_holes_with_their_number() -> None:
    trace = read(DATA / "linux61_pipe_lost.txt")
    assert [(cpu, lost) for _, _, cpu, lost, _ in trace.table("holes").rows()] == [(0, 7233), (1, 7882)]


@pytest.mark.parametrize("name", TEXTS)
def test_the_size_of_blocks_does_not_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read(DATA / name)
    monkeypatch.setattr(ftrace_source, "BLOCK", 700)
    pieces = read(DATA / name)
    # where a line feed within a name falls between two blocks, the line is lost
    tolerated = 0 if whole.odd.count == 0 else 40
    for table in TABLES:
        ours, expected_side = whole.table(table), pieces.table(table)
        assert abs(len(ours) - len(expected_side)) <= tolerated, table
        assert tolerated or ours.equals(expected_side), table
    assert (pieces.start_ns, pieces.end_ns, pieces.cpus, pieces.clock) == (
        whole.start_ns, whole.end_ns, whole.cpus, whole.clock,
    )  # fmt: skip


def test_a_decoder_that_forgets_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read(DATA / "linux61_tgid.txt")
    monkeypatch.setattr(ftrace_source, "BLOCK", 3000)
    monkeypatch.setattr(ftrace_events, "_REMEMBERED", 3)
    again = read(DATA / "linux61_tgid.txt")
    assert all(whole.table(name).equals(again.table(name)) for name in TABLES)


def test_only_the_cpus_and_the_time_asked_for() -> None:
    everything = read(DATA / "linux61_tgid.txt")
    one_cpu = read(DATA / "linux61_tgid.txt", cpus=[1])
    assert one_cpu.cpus == (1,)
    assert (one_cpu.start_ns, one_cpu.end_ns) == (everything.start_ns, everything.end_ns)
    for name in ("switches", "wakeups", "interrupts", "tasks"):
        assert one_cpu.table(name).equals(everything.table(name).filter(pl.col("cpu") == 1)), name
    middle = (everything.start_ns + 5_000_000, everything.end_ns - 5_000_000)
    part = read(DATA / "linux61_tgid.txt", span_ns=middle)
    inside = pl.col("at_ns").is_between(*middle, closed="left")
    assert part.table("switches").equals(everything.table("switches").filter(inside))
    assert read(DATA / "linux61_tgid.txt", cpus=[7]).table("switches").is_empty()


@pytest.mark.skipif(not SAMPLE.exists(), reason="the public sample is not here")
def test_the_public_sample_reads_to_the_last_line() -> None:
    trace = read(SAMPLE)
    lines = SAMPLE.read_text().splitlines()
    assert trace.odd.count == 0
    assert sum(trace.others.values()) == sum("[" in line for line in lines)
    assert trace.cpus == (4,)
