"""Hosts of a job in which one rank holds the others back: what ``hang`` reads on each of them, made by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from recordings import Scene

from whystall.tools.recording.store import Recording

WRAPPER = "wrapper (torch/distributed/c10d_logger.py:83)"
TRAIN = ("train (job.py:10)", "<module> (job.py:12)")
INSIDE = ("all_reduce (torch/distributed/distributed_c10d.py:3000)", WRAPPER, *TRAIN)
GATHERS = ("all_gather (torch/distributed/distributed_c10d.py:4000)", WRAPPER, *TRAIN)
LOADS = ("load (job.py:6)", *TRAIN)
WAIT = {"state": "S", "syscall": "futex", "wchan": "futex_do_wait"}
READ = {"state": "S", "syscall": "read", "wchan": "pipe_read", "object": "pipe:[77]"}
FIRST_PID = 100
"""Of the first rank of every host: the same on all of them, as in containers."""


def hung_host(
    host: str,
    ranks: Iterable[int],
    world: int,
    *,
    late: Iterable[int] = (),
    stack: tuple[str, ...] = INSIDE,
    started: int | tuple[int, int] = 38,
    window_s: float = 2.0,
    **manifest: Any,
) -> Recording:
    """What was read of `ranks` on `host`: they wait in an all_reduce, but the `late` ones read a pipe before it.

    `started`: operations begun, or at the start and at the end of the window.
    """
    scene = Scene(window_s=window_s)
    for local, rank in enumerate(ranks):
        pid = FIRST_PID + local
        row, frames, count = (READ, LOADS, 37) if rank in late else (WAIT, stack, started)
        number = scene.stack(frames, kernel=False)
        scene.seen("threads", pid=pid, tid=pid, comm="python", **row, pystack=number, lock=0)
        place = {"backend": "gloo", "name": "0", "rank": rank, "size": world}
        scene.seen("process_groups", pid=pid, group=1000, started=count, **place)
    return scene.build(host=host, **manifest)
