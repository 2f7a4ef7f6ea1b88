"""Compute when a layer of a schedule is on call, from its weekdays and times of the day."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from whystall.agent_server.settings.sections.oncall import WEEKDAYS, Layer, moment_of
from whystall.agent_server.settings.wall_clock import instant, wall

_DAY_MINUTES = 24 * 60
_BEFORE, _AFTER = 2, 9  # days around now in which the current and the next window begin


class Windows:
    """The windows of `layer` in local time of `zone`; one in hours skipped by daylight saving is empty."""

    def __init__(self, layer: Layer, zone: ZoneInfo) -> None:
        self._zone = zone
        self._begins = timedelta(minutes=layer.begins)
        ends = layer.ends if layer.ends > layer.begins else layer.ends + _DAY_MINUTES
        self._ends = timedelta(minutes=ends)
        self._days = {WEEKDAYS.index(day) for day in layer.weekdays or WEEKDAYS}
        self._always = len(self._days) == 7 and ends - layer.begins == _DAY_MINUTES
        self._from = moment_of(layer.starts, zone) if layer.starts else None
        self._until = moment_of(layer.until, zone) if layer.until else None

    def covers(self, moment: datetime) -> bool:
        """Return whether `moment` is in a window."""
        if (self._from and moment < self._from) or (self._until and moment >= self._until):
            return False
        return self._always or any(begins <= moment < ends for begins, ends in self._around(moment))

    def next_change(self, moment: datetime) -> datetime | None:
        """Return the first time after `moment` at which the result of `covers` may change; None: never."""
        times = [time for time in (self._from, self._until) if time]
        if not self._always:
            times += [time for window in self._around(moment) for time in window]
        return min((time for time in times if time > moment), default=None)

    def _around(self, moment: datetime) -> Iterator[tuple[datetime, datetime]]:
        today = datetime.combine(wall(moment, self._zone), time())
        for n in range(-_BEFORE, _AFTER):
            day = today + timedelta(days=n)
            if day.weekday() in self._days:
                yield instant(day + self._begins, self._zone), instant(day + self._ends, self._zone)
