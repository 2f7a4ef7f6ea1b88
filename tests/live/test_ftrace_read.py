"""Reading the kernel's own files of a trace, in every way it prints them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from whystall.tools.collect.ftrace.instance import Instance
from whystall.tools.collect.ftrace.tracefs import find
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.open_trace import open_trace
from whystall.tools.timeline.sched import TABLES, SchedTrace

NAME = "x ==> y: [0] "
SLEEPER = f"""
import ctypes, time
ctypes.CDLL(None).prctl(15, {NAME.encode()!r}, 0, 0, 0)
for _ in range(20):
    time.sleep(0.001)
"""
RENDERINGS: tuple[dict[str, str], ...] = (
    {"irq-info": "0"},
    {"record-tgid": "1"},
    {"latency-format": "1"},
    {"latency-format": "1", "verbose": "1"},
    {"fields": "1"},
)
EVENTS = ("sched/sched_switch", "sched/sched_waking", "sched/sched_migrate_task", "task", "irq/softirq_entry")


@pytest.fixture
def trace() -> Iterator[Path]:
    """A directory of tracefs with a short trace in it."""
    if os.geteuid() != 0:
        pytest.skip("tracing needs root")
    tracefs = find()
    instance = Instance.make(tracefs)
    try:
        directory = tracefs.root / "instances" / instance.name
        instance.write("trace_clock", "mono")
        instance.write("buffer_size_kb", "4096")
        for event in EVENTS:
            instance.write(f"events/{event}/enable", "1")
        instance.write("tracing_on", "1")
        subprocess.run([sys.executable, "-c", SLEEPER], check=True)
        instance.write("tracing_on", "0")
        yield directory
    finally:
        instance.remove()
        tracefs.close()


def content(trace: SchedTrace) -> dict[str, pl.DataFrame]:
    """Without what a rendering leaves out: the fraction of time, the context, the thread group."""
    left_out = ("at_ns", "context", "pid")
    return {name: trace.table(name).drop(left_out, strict=False) for name in TABLES if name != "holes"}


def test_every_way_the_kernel_prints_it(trace: Path) -> None:
    base = open_trace(trace / "trace")
    assert base.odd.count == 0
    sleeper = base.table("names").filter(pl.col("comm") == NAME)["tid"].unique().item()
    left = base.table("switches").filter(prev_tid=sleeper)["prev_state"]
    assert left.is_in(["S"]).sum() >= 20
    options = trace / "options"
    for changed in RENDERINGS:
        if not all((options / name).exists() for name in changed):
            continue  # of a later kernel
        before = {name: (options / name).read_text() for name in changed}
        for name, value in changed.items():
            (options / name).write_text(value)
        other = open_trace(trace / "trace")
        assert other.odd.count == 0, (changed, other.odd)
        for table, rows in content(base).items():
            assert rows.equals(content(other)[table]), (changed, table)
        for name, value in before.items():
            (options / name).write_text(value)
    # the pipe last: what is read from it is gone
    assert open_trace(trace / "trace_pipe").table("switches").equals(base.table("switches"))
    with pytest.raises(ToolError) as caught:
        open_trace(trace / "trace_pipe")
    assert caught.value.code is ErrorCode.BAD_TRACE
