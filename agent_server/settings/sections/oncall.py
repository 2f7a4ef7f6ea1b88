"""The section ``[oncall]``. Modelled after GoAlert (rotations, schedules of rules, overrides, temporary schedules,
escalation steps; https://goalert.me/docs), with the layers, groups and priorities of Grafana OnCall.

Times without a zone are local times in the zone of their schedule or rotation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, time, timedelta
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from whystall.agent_server.settings.names import Name
from whystall.agent_server.settings.section import Section
from whystall.agent_server.settings.wall_clock import UTC, instant

Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WEEKDAYS: tuple[Weekday, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
FIRST_YEAR, LAST_YEAR = 1970, 2200
"""Schedules are computed between these years; later rules of time zones are unknown."""

_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)|24:00", re.ASCII)
_SPAN = re.compile(r"(\d{1,6})\s*(s|m|h|d)", re.ASCII)
_SIZES = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_MAX_MINUTES = 24 * 60


@cache
def zone_info(name: str) -> ZoneInfo:
    """Return the time zone `name`; raise ValueError if it is unknown."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise ValueError("no such time zone; give a name such as Asia/Shanghai") from None


def _zone(name: str) -> str:
    zone_info(name)
    return name


def _in_range(moment: datetime) -> datetime:
    if not FIRST_YEAR <= moment.year < LAST_YEAR:
        raise ValueError(f"give a time between {FIRST_YEAR} and {LAST_YEAR}")
    return moment


def _minutes(text: Any) -> Any:
    """Return ``HH:MM`` in minutes since midnight."""
    if isinstance(text, int) and not isinstance(text, bool) and 0 <= text <= _MAX_MINUTES:
        return text
    if isinstance(text, time) and text.tzinfo is None and not text.second and not text.microsecond:
        return text.hour * 60 + text.minute  # as TOML writes it: 09:00:00
    found = _CLOCK.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError("write a time of the day as HH:MM, from 00:00 to 24:00")
    return _MAX_MINUTES if found[1] is None else int(found[1]) * 60 + int(found[2])


def _seconds(text: Any) -> Any:
    """Return the time span ``90s``, ``15m``, ``2h``, ``1d`` in seconds; a number is seconds."""
    if isinstance(text, timedelta):
        return text
    found = _SPAN.fullmatch(text.strip()) if isinstance(text, str) else None
    if found:
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    if isinstance(text, (int, float)) and not isinstance(text, bool) and 0 <= text <= 1e7:
        return timedelta(seconds=text)
    raise ValueError("write a time span as 90s, 15m, 2h or 1d")


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _span(span: timedelta) -> str:
    seconds = int(span.total_seconds())
    size, unit = next((size, unit) for size, unit in _SIZES if seconds % size == 0)
    return f"{seconds // size}{unit}"


Zone = Annotated[str, Field(max_length=100), AfterValidator(_zone)]
Clock = Annotated[int, BeforeValidator(_minutes), PlainSerializer(_clock, return_type=str, when_used="json")]
"""Minutes since midnight, written ``HH:MM``."""
Time = Annotated[datetime, AfterValidator(_in_range)]
Span = Annotated[
    timedelta,
    BeforeValidator(_seconds),
    Field(ge=timedelta(minutes=1), le=timedelta(days=30)),
    PlainSerializer(_span, return_type=str, when_used="json"),
]
Names = Annotated[list[Name], Field(max_length=1000)]
Accounts = Annotated[dict[Name, Annotated[str, Field(max_length=200)]], Field(max_length=100)]


class Person(Section):
    """A user (``[users.NAME]``). `name`: for display; `email`, `phone`: shown where a person is on call. `timezone`: of
    times in answers to this person, instead of the chat's. `chats`: the id in each chat (``{ops = "U024BE7LH"}``);
    `trackers`: the account in each tracker (``{gitlab = "wang.wei"}``).
    """

    name: Annotated[str, Field(max_length=100)] = ""
    email: Annotated[str, Field(max_length=254)] = ""
    phone: Annotated[str, Field(max_length=40)] = ""
    timezone: Zone | None = None
    chats: Accounts = Field(default_factory=dict)
    trackers: Accounts = Field(default_factory=dict)


