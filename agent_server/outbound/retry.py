"""Delays between retries: within one call (`backoff_s`), or of a queue (`queue_backoff_s`)."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

# As in the clients of OpenAI: half a second, doubled each time, up to eight.
_FIRST_S, _LONGEST_S = 0.5, 8.0
# Of a queue: few requests to a server that is down for a night, and at most 15 minutes late once it is up.
_FIRST_LATER_S, _LONGEST_LATER_S = 5.0, 900.0
LONGEST_ASKED_S = 3600.0
"""The longest delay a server can ask for; rate limits of trackers and chats last at most an hour (GitHub's)."""
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RANDOM = random.SystemRandom()


def backoff_s(attempt: int, asked: float | None) -> float:
    """Return the seconds to wait after `attempt` (0: the first) failed: what the server `asked` for, else exponential
    with jitter.
    """
    if asked is not None:
        return asked
    return min(_LONGEST_S, _FIRST_S * 2.0 ** min(attempt, 10)) * _RANDOM.uniform(0.75, 1.25)


def queue_backoff_s(attempt: int, asked: float | None) -> float:
    """Return the seconds until a queued request is retried after `attempt` (0: the first) failed: 5 s, doubled each
    time, up to 15 minutes, with jitter; or what the server `asked` for, at most an hour, but not less than the first
    delay.
    """
    grown = min(_LONGEST_LATER_S, _FIRST_LATER_S * 2.0 ** min(attempt, 10)) * _RANDOM.uniform(0.75, 1.25)
    return grown if asked is None else max(min(asked, LONGEST_ASKED_S), min(grown, _FIRST_LATER_S))


def requested_wait_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server asks to wait, never negative; None if it does not.

    ``Retry-After`` in seconds or as a date, ``retry-after-ms``, else ``x-ratelimit-reset-*`` of what is exhausted.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        seconds = _number(headers.get(name, ""))
        if seconds is not None:
            return seconds * unit
    if (given := headers.get("retry-after")) is not None:
        return _until(given)
    resets = [
        _duration(headers.get(f"x-ratelimit-reset-{what}", ""))
        for what in ("requests", "tokens")
        if headers.get(f"x-ratelimit-remaining-{what}", "").strip() == "0"
    ]
    return max((seconds for seconds in resets if seconds is not None), default=None)


def _number(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _until(date: str) -> float | None:
    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - time.time())
    except (ValueError, TypeError, IndexError, OverflowError, OSError):
        return None


def _duration(text: str) -> float | None:
    """Return the seconds of ``1s``, ``6m0s``, ``120ms`` or a plain number."""
    parts = _PART.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text.strip():
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    return _number(text)
