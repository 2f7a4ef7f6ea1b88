"""Wall-clock time: schedules are computed in local time, and only the result is converted to UTC.

A time skipped by a clock change and one that occurs twice are resolved as in RFC 5545, 3.3.5: the first with the offset
before the gap (02:30 becomes 03:30), the second at its first occurrence. `zoneinfo` does so with ``fold=0``.
"""

from __future__ import annotations

from datetime import datetime, timezone
from zoneinfo import ZoneInfo

UTC = timezone.utc


def instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the instant (UTC) of the naive local time `wall` in `zone`."""
    return wall.replace(tzinfo=zone, fold=0).astimezone(UTC)


def wall(moment: datetime, zone: ZoneInfo) -> datetime:
    """Return the naive local time in `zone` at `moment`."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def exists(wall_time: datetime, zone: ZoneInfo) -> bool:
    """Return whether the local time `wall_time` exists in `zone`."""
    return wall(instant(wall_time, zone), zone) == wall_time
