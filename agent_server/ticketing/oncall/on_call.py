"""Compute who is on call from the settings, the overrides and a time. Pure.

Precedence: a temporary schedule (of the overrides, the latest first, then of the settings); the layers of the highest
priority with users, changed by the other overrides in the order they were made; the fallback. The past is computed from
the current settings too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from whystall.agent_server.journal.overrides import Override
from whystall.agent_server.settings.sections.oncall import (
    FIRST_YEAR,
    LAST_YEAR,
    Layer,
    OncallSettings,
    Schedule,
    Temporary,
    moment_of,
    zone_info,
)
from whystall.agent_server.settings.wall_clock import UTC
from whystall.agent_server.ticketing.oncall.rotation import Turns
from whystall.agent_server.ticketing.oncall.windows import Windows
from whystall.tools.contract.errors import ErrorCode, ToolError

_MAX_CHANGES = 64  # changes that are checked for the end of an answer
_LAST = datetime(LAST_YEAR, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class OnCall:
    """The `users` on call in `schedule` at `at`; may be empty.

    `why`: the code of what decided: ``rotation:NAME``, ``layer:NAME`` (of fixed users), ``override:ID``,
    ``temporary:ID``, ``fallback``, or empty without users. `because`: all codes that contributed. `until`: when the
    answer changes; None: not for a long time.
    """

    schedule: str
    at: datetime
    users: tuple[str, ...]
    why: str
    because: tuple[str, ...]
    until: datetime | None


@dataclass(frozen=True)
class Shift:
    """The same people on call from `begins` until `ends`."""

    begins: datetime
    ends: datetime
    users: tuple[str, ...]
    why: str


def on_call(settings: OncallSettings, overrides: Sequence[Override], schedule: str, at: datetime) -> OnCall:
    """Return who is on call in `schedule` at `at` (with a time zone).

    Raises `ToolError`: not_found (no such schedule), bad_argument (year out of range).
    """
    at = _in_range(at)
    roster = Roster(settings, overrides, schedule)
    users, because = roster.at(at)
    why, until = because[-1] if because else "", at
    for _ in range(_MAX_CHANGES):
        change = roster.next_change(until)
        if change is None or roster.at(change) != (users, because):
            return OnCall(schedule, at, users, why, because, change)
        until = change
    return OnCall(schedule, at, users, why, because, None)


def shifts(
    settings: OncallSettings, overrides: Sequence[Override], schedule: str, begins: datetime, ends: datetime
) -> Iterator[Shift]:
    """Yield consecutive, different shifts from `begins` to `ends`, without gaps. Raises as `on_call` does."""
    begins, ends = _in_range(begins), _in_range(ends)
    roster = Roster(settings, overrides, schedule)
    current: Shift | None = None
    while begins < ends:
        users, because = roster.at(begins)
        change = min(roster.next_change(begins) or ends, ends)
        why = because[-1] if because else ""
        if current and (current.users, current.why) == (users, why):
            current = Shift(current.begins, change, users, why)
        else:
            if current:
                yield current
            current = Shift(begins, change, users, why)
        begins = change
    if current:
        yield current


class Roster:
    """Computes who is on call in the schedule `name`."""

    def __init__(self, settings: OncallSettings, overrides: Sequence[Override], name: str) -> None:
        schedule = settings.schedules.get(name)
        if schedule is None:
            known = ", ".join(sorted(settings.schedules)[:10])
            remedy = f"one of: {known}" if known else "the settings have none: write [oncall.schedules.NAME]"
            raise ToolError(ErrorCode.NOT_FOUND, f"no schedule is called {name!r}", remedy)
        self._settings = settings
        self._schedule = schedule
        self._zone = zone_info(schedule.timezone)
        self._layers = [self._layer(layer, n) for n, layer in enumerate(schedule.layers, 1)]
        own = sorted((o for o in overrides if o.schedule == name), key=lambda o: o.id)
        self._overrides = [o for o in own if o.only is None]
        self._replaced = [o for o in reversed(own) if o.only is not None]
        self._temporary = [_Temporary(temporary, schedule) for temporary in schedule.temporary]

    def at(self, moment: datetime) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the users on call at `moment`, and the codes of what contributed; the last one decided."""
        users, because = self._planned(moment)
        if not users:
            removed = self._removed(moment)
            fallback = self._settings.expanded(self._schedule.fallback or self._settings.fallback)
            if fallback := [user for user in fallback if user not in removed]:
                return tuple(fallback), (*because, "fallback")
        return tuple(users), because

    def next_change(self, moment: datetime) -> datetime | None:
        """Return the first time after `moment` at which the users may change; None: not before `LAST_YEAR`."""
        times = [change for layer in self._layers for change in layer.changes(moment)]
        times += [time for o in (*self._overrides, *self._replaced) for time in (o.begins, o.ends)]
        times += [time for temporary in self._temporary for time in temporary.times]
        return min((time for time in times if moment < time < _LAST), default=None)

    def _planned(self, moment: datetime) -> tuple[list[str], tuple[str, ...]]:
        for override in self._replaced:
            if override.begins <= moment < override.ends:
                return self._settings.expanded(list(override.only or ())), (override.code,)
        for temporary in self._temporary:
            if temporary.begins <= moment < temporary.ends:
                return self._settings.expanded(temporary.on(moment)), (f"temporary:{temporary.name}",)
        users, because = self._layered(moment)
        for override in self._overrides:
            if override.begins <= moment < override.ends:
                changed = self._overridden(users, override)
                if changed != users:
                    users, because = changed, (*because, override.code)
        return users, because

    def _layered(self, moment: datetime) -> tuple[list[str], tuple[str, ...]]:
        """Return the users of all layers of the highest priority that has users."""
        found = [(layer.priority, names, layer.code) for layer in self._layers if (names := layer.on(moment))]
        highest = max((priority for priority, _, _ in found), default=0)
        chosen = [(names, code) for priority, names, code in found if priority == highest]
        users = self._settings.expanded([name for names, _ in chosen for name in names])
        return users, tuple(code for _, code in reversed(chosen))  # the first one decides

    def _overridden(self, users: list[str], override: Override) -> list[str]:
        adds = self._settings.expanded([override.add]) if override.add else []
        if not override.remove:
            return list(dict.fromkeys([*users, *adds]))
        leaves = set(self._settings.expanded([override.remove]))
        place = next((n for n, user in enumerate(users) if user in leaves), None)
        if place is None:
            return users
        before, after = users[:place], [user for user in users[place:] if user not in leaves]
        return list(dict.fromkeys([*before, *adds, *after]))

    def _removed(self, moment: datetime) -> set[str]:
        """Return the users removed by overrides, who are no fallback either."""
        removed: set[str] = set()
        for override in self._overrides:
            if override.begins <= moment < override.ends:
                removed |= set(self._settings.expanded([override.remove])) if override.remove else set()
                removed -= set(self._settings.expanded([override.add])) if override.add else set()
        return removed

    def _layer(self, layer: Layer, n: int) -> _Layer:
        windows = Windows(layer, self._zone)
        if layer.rotation is None:
            code = f"layer:{layer.name or n}"
            return _Layer(windows, None, tuple(layer.users), layer.priority, code)
        rotation = self._settings.rotations[layer.rotation]
        turns = Turns(rotation, zone_info(rotation.timezone) if rotation.timezone else self._zone)
        return _Layer(windows, turns, (), layer.priority, f"rotation:{layer.rotation}")


