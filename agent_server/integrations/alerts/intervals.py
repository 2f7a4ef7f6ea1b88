"""Time intervals, in Alertmanager's form (prometheus/alertmanager, docs/configuration.md, "time_interval").

A moment lies in an interval if it lies in one range of every given part. It is compared by the wall clock of the
interval's zone, so 09:00 to 17:00 stays right across changes of summer time.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from zoneinfo import ZoneInfo

WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00")
_YEARS = range(1, 10_000)


@dataclass(frozen=True)
class Span:
    """From `first` to `last`, both included."""

    first: int
    last: int

    def contains(self, value: int) -> bool:
        return self.first <= value <= self.last


@dataclass(frozen=True)
class Interval:
    """One set of times; an empty part allows everything.

    `times`: minutes of the day; `weekdays`: 0 is Sunday; `days`: of the month, negative ones from its end.
    """

    times: tuple[Span, ...] = ()
    weekdays: tuple[Span, ...] = ()
    days: tuple[Span, ...] = ()
    months: tuple[Span, ...] = ()
    years: tuple[Span, ...] = ()
    zone: tzinfo = timezone.utc

    def contains(self, moment: datetime) -> bool:
        """Return whether `moment` (aware) lies in the interval."""
        local = moment.astimezone(self.zone)
        minute = local.hour * 60 + local.minute
        length = calendar.monthrange(local.year, local.month)[1]
        return (
            _any(self.times, minute)
            and _any(self.weekdays, local.isoweekday() % 7)
            and (not self.days or any(_of_month(days, length, local.day) for days in self.days))
            and _any(self.months, local.month)
            and _any(self.years, local.year)
        )


def _any(spans: tuple[Span, ...], value: int) -> bool:
    return not spans or any(span.contains(value) for span in spans)


def _of_month(span: Span, length: int, day: int) -> bool:
    """Return whether `day` lies in `span`, cut to a month of `length` days."""
    first = span.first if span.first > 0 else length + span.first + 1
    last = span.last if span.last > 0 else length + span.last + 1
    return first <= length and max(first, 1) <= day <= min(last, length)


# --- parsers of the file's values; all raise ValueError --------------------------------------------------------------


def times(start: str, end: str) -> Span:
    """Parse ``09:00`` and ``17:00``; the end is excluded and may be ``24:00``."""
    first, last = _minutes(start), _minutes(end)
    if first >= last:
        raise ValueError("start_time lies before end_time: write two ranges, the one up to 24:00, the other from 00:00")
    return Span(first, last - 1)


def weekdays(text: str) -> Span:
    """Parse ``monday:friday`` or ``sunday``."""
    return _range(text, lambda word: _named(word, WEEKDAYS, 0, "a weekday"))


def months(text: str) -> Span:
    """Parse ``january:march``, ``1:3`` or ``december``."""
    return _range(text, lambda word: int(word) if word.isdigit() else _named(word, MONTHS, 1, "a month"), range(1, 13))


def years(text: str) -> Span:
    """Parse ``2026:2027`` or ``2026``."""
    return _range(text, _number, _YEARS)


def days(text: str) -> Span:
    """Parse ``1:5``, ``-3:-1`` (the last three) or ``15``."""
    first, last = _ends(text, _number)
    if any(day == 0 or abs(day) > 31 for day in (first, last)):
        raise ValueError(f"{text!r}: days go from 1 to 31, or from -31 to -1")
    if first < 0 < last:
        raise ValueError(f"{text!r}: where the first day counts from the end, so does the last")
    if (first if first > 0 else 28 + first) > (last if last > 0 else 28 + last):
        raise ValueError(f"{text!r}: the last day comes before the first")
    return Span(first, last)


def zone(name: str) -> tzinfo:
    """Return the zone of a tz database name such as ``Asia/Shanghai``."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # KeyError: unknown name
        raise ValueError(f"no time zone is called {name!r}; give a name such as Asia/Shanghai") from None


def _minutes(text: str) -> int:
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no time of day: write 09:30, from 00:00 to 24:00")
    return 1440 if found[1] is None else int(found[1]) * 60 + int(found[2])


def _named(word: str, names: tuple[str, ...], base: int, what: str) -> int:
    if word not in names:
        raise ValueError(f"{word!r} is not {what}: {', '.join(names)}")
    return names.index(word) + base


def _number(word: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,4}", word):
        raise ValueError(f"{word!r} is no number")
    return int(word)


def _ends(text: str, read: Callable[[str], int]) -> tuple[int, int]:
    words = text.strip().lower().split(":")
    if len(words) > 2:
        raise ValueError(f"{text!r} is neither one value nor a range such as 1:5")
    return read(words[0].strip()), read(words[-1].strip())


def _range(text: str, read: Callable[[str], int], known: range | None = None) -> Span:
    first, last = _ends(text, read)
    if known is not None and not (first in known and last in known):
        raise ValueError(f"{text!r} goes beyond {known.start}:{known.stop - 1}")
    if first > last:
        raise ValueError(f"{text!r}: its end comes before its start")
    return Span(first, last)
