"""Points in time as the knowledge base keeps them: RFC 3339 in UTC, which sort as text."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

# Python 3.10 reads neither ``Z`` nor a fraction of any other length than 3 or 6 digits.
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)?", re.ASCII)


def now() -> str:
    """The time now, to the second."""
    return rfc3339(datetime.now(timezone.utc))


def rfc3339(moment: datetime) -> str:
    """`moment` (with a time zone) as text, to the second."""
    return moment.astimezone(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def moment(text: str) -> datetime | None:
    """The time that `text` tells, None where it tells none; without a zone it is taken as UTC."""
    found = _STAMP.fullmatch(text.strip())
    if found is None:
        return None
    day, clock, fraction, zone = found.groups()
    zone = "+00:00" if zone in (None, "Z", "z") else zone
    try:
        return datetime.fromisoformat(f"{day}T{clock}.{(fraction or '0')[:6]:0<6}{zone}").astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


def age_days(text: str, at: datetime | None = None) -> float | None:
    """Days from the time `text` tells until `at` (now), at least 0; None where it tells none."""
    then = moment(text)
    if then is None:
        return None
    return max(((at or datetime.now(timezone.utc)) - then) / timedelta(days=1), 0.0)
