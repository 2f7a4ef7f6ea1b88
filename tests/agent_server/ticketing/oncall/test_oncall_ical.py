"""A schedule as a calendar: read back by a program for calendars, it says at any moment what `who` says."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from icalendar import Calendar

from whystall.agent_server.journal.overrides import Override
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.ticketing.oncall.ical import PAST, calendar
from whystall.agent_server.ticketing.oncall.on_call import on_call
from whystall.tools.contract.errors import ToolError

pytestmark = pytest.mark.thorough

NOW = datetime(2026, 3, 20, 12, 34, 56, tzinfo=timezone.utc)
DAYS = 60
HOSTILE = 'Ev,a; "Q"\\ \r\nSUMMARY:nobody\x1b[31m' + "王" * 60


def settings(zone: str = "Europe/Berlin") -> Settings:
    return Settings.model_validate(
        {
            "users": {"eve": {"name": HOSTILE, "email": "eve@example.com"}, "bo": {"name": "Bo"}},
            "oncall": {
                "groups": {"pair": ["cy", "dan"]},
                "rotations": {
                    "week": {"every": "weekly", "start": "2025-06-02T09:00", "members": ["eve", "bo", "pair"]},
                    "half": {"every": "hourly", "length": 12, "start": "2025-06-02T02:30", "members": ["bo", "fay"]},
                    "monthly": {"every": "monthly", "start": "2025-01-31T02:30", "members": ["gil", "hal"]},
                },
                "schedules": {
                    "s": {
                        "timezone": zone,
                        "fallback": ["zoe"],
                        "layers": [
                            {"rotation": "week", "weekdays": ["mon", "tue", "wed", "thu"], "priority": 1},
                            {"rotation": "half", "from": "18:00", "to": "03:00"},
                            {"rotation": "monthly", "weekdays": ["sun"], "priority": 1},
                        ],
                        "temporary": [
                            {
                                "name": "feast",
                                "from": "2026-04-10T00:00",
                                "to": "2026-04-12T00:00",
                                "shifts": [{"users": ["bo"], "from": "2026-04-10T00:00", "to": "2026-04-11T00:00"}],
                            }
                        ],
                    }
                },
            },
        }
    )


def exceptions() -> list[Override]:
    def one(id: int, day: int, hours: float, **more: Any) -> Override:
        begins = NOW + timedelta(days=day)
        return Override(id=id, schedule="s", begins=begins, ends=begins + timedelta(hours=hours), **more)

    return [
        one(1, 1, 30, add="ivy"),
        one(2, 3, 200, remove="eve", add="joe"),
        one(3, 30, 40, remove="pair"),
        one(4, 33, 5, only=("bo", "kim")),
        one(5, 34, 7, only=()),
    ]


def events(raw: bytes) -> list[Any]:
    return list(Calendar.from_ical(raw).walk("VEVENT"))


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Asia/Shanghai", "Australia/Lord_Howe"])
def test_read_back_it_says_what_who_says(zone: str) -> None:
    configured, overrides = settings(zone), exceptions()
    spans = [
        (event.decoded("dtstart"), event.decoded("dtend"), str(event["x-whystall-user"]))
        for event in events(calendar(configured, overrides, "s", NOW, DAYS))
    ]
    chance = random.Random(zone)
    begins, span = NOW - PAST, PAST + timedelta(days=DAYS)
    edges = [time for one in spans for time in one[:2]]
    moments = [begins + span * chance.random() for _ in range(300)]
    moments += [edge + timedelta(seconds=s) for edge in chance.sample(edges, 40) for s in (-1, 0, 1)]
    stood_in = 0
    for at in moments:
        if not begins <= at < begins + span:
            continue
        answer = on_call(configured.oncall, overrides, "s", at)
        stood_in += answer.why == "fallback"
        on_duty = set() if answer.why == "fallback" else set(answer.users)
        assert {user for since, until, user in spans if since <= at < until} == on_duty, at
    assert stood_in  # the gaps were looked at too


def test_what_people_are_called_cannot_become_part_of_the_calendar() -> None:
    raw = calendar(settings(), [], "s", NOW, DAYS)
    names = {str(event["summary"]) for event in events(raw)}
    assert names == {HOSTILE.replace("\r", "\\x0d").replace("\n", "\\x0a").replace("\x1b", "\\x1b"),
                     "Bo", "cy", "dan", "fay", "gil", "hal"}  # fmt: skip
    assert b"\r\nSUMMARY:nobody" not in raw
    assert all(len(line) <= 75 for line in raw.split(b"\r\n"))
    attendees = {str(event["attendee"]) for event in events(raw) if "attendee" in event}
    assert attendees == {"mailto:eve@example.com"}


def test_a_turn_keeps_its_identity_from_one_fetch_to_the_next() -> None:
    def identities(now: datetime) -> dict[str, tuple[Any, Any]]:
        found = events(calendar(settings(), exceptions(), "s", now, DAYS))
        assert len({str(event["uid"]) for event in found}) == len(found)
        return {str(event["uid"]): (event.decoded("dtstart"), event["x-whystall-user"]) for event in found}

    before, later = identities(NOW), identities(NOW + timedelta(hours=5))
    both = before.keys() & later.keys()
    assert len(both) > len(before) - 4
    assert sum(before[uid] != later[uid] for uid in both) <= 2  # those that began before the calendar does


def test_a_schedule_that_is_not_there_is_not_found() -> None:
    with pytest.raises(ToolError, match="no schedule is called 'x'"):
        calendar(settings(), [], "x", NOW)
