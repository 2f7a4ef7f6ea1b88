"""Hosts of a job in which one rank holds the others back: what ``hang`` reads on each of them, made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hang_jobs import process
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
    ranks: Sequence[int],
    world: int,
    *,
    late: Iterable[int] = (),
    ended: Mapping[int, int] | None = None,
    stack: tuple[str, ...] = INSIDE,
    started: int | tuple[int, int] = 38,
    window_s: float = 2.0,
    **manifest: Any,
) -> Recording:
    """What was read of `ranks` on `host`: they wait in an all_reduce, but the `late` ones read a pipe before it, and
    those `ended` have exited, with this status as of wait(2); None: processes that ended were not looked for.

    `started`: operations begun, or at the start and at the end of the window.
    """
    scene = Scene(window_s=window_s)
    rows = []
    for local, rank in enumerate(ranks):
        pid = FIRST_PID + local
        if ended and rank in ended:
            rows.append(process(pid, state="Z", exit_code=ended[rank]))
            continue
        size = len(ranks)
        numbers = {"rank": rank, "local_rank": local, "local_size": size, "group_rank": ranks[0] // size}
        rows.append(process(pid, world_size=world, **numbers))
        row, frames, count = (READ, LOADS, 37) if rank in late else (WAIT, stack, started)
        number = scene.stack(frames, kernel=False)
        scene.seen("threads", pid=pid, tid=pid, comm="python", **row, pystack=number, lock=0)
        place = {"backend": "gloo", "name": "0", "rank": rank, "size": world}
        scene.seen("process_groups", pid=pid, group=1000, started=count, **place)
    if ended is not None:
        scene.tables["job_processes.processes"] = [row | {"at_ns": scene.window_ns} for row in rows]
    return scene.build(host=host, **manifest)
