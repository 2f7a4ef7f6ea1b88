"""Wall-clock time. Schedules are computed on what clocks on the wall show, and only the result is a moment.

A time that does not exist (clocks were put forward over it) and one that exists twice are taken as RFC 5545, 3.3.5
does, and with it every calendar: the first by the offset before the gap (02:30 becomes 03:30), the second at its first
occurrence. That is what `zoneinfo` does with ``fold=0``.
"""

from __future__ import annotations

from datetime import datetime, timezone
from zoneinfo import ZoneInfo

UTC = timezone.utc


def instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """The moment (UTC) at which clocks in `zone` show `wall`, which has no zone."""
    return wall.replace(tzinfo=zone, fold=0).astimezone(UTC)


def wall(moment: datetime, zone: ZoneInfo) -> datetime:
    """What clocks in `zone` show at `moment`."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def exists(wall_time: datetime, zone: ZoneInfo) -> bool:
    """Whether clocks in `zone` ever show `wall_time`."""
    return wall(instant(wall_time, zone), zone) == wall_time
