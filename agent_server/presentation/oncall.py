"""On-call schedules, shifts and overrides as text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from whystall.agent_server.settings.sections.oncall import zone_info
from whystall.prompts.render import render

if TYPE_CHECKING:
    from whystall.agent_server.journal.overrides import Override
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.ticketing.oncall.on_call import OnCall, Shift
    from whystall.knowledge_base.models import Lang


def who_text(answers: Sequence[OnCall], settings: Settings, zone: ZoneInfo, lang: Lang) -> str:
    rows = [
        {
            "schedule": answer.schedule,
            "users": contacts(answer.users, settings),
            "why": _why(answer.why),
            "until": local_time(answer.until, zone) if answer.until else None,
        }
        for answer in answers
    ]
    return render("oncall_who.txt", lang, rows=rows, zone=zone.key)


def shifts_text(schedule: str, found: Sequence[Shift], settings: Settings, zone: ZoneInfo, lang: Lang) -> str:
    rows = [
        {
            "begins": local_time(shift.begins, zone),
            "ends": local_time(shift.ends, zone),
            "users": user_names(shift.users, settings),
            "why": _why(shift.why),
        }
        for shift in found
    ]
    return render("oncall_shifts.txt", lang, schedule=schedule, rows=rows, zone=zone.key)


def overrides_text(found: Sequence[Override], settings: Settings, lang: Lang) -> str:
    """Return a line for each override, in the time zone of its schedule."""
    rows = []
    for override in found:
        schedule = settings.oncall.schedules.get(override.schedule)
        zone = zone_info(schedule.timezone if schedule else "UTC")
        rows.append(
            {
                "o": override,
                "begins": local_time(override.begins, zone),
                "ends": local_time(override.ends, zone),
                "only": None if override.only is None else user_names(override.only, settings),
                "add": user_names([override.add], settings) if override.add else [],
                "remove": user_names([override.remove], settings) if override.remove else [],
            }
        )
    return render("oncall_overrides.txt", lang, rows=rows)


def user_names(users: Sequence[str], settings: Settings) -> list[str]:
    """Return `users` with their names from the settings."""
    people = [(user, settings.users.get(user)) for user in users]
    return [f"{person.name} ({user})" if person and person.name else user for user, person in people]


def contacts(users: Sequence[str], settings: Settings) -> list[str]:
    """Return `users` with their names, and their email and phone where the settings have them."""
    found = []
    for user, name in zip(users, user_names(users, settings), strict=True):
        person = settings.users.get(user)
        ways = [way for way in (person.email, person.phone) if way] if person is not None else []
        found.append(", ".join([name, *ways]))
    return found


def local_time(time: datetime, zone: ZoneInfo) -> str:
    """Return `time` in `zone`, with its offset: an hour may occur twice."""
    return time.astimezone(zone).isoformat(" ", "minutes")


def _why(code: str) -> tuple[str, str]:
    """Return kind and name of the rule with this code."""
    kind, _, name = code.partition(":")
    return kind or "nothing", name
