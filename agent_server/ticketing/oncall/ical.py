"""A schedule as a calendar (RFC 5545) that calendar programs subscribe to.

Each duty is a single event in UTC instead of a recurrence: programs with other time zone rules would show another user.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from icalendar import Calendar, Event, vCalAddress, vText

from whystall.agent_server.journal.overrides import Override
from whystall.agent_server.settings.wall_clock import UTC
from whystall.agent_server.ticketing.oncall.on_call import shifts
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from whystall.agent_server.settings.model import Settings

PAST = timedelta(days=31)
"""How far a calendar reaches into the past."""
_REFRESH = timedelta(hours=1)


@dataclass(frozen=True)
class Duty:
    """An uninterrupted time that one user is on call, alone or with others."""

    user: str
    begins: datetime
    ends: datetime
    why: str


def duties(
    settings: Settings, overrides: Sequence[Override], schedule: str, begins: datetime, ends: datetime
) -> list[Duty]:
    """Return the duties between `begins` and `ends` in order; fallback users have none. Raises as `on_call` does."""
    ended: list[Duty] = []
    current: dict[str, Duty] = {}
    for shift in shifts(settings.oncall, overrides, schedule, begins, ends):
        users = () if shift.why == "fallback" else shift.users
        for user in [user for user in current if user not in users]:
            ended.append(current.pop(user))
        for user in users:
            before = current.get(user)
            why = before.why if before else shift.why
            current[user] = Duty(user, before.begins if before else shift.begins, shift.ends, why)
    ended += current.values()
    return sorted(ended, key=lambda duty: (duty.begins, duty.user))


def calendar(settings: Settings, overrides: Sequence[Override], schedule: str, now: datetime, days: int = 92) -> bytes:
    """Return `schedule` from `PAST` before `now` (with a time zone) until `days` after it, as ``text/calendar``.

    Raises `ToolError` as `on_call` does.
    """
    now = now.astimezone(UTC).replace(microsecond=0)
    begins = now - PAST
    events = duties(settings, overrides, schedule, begins, now + timedelta(days=days))
    found = Calendar()
    found.add("prodid", "-//whystall//on call//EN")
    found.add("version", "2.0")
    found.add("method", "PUBLISH")
    found.add("x-wr-calname", f"on call: {schedule}")
    found.add("x-wr-timezone", settings.oncall.schedules[schedule].timezone)
    found.add("refresh-interval", _REFRESH, parameters={"value": "DURATION"})
    found.add("x-published-ttl", "PT1H")
    for duty in events:
        person = settings.users.get(duty.user)
        name = clean(person.name if person and person.name else duty.user, 200)
        event = Event()
        # A duty keeps its uid from one fetch to the next, even if its end changes.
        since = "underway" if duty.begins == begins else duty.begins.isoformat()
        identity = hashlib.sha256(f"{schedule}\0{duty.user}\0{since}".encode()).hexdigest()[:32]
        event.add("uid", f"{identity}@whystall")
        event.add("dtstamp", now)
        event.add("dtstart", duty.begins)
        event.add("dtend", duty.ends)
        event.add("summary", name)
        event.add("description", f"{schedule}: {duty.why}")
        event.add("categories", [schedule])
        event.add("transp", "TRANSPARENT")
        event.add("x-whystall-user", duty.user)
        if person and person.email:
            attendee = vCalAddress(f"mailto:{clean(person.email, 254)}")
            attendee.params["cn"] = vText(name)
            event.add("attendee", attendee, encode=False)
        found.add_component(event)
    raw: bytes = found.to_ical()
    return raw
