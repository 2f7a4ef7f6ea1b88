"""Times of the knowledge base: RFC 3339 in UTC, which sort as text."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

# Python 3.10 parses neither ``Z`` nor fractions of other lengths than 3 or 6 digits.
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)?", re.ASCII)


def now() -> str:
    """Return the current time as RFC 3339, to the second."""
    return rfc3339(datetime.now(timezone.utc))


def rfc3339(moment: datetime) -> str:
    """Return `moment` (with a time zone) as RFC 3339, to the second."""
    return moment.astimezone(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def moment(text: str) -> datetime | None:
    """Parse RFC 3339 such as ``2026-03-01T08:15:00Z``; None if malformed. Without a zone it is UTC."""
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
    """Return the days from `text` (RFC 3339) until `at` (now), at least 0; None if malformed."""
    then = moment(text)
    if then is None:
        return None
    return max(((at or datetime.now(timezone.utc)) - then) / timedelta(days=1), 0.0)
