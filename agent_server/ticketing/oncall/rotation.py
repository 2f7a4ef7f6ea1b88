"""Compute whose turn it is in a rotation: pure arithmetic on local time, in constant time."""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from whystall.agent_server.settings.sections.oncall import WEEKDAYS, Rotation, moment_of
from whystall.agent_server.settings.wall_clock import exists, instant, wall

_DAY = timedelta(days=1)
_STEPS = {"hourly": timedelta(hours=1), "daily": _DAY, "weekly": timedelta(days=7)}


@dataclass(frozen=True)
class Turn:
    """Turn `number` (from 0) of a rotation, from `begins` until `ends` (UTC); `names` of users and groups."""

    number: int
    begins: datetime
    ends: datetime
    names: tuple[str, ...]


class Turns:
    """The turns of `rotation` in local time of `zone`.

    Turn n begins n lengths after the start, in local time. A local time skipped by daylight saving is later (RFC 5545);
    a turn without any time left is skipped.
    """

    def __init__(self, rotation: Rotation, zone: ZoneInfo) -> None:
        self._rotation = rotation
        self._zone = zone
        self._start = wall(moment_of(rotation.start, zone), zone)
        if rotation.start.tzinfo is None:
            self._start = rotation.start.replace(fold=0)
        self._until = moment_of(rotation.until, zone) if rotation.until else None
        first = self._start.weekday()
        days = {WEEKDAYS.index(day) for day in rotation.weekdays}
        self._constant = not days and all(member == rotation.members[0] for member in rotation.members)
        self._offsets = [n for n in range(7) if (first + n) % 7 in days]  # days of the first week with a turn

    def at(self, moment: datetime) -> Turn | None:
        """Return the turn at `moment`; None before the first, after the last, and on days without a turn."""
        n = self._slot(moment)
        if n is None or (self._until is not None and moment >= self._until):
            return None
        begins, ends = instant(self._begins(n), self._zone), self._end(n)
        if moment >= ends:
            return None
        members = self._rotation.members
        number = n // self._rotation.length if self._offsets else n
        member = members[number % len(members)]
        return Turn(
            number=number,
            begins=begins,
            ends=min(ends, self._until) if self._until else ends,
            names=(member,) if isinstance(member, str) else tuple(member),
        )

    def next_change(self, moment: datetime) -> datetime | None:
        """Return the first time after `moment` at which the result of `at` may change; None: never."""
        if self._until is not None and moment >= self._until:
            return None
        n = self._slot(moment)
        if n is not None and self._constant:
            return self._until
        if n is None:
            change = instant(self._begins(0), self._zone)
        else:
            change = self._end(n)
            if change <= moment:
                change = instant(self._begins(n + 1), self._zone)
        return min(change, self._until) if self._until else change

    def _slot(self, moment: datetime) -> int | None:
        """Return the last turn (with `weekdays`: the last day) that has begun at `moment`."""
        # Local time never jumps by more than a day (Pacific/Apia skipped one, in 2011).
        n = self._estimate(wall(moment, self._zone) + _DAY)
        while n >= 0 and instant(self._begins(n), self._zone) > moment:
            n -= 1
        return None if n < 0 else n

    def _estimate(self, time: datetime) -> int:
        """Return the last turn that begins at or before the local `time`; never too small."""
        if self._offsets:
            weeks, rest = divmod((time.date() - self._start.date()).days, 7)
            return weeks * len(self._offsets) + sum(offset <= rest for offset in self._offsets) - 1
        if self._rotation.every == "monthly":
            months = (time.year - self._start.year) * 12 + time.month - self._start.month
            return months // self._rotation.length
        return (time - self._start) // (_STEPS[self._rotation.every] * self._rotation.length)

    def _begins(self, n: int) -> datetime:
        """Return the local time at which turn `n` begins."""
        if self._offsets:
            weeks, rest = divmod(n, len(self._offsets))
            return self._start + timedelta(days=7 * weeks + self._offsets[rest])
        n *= self._rotation.length
        if self._rotation.every != "monthly":
            return self._start + n * _STEPS[self._rotation.every]
        years, month = divmod(self._start.month - 1 + n, 12)
        year = self._start.year + years
        day = min(self._start.day, monthrange(year, month + 1)[1])
        return self._start.replace(year=year, month=month + 1, day=day)

    def _end(self, n: int) -> datetime:
        """Return when turn `n` ends: when the next one begins; with `weekdays`, a day later."""
        if self._offsets:
            return instant(self._begins(n) + _DAY, self._zone)
        n += 1
        time = self._begins(n)
        ends = instant(time, self._zone)
        # A turn at a skipped local time begins late: the next one may begin earlier.
        while not exists(time, self._zone) and self._begins(n + 1) < time + _DAY:
            n += 1
            ends = min(ends, instant(self._begins(n), self._zone))
        return ends