@dataclass(frozen=True)
class _Layer:
    windows: Windows
    turns: Turns | None
    users: tuple[str, ...]
    priority: int
    code: str

    def on(self, moment: datetime) -> tuple[str, ...]:
        if not self.windows.covers(moment):
            return ()
        if self.turns is None:
            return self.users
        turn = self.turns.at(moment)
        return turn.names if turn else ()

    def changes(self, moment: datetime) -> Iterator[datetime]:
        for change in (self.windows.next_change(moment), self.turns.next_change(moment) if self.turns else None):
            if change is not None:
                yield change


class _Temporary:
    def __init__(self, temporary: Temporary, schedule: Schedule) -> None:
        zone = zone_info(schedule.timezone)
        self.name = temporary.name
        self.begins, self.ends = moment_of(temporary.begins, zone), moment_of(temporary.ends, zone)
        self._shifts = [
            (moment_of(shift.begins, zone), moment_of(shift.ends, zone), shift.users) for shift in temporary.shifts
        ]
        self.times = [self.begins, self.ends, *(time for begins, ends, _ in self._shifts for time in (begins, ends))]

    def on(self, moment: datetime) -> list[str]:
        return [user for begins, ends, users in self._shifts if begins <= moment < ends for user in users]


def _in_range(at: datetime) -> datetime:
    if at.tzinfo is None:
        raise ValueError("the time needs a time zone")
    if not FIRST_YEAR < at.year < LAST_YEAR:
        message = f"who is on call is not known for the year {at.year}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"give a time between {FIRST_YEAR + 1} and {LAST_YEAR - 1}")
    return at.astimezone(UTC)
