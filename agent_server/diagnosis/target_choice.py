"""Choose the processes of a host to observe: of a launcher also its children, and one of them if none was named."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl

from whystall.bpf.attached import MAX_TARGETS
from whystall.tools.collect.proc_parse import schedstat
from whystall.tools.host.critical_path.choose import leaves_work
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target, children_of

# A process is chosen only if it was blocked, or used CPU, for at least this share of the window.
_WORTH_PCT = 5.0
_KTHREADD = 2
# A process with children that runs for less than this share of a short time leaves the work to them.
_LAUNCHER_SHARE, _LOOK_S = 0.02, 0.3


def with_children(target: Target, proc: Path = Path("/proc"), sleep: Callable[[float], None] = time.sleep) -> Target:
    """Return `target` with its descendants if it is one process that hardly runs and has some: a launcher of ranks, a
    shell that runs the job, a server that leaves the requests to its workers. Blocks for 0.3 s then. A process that has
    worked itself and waits for a command is no launcher."""
    if target.pid is None or target.follow or target.pids != [target.pid]:
        return target
    family = [pid for pid in children_of(target.pids) if pid != os.getpid()]
    if not 1 < len(family) <= MAX_TARGETS:
        return target
    before = _run_ns(proc / str(target.pid))
    if not leaves_work(before, sum(_run_ns(proc / str(pid)) for pid in family if pid != target.pid)):
        return target
    sleep(_LOOK_S)
    if _run_ns(proc / str(target.pid)) - before > _LAUNCHER_SHARE * _LOOK_S * 1e9:
        return target
    return target.model_copy(update={"pids": family, "follow": True})


def _run_ns(process: Path) -> int:
    """Return how long the present threads of a process have run, ns."""
    total = 0
    for file in process.glob("task/[0-9]*/schedstat"):
        try:
            total += schedstat(file.read_bytes()).run_ns
        except (OSError, ValueError, IndexError):
            continue  # the thread has ended
    return total


def choose_process(recording: Recording) -> int | None:
    """Return the pid of the process with the longest blocked thread, else with most CPU time; None on an idle host.

    Blocked: in uninterruptible sleep or waiting for a file, as `switches` recorded, else the kernel's count of block
    I/O waits. Our own process and kernel threads are left out.
    """
    kernel = (pl.col("pid") == _KTHREADD) | (pl.col("ppid") == _KTHREADD)
    rows = recording.table("proc.processes").filter((pl.col("pid") != os.getpid()) & ~kernel)
    cpu = pl.col("user_ns") + pl.col("system_ns")
    spent = (
        rows.sort("at_ns")
        .group_by("pid", "start_ticks")
        .agg(
            (pl.col("block_io_ns").last() - pl.col("block_io_ns").first()).alias("held"),
            (cpu.last() - cpu.first()).alias("cpu"),
        )
    )
    if recording.has("switches"):
        spent = spent.join(_held_up(recording), on="pid", how="left").with_columns(
            pl.max_horizontal("held", pl.col("waited").fill_null(0)).alias("held")
        )
    least = recording.manifest.window_ns * _WORTH_PCT / 100
    for measure in ("held", "cpu"):
        top = spent.filter(pl.col(measure) >= least).sort(measure, descending=True).head(1)
        if top.height:
            return int(top["pid"][0])
    return None


def _held_up(recording: Recording) -> pl.DataFrame:
    """Return, by process, how long its worst thread was blocked (`waited`, ns)."""
    return (
        recording.table("switches.totals")
        .filter((pl.col("state") == "D") | (pl.col("file") >= 0))
        .group_by("pid", "tid")
        .agg(pl.col("total_ns").sum().alias("waited"))
        .group_by("pid")
        .agg(pl.col("waited").max())
    )
