"""Parse times and time spans as people write them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from whystall.agent_server.settings.sections.oncall import FIRST_YEAR, LAST_YEAR, OncallSettings, zone_info
from whystall.agent_server.settings.wall_clock import UTC, instant
from whystall.tools.contract.errors import ErrorCode, ToolError

_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.\d+)?)?)?\s*(Z|z|[+-]\d\d:?\d\d)?", re.ASCII
)
_SPAN = re.compile(r"(\d{1,5}(?:\.\d{1,3})?)\s*([mhdw])", re.ASCII)
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_time(text: str, zone: ZoneInfo, name: str) -> datetime:
    """Parse ``2026-03-29T09:00``, with Z or an offset, else local in `zone`. Return it in UTC.

    Raises `ToolError` (bad_argument), which names the argument `name`.
    """
    found = _TIME.fullmatch(text.strip())
    try:
        if found is not None:
            *numbers, offset = found.groups()
            year, month, day, hour, minute, second = (int(number or 0) for number in numbers)
            time = datetime(year, month, day, hour, minute, second)
            moment = instant(time, zone) if offset is None else (time - _offset(offset)).replace(tzinfo=UTC)
            if FIRST_YEAR < moment.year < LAST_YEAR:
                return moment
    except (ValueError, OverflowError):
        pass
    message = f"{name}: {text[:100]!r} is no time"
    raise ToolError(ErrorCode.BAD_ARGUMENT, message, "write 2026-03-29T09:00, or with Z or +08:00 behind it")


def parse_span(text: str, name: str) -> timedelta:
    """Parse ``30m``, ``4h``, ``2d``, ``1w``. Raises `ToolError` (bad_argument), which names the argument `name`."""
    found = _SPAN.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name}: {text[:100]!r} is no time span", "write 30m, 4h, 2d or 1w")
    return timedelta(**{_UNITS[found[2]]: float(found[1])})


def zone_of(settings: OncallSettings, schedules: list[str]) -> ZoneInfo:
    """Return the zone in which times are read and shown: of all `schedules` if they have the same, else ``[oncall]
    timezone``, else UTC.
    """
    zones = {settings.schedules[name].timezone for name in schedules}
    if len(zones) == 1:
        return zone_info(zones.pop())
    return zone_info(settings.timezone or "UTC")


def _offset(text: str) -> timedelta:
    if text in "Zz":
        return timedelta()
    hours, minutes = int(text[1:3]), int(text[-2:])
    if hours > 23 or minutes > 59:
        raise ValueError("no offset")
    offset = timedelta(hours=hours, minutes=minutes)
    return -offset if text[0] == "-" else offset
