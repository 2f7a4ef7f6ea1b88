"""Find the waits that ended because the kernel killed the awaited process for lack of memory. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from whystall.tools.host.common.oom import kills
from whystall.tools.host.critical_path.rows import Row
from whystall.tools.host.critical_path.world import World
from whystall.tools.recording.store import Recording


def explain_kills(recording: Recording, world: World, rows: Iterable[Row]) -> None:
    """Fill in `killed_ns` of the rows of waits: the time that processes ended which were killed in the window."""
    killed = {kill.pid for kill in kills(recording)} - {None}
    for row in rows if killed else ():
        if row.code != "cpu":  # there `by` names who had the CPU
            row.killed_ns = sum(took for (tid, _), took in row.by.items() if world.pid_of(tid) in killed)
