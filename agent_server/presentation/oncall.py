"""Who is on call, as texts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from whystall.prompts.render import render

if TYPE_CHECKING:
    from whystall.agent_server.journal.overrides import Override
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.ticketing.oncall.on_call import OnCall, Shift
    from whystall.knowledge_base.models import Lang


def who_text(answers: Sequence[OnCall], settings: Settings, zone: ZoneInfo, lang: Lang) -> str:
    """A line for each schedule."""
    rows = [
        {
            "schedule": answer.schedule,
            "users": named(answer.users, settings),
            "why": _why(answer.why),
            "until": shown(answer.until, zone) if answer.until else None,
        }
        for answer in answers
    ]
    return render("oncall_who.txt", lang, rows=rows, zone=zone.key)


def shifts_text(schedule: str, found: Sequence[Shift], settings: Settings, zone: ZoneInfo, lang: Lang) -> str:
    """A line for each shift."""
    rows = [
        {
            "begins": shown(shift.begins, zone),
            "ends": shown(shift.ends, zone),
            "users": named(shift.users, settings),
            "why": _why(shift.why),
        }
        for shift in found
    ]
    return render("oncall_shifts.txt", lang, schedule=schedule, rows=rows, zone=zone.key)


def overrides_text(found: Sequence[Override], settings: Settings, lang: Lang) -> str:
    """A line for each override, in its schedule's time."""
    from whystall.agent_server.settings.sections.oncall import zone_info

    rows = []
    for override in found:
        schedule = settings.oncall.schedules.get(override.schedule)
        zone = zone_info(schedule.timezone if schedule else "UTC")
        rows.append(
            {
                "o": override,
                "begins": shown(override.begins, zone),
                "ends": shown(override.ends, zone),
                "only": None if override.only is None else named(override.only, settings),
                "add": named([override.add], settings) if override.add else [],
                "remove": named([override.remove], settings) if override.remove else [],
            }
        )
    return render("oncall_overrides.txt", lang, rows=rows)


def named(users: Sequence[str], settings: Settings) -> list[str]:
    """Users as people call them, with the name that the settings have."""
    people = [(user, settings.users.get(user)) for user in users]
    return [f"{person.name} ({user})" if person and person.name else user for user, person in people]


def shown(time: datetime, zone: ZoneInfo) -> str:
    """A time by the clocks of `zone`, with its offset: an hour may come twice."""
    return time.astimezone(zone).isoformat(" ", "minutes")


def _why(code: str) -> tuple[str, str]:
    """Kind and name of what decided."""
    kind, _, name = code.partition(":")
    return kind or "nothing", name
