"""Find the processes for which a thread waits and that were not recorded. Pure.

A process outside of the target is recorded from when it first wakes a thread of it. One that lets the target wait all
along, such as a rank that never comes to a collective, is not recorded at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from whystall.tools.host.common.timelines import Timeline
from whystall.tools.host.critical_path.rows import Row
from whystall.tools.host.critical_path.world import World

# Least share of the window for which the thread waits for the process.
_LEAST = 0.15
_MOST = 16


def unseen_processes(world: World, line: Timeline, rows: Sequence[Row], followed: Collection[int]) -> list[int]:
    """Return the processes that were not recorded while thread `line` waited for them, those waited for longest first.

    `followed`: processes outside of the target that were recorded for a part of the window. If a wait for other ranks
    leads to none of them, all those are meant to which the process has connections.
    """
    missed: Counter[int] = Counter()
    for row in rows:
        for step, took in row.last_steps().items():
            pid = world.pid_of(step.tid)
            outside = pid > 0 and pid not in world.target and not world.is_kernel_process(pid)
            if outside and (step.code == "unknown" or pid not in followed):
                missed[pid] += took
        if row.code == "collective" and row.open_ns >= _LEAST * world.window_ns and not row.chains:
            ranks = set(world.objects.connected_processes(line.pid)) - world.target - set(followed)
            missed.update(dict.fromkeys(ranks, row.open_ns))
    return [pid for pid, took in missed.most_common(_MOST) if took >= _LEAST * world.window_ns]
