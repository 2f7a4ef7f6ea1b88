"""Tell waits for read-write locks that readers hold from waits for other locks. Pure."""

from __future__ import annotations

from whystall.tools.host.common.path_codes import READERS
from whystall.tools.host.common.timelines import Timeline
from whystall.tools.host.critical_path.rows import Row
from whystall.tools.host.critical_path.world import World


def explain_read_locks(world: World, line: Timeline, rows: list[Row]) -> None:
    """Set `detail` of the rows of waits for a lock that readers hold at the end of the window."""
    if world.objects.readers_of_lock(line.tid):
        for row in rows:
            if row.code == "lock" and row.open_ns and not row.detail:
                row.detail = READERS