class Rotation(Section):
    """Members who take turns. A turn lasts `length` hours, days, weeks or months; the first one begins at `start`, the
    next ones at the same local time in `timezone`, on the last day of a month without that day. `members`: in order;
    each is a user, a group, or a list of users on call together. `weekdays`, for daily rotations: only these days are
    turns, and counted. `until`: the end of the rotation.
    """

    every: Literal["hourly", "daily", "weekly", "monthly"]
    length: Annotated[int, Field(ge=1, le=1000)] = 1
    start: Time
    until: Time | None = None
    timezone: Zone | None = None
    members: Annotated[list[Name | Annotated[list[Name], Field(min_length=1, max_length=100)]], Field(max_length=1000)]
    weekdays: Annotated[list[Weekday], Field(max_length=7)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _valid(self) -> Rotation:
        if not self.members:
            raise ValueError("the rotation has no members")
        if self.weekdays and self.every != "daily":
            raise ValueError("only daily rotations have weekdays; give them to the layer")
        _in_order(self.start, self.until)
        return self


class Layer(Section):
    """When a rotation, or a fixed list of `users` (or groups), is on call. `weekdays`: days on which its time begins
    (none: all). `from` and `to`: local times; a `to` not after `from` is on the next day. `priority`: of layers that
    cover the same time, all with the highest one count.
    """

    name: Name | None = None
    rotation: Name | None = None
    users: Names = Field(default_factory=list)
    weekdays: Annotated[list[Weekday], Field(max_length=7)] = Field(default_factory=list)
    begins: Annotated[Clock, Field(alias="from")] = 0
    ends: Annotated[Clock, Field(alias="to")] = _MAX_MINUTES
    starts: Time | None = None
    until: Time | None = None
    priority: Annotated[int, Field(ge=0, le=100)] = 0

    @model_validator(mode="after")
    def _has_target(self) -> Layer:
        if (self.rotation is None) == (not self.users):
            raise ValueError("give one of rotation and users")
        if self.begins == _MAX_MINUTES:
            raise ValueError("a time that begins at 24:00 begins at 00:00 of the next day")
        _in_order(self.starts, self.until)
        return self


class TemporaryShift(Section):
    """A shift of a temporary schedule."""

    users: Annotated[list[Name], Field(min_length=1, max_length=100)]
    begins: Annotated[Time, Field(alias="from")]
    ends: Annotated[Time, Field(alias="to")]

    @model_validator(mode="after")
    def _ordered(self) -> TemporaryShift:
        _in_order(self.begins, self.ends)
        return self


class Temporary(Section):
    """A schedule for a limited time, which replaces layers and overrides."""

    name: Name
    begins: Annotated[Time, Field(alias="from")]
    ends: Annotated[Time, Field(alias="to")]
    shifts: Annotated[list[TemporaryShift], Field(max_length=1000)] = Field(default_factory=list)


class Step(Section):
    """Who is notified if no one has acknowledged a ticket `after` the previous step: users (or groups), and those on
    call in `schedules`.
    """

    after: Span
    users: Names = Field(default_factory=list)
    schedules: Annotated[list[Name], Field(max_length=20)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _has_target(self) -> Step:
        if not self.users and not self.schedules:
            raise ValueError("give users or schedules")
        return self


class Schedule(Section):
    """Layers, `temporary` schedules over them, and `escalation` steps, repeated `repeat` times. `fallback`: who is
    notified if no one is on call.
    """

    timezone: Zone
    layers: Annotated[list[Layer], Field(max_length=100)] = Field(default_factory=list)
    temporary: Annotated[list[Temporary], Field(max_length=100)] = Field(default_factory=list)
    escalation: Annotated[list[Step], Field(max_length=20)] = Field(default_factory=list)
    repeat: Annotated[int, Field(ge=0, le=5)] = 0
    fallback: Names = Field(default_factory=list)

    @model_validator(mode="after")
    def _no_overlap(self) -> Schedule:
        zone = zone_info(self.timezone)
        spans = sorted((moment_of(t.begins, zone), moment_of(t.ends, zone), t.name) for t in self.temporary)
        for begins, ends, name in spans:
            if begins >= ends:
                raise ValueError(f"temporary {name}: it ends before it begins")
        for (_, ends, one), (begins, _, other) in pairwise(spans):
            if begins < ends:
                raise ValueError(f"temporary {one} and {other} overlap")
        if len({t.name for t in self.temporary}) < len(self.temporary):
            raise ValueError("two temporary schedules have the same name")
        return self


class Rule(Section):
    """Matches tickets to `schedule`, or directly to `users` (or groups), without escalation. All given conditions must
    hold; `labels`: shell patterns (``team = "infra-*"``).
    """

    id: Name
    origins: Annotated[list[Literal["diagnosis", "alert", "work_order", "person"]], Field(max_length=4)] = Field(
        default_factory=list
    )
    categories: Annotated[list[str], Field(max_length=100)] = Field(default_factory=list)
    components: Annotated[list[str], Field(max_length=1000)] = Field(default_factory=list)
    severities: Annotated[list[str], Field(max_length=10)] = Field(default_factory=list)
    labels: Annotated[dict[str, Annotated[str, Field(max_length=300)]], Field(max_length=50)] = Field(
        default_factory=dict
    )
    schedule: Name | None = None
    users: Names = Field(default_factory=list)

    @model_validator(mode="after")
    def _has_target(self) -> Rule:
        if (self.schedule is None) == (not self.users):
            raise ValueError("give one of schedule and users")
        return self


class OncallSettings(Section):
    """Schedules and rules. A ticket goes to the schedule of its receiver, else of the first of `rules` that matches,
    else of its category in `categories`, else to `schedule`. `groups`: names for several users. `timezone`: of times
    written without one.
    """

    schedule: Name | None = None
    timezone: Zone | None = None
    groups: Annotated[
        dict[Name, Annotated[list[Name], Field(min_length=1, max_length=1000)]], Field(max_length=1000)
    ] = Field(default_factory=dict)
    rotations: Annotated[dict[Name, Rotation], Field(max_length=1000)] = Field(default_factory=dict)
    schedules: Annotated[dict[Name, Schedule], Field(max_length=1000)] = Field(default_factory=dict)
    categories: Annotated[dict[str, Name], Field(max_length=100)] = Field(default_factory=dict)
    rules: Annotated[list[Rule], Field(max_length=1000)] = Field(default_factory=list)
    fallback: Names = Field(default_factory=list)

    @model_validator(mode="after")
    def _known_names(self) -> OncallSettings:
        for where, kind, name in self._references():
            there = self.schedules if kind == "schedule" else self.rotations
            if name not in there:
                known = ", ".join(sorted(there)[:10]) or "there is none"
                raise ValueError(f"{where}: no {kind} is called {name!r} ({known})")
        for group, members in self.groups.items():
            inner = next((member for member in members if member in self.groups), None)
            if inner is not None:
                raise ValueError(f"groups.{group}: {inner!r} is a group itself; a group holds users")
        ids = [rule.id for rule in self.rules]
        twice = next((id for id in ids if ids.count(id) > 1), None)
        if twice is not None:
            raise ValueError(f"two rules are called {twice!r}")
        return self

    def _references(self) -> Iterator[tuple[str, Literal["schedule", "rotation"], str]]:
        if self.schedule is not None:
            yield "schedule", "schedule", self.schedule
        for category, name in self.categories.items():
            yield f"categories.{category}", "schedule", name
        for rule in self.rules:
            if rule.schedule is not None:
                yield f"rules, {rule.id}", "schedule", rule.schedule
        for name, schedule in self.schedules.items():
            for n, layer in enumerate(schedule.layers, 1):
                if layer.rotation is not None:
                    yield f"schedules.{name}.layers no. {n}", "rotation", layer.rotation
            for n, step in enumerate(schedule.escalation, 1):
                for other in step.schedules:
                    yield f"schedules.{name}.escalation no. {n}", "schedule", other

    def people(self) -> Iterator[tuple[str, str]]:
        """Yield (where, user) for every user mentioned; groups are expanded."""
        for group, members in self.groups.items():
            yield from ((f"groups.{group}", member) for member in members)
        for name, rotation in self.rotations.items():
            for member in rotation.members:
                yield from self._users_in(f"rotations.{name}.members", [member] if isinstance(member, str) else member)
        for name, schedule in self.schedules.items():
            for n, layer in enumerate(schedule.layers, 1):
                yield from self._users_in(f"schedules.{name}.layers no. {n}", layer.users)
            for temporary in schedule.temporary:
                for shift in temporary.shifts:
                    yield from self._users_in(f"schedules.{name}.temporary {temporary.name}", shift.users)
            for n, step in enumerate(schedule.escalation, 1):
                yield from self._users_in(f"schedules.{name}.escalation no. {n}", step.users)
            yield from self._users_in(f"schedules.{name}.fallback", schedule.fallback)
        for rule in self.rules:
            yield from self._users_in(f"rules, {rule.id}", rule.users)
        yield from self._users_in("fallback", self.fallback)

    def _users_in(self, where: str, names: list[str]) -> Iterator[tuple[str, str]]:
        return ((where, name) for name in names if name not in self.groups)

    def expanded(self, names: list[str]) -> list[str]:
        """Return `names` with groups replaced by their users, in order, without duplicates."""
        return list(dict.fromkeys(user for name in names for user in self.groups.get(name, [name])))


def _in_order(begins: datetime | None, ends: datetime | None) -> None:
    """Refuse an end before the begin, as far as that is known without a zone."""
    if begins and ends and (begins.tzinfo is None) == (ends.tzinfo is None) and begins >= ends:
        raise ValueError("it ends before it begins")


def moment_of(when: datetime, zone: ZoneInfo) -> datetime:
    """Return the instant of a time of the settings; local in `zone` unless it has a zone."""
    return instant(when, zone) if when.tzinfo is None else when.astimezone(UTC)
