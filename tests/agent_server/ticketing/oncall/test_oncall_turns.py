"""Whose turn it is: the clocks of the world, both ways over their changes, leap days, month ends and long times."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from whystall.agent_server.settings.sections.oncall import Rotation
from whystall.agent_server.settings.wall_clock import instant
from whystall.agent_server.ticketing.oncall.rotation import Turns

ABCD = ["a", "b", "c", "d"]


def turns(zone: str, start: str, every: str, **more: Any) -> Turns:
    rotation = Rotation.model_validate({"every": every, "start": start, "members": ABCD, **more})
    return Turns(rotation, ZoneInfo(zone))


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


def whose(rotation: Turns, at: str) -> str | None:
    turn = rotation.at(utc(at))
    return None if turn is None else ",".join(turn.names)


# Clocks: Europe/Berlin 2026-03-29 01:00Z +1h, 10-25 01:00Z -1h; America/New_York 2026-03-08 07:00Z +1h, 11-01 06:00Z
# -1h; Australia/Lord_Howe 2026-04-04 15:00Z -30min, 10-03 15:30Z +30min; Pacific/Apia leaves 2011-12-30 out.
@pytest.mark.parametrize(
    ("zone", "start", "every", "length", "expected"),
    [
        pytest.param(
            "Europe/Berlin",
            "2026-03-27T09:00",
            "daily",
            1,
            "2026-03-27T07:59 -, 2026-03-27T08:00 a, 2026-03-29T06:59 b, 2026-03-29T07:00 c",
            id="berlin-a-day-of-23-hours",
        ),
        pytest.param(
            "Europe/Berlin",
            "2026-10-24T09:00",
            "daily",
            1,
            "2026-10-25T07:00 a, 2026-10-25T07:59:59 a, 2026-10-25T08:00 b",
            id="berlin-a-day-of-25-hours",
        ),
        pytest.param(
            "Europe/Berlin",
            "2026-03-29T02:30",
            "daily",
            1,
            "2026-03-29T01:29:59 -, 2026-03-29T01:30 a, 2026-03-30T00:29 a, 2026-03-30T00:30 b",
            id="berlin-begins-in-the-gap",
        ),
        pytest.param(
            "Europe/Berlin",
            "2026-03-28T02:30",
            "daily",
            1,
            "2026-03-29T01:29:59 a, 2026-03-29T01:30 b, 2026-03-30T00:30 c",
            id="berlin-changes-in-the-gap",
        ),
        pytest.param(
            "Europe/Berlin",
            "2026-10-24T02:30",
            "daily",
            1,
            "2026-10-25T00:29 a, 2026-10-25T00:30 b, 2026-10-25T01:15 b, 2026-10-25T01:45 b, "
            "2026-10-26T01:29 b, 2026-10-26T01:30 c",
            id="berlin-changes-once-in-an-hour-that-comes-twice",
        ),
        pytest.param(
            "Europe/Berlin",
            "2026-10-25T02:30",
            "weekly",
            1,
            "2026-10-25T00:29 -, 2026-10-25T00:30 a, 2026-11-01T01:29 a, 2026-11-01T01:30 b",
            id="berlin-begins-in-the-fold",
        ),
        pytest.param(
            "Europe/Berlin",
            "2026-03-29T00:00",
            "hourly",
            1,
            "2026-03-28T23:00 a, 2026-03-29T00:59 b, 2026-03-29T01:00 d, 2026-03-29T02:00 a",
            id="berlin-an-hour-that-is-left-out-is-nobodys",
        ),
        pytest.param(
            "Europe/Berlin",
            "2026-10-25T00:00",
            "hourly",
            1,
            "2026-10-24T23:59 b, 2026-10-25T00:00 c, 2026-10-25T01:59 c, 2026-10-25T02:00 d",
            id="berlin-an-hour-that-comes-twice-is-one-turn",
        ),
        pytest.param(
            "America/New_York",
            "2026-03-07T08:00",
            "hourly",
            12,
            "2026-03-07T12:59 -, 2026-03-07T13:00 a, 2026-03-08T01:00 b, 2026-03-08T11:59 b, "
            "2026-03-08T12:00 c, 2026-03-09T00:00 d",
            id="new-york-a-night-of-11-hours",
        ),
        pytest.param(
            "America/New_York",
            "2026-10-31T20:00",
            "hourly",
            12,
            "2026-11-01T00:00 a, 2026-11-01T12:59 a, 2026-11-01T13:00 b",
            id="new-york-a-night-of-13-hours",
        ),
        pytest.param(
            "America/New_York",
            "2026-03-02T09:00",
            "weekly",
            1,
            "2026-03-02T14:00 a, 2026-03-09T12:59 a, 2026-03-09T13:00 b",
            id="new-york-a-week-with-the-change",
        ),
        pytest.param(
            "Asia/Shanghai",
            "2026-03-27T09:00",
            "daily",
            1,
            "2026-03-29T00:59 b, 2026-03-29T01:00 c, 2026-10-25T00:59 d, 2026-10-25T01:00 a",
            id="shanghai-has-no-changes",
        ),
        pytest.param(
            "Australia/Lord_Howe",
            "2026-10-03T02:15",
            "daily",
            1,
            "2026-10-02T15:45 a, 2026-10-03T15:44 a, 2026-10-03T15:45 b, 2026-10-04T15:15 c",
            id="lord-howe-changes-in-half-an-hour-that-is-left-out",
        ),
        pytest.param(
            "Australia/Lord_Howe",
            "2026-04-04T01:45",
            "daily",
            1,
            "2026-04-04T14:44 a, 2026-04-04T14:45 b, 2026-04-04T15:20 b, 2026-04-05T15:15 c",
            id="lord-howe-changes-in-half-an-hour-that-comes-twice",
        ),
        pytest.param(
            "Pacific/Apia",
            "2011-12-28T09:00",
            "daily",
            1,
            "2011-12-29T18:59 a, 2011-12-29T19:00 b, 2011-12-30T18:59 b, 2011-12-30T19:00 d",
            id="apia-a-day-that-is-left-out-is-nobodys",
        ),
        pytest.param(
            "Pacific/Apia",
            "2011-12-29T22:00",
            "hourly",
            5,
            "2011-12-30T08:00 a, 2011-12-30T12:59 a, 2011-12-30T13:00 b, 2011-12-30T13:59 b, "
            "2011-12-30T14:00 c, 2011-12-30T18:59 c, 2011-12-30T19:00 d",
            id="apia-turns-that-would-overtake-each-other",
        ),
        pytest.param(
            "UTC",
            "2027-10-31T09:00",
            "monthly",
            1,
            "2027-11-30T08:59 a, 2027-11-30T09:00 b, 2027-12-31T08:59 b, 2027-12-31T09:00 c, "
            "2028-02-29T08:59 d, 2028-02-29T09:00 a, 2028-03-31T08:59 a, 2028-03-31T09:00 b",
            id="month-ends-and-a-leap-day",
        ),
        pytest.param(
            "UTC",
            "2024-02-29T00:00",
            "monthly",
            12,
            "2025-02-27T23:59 a, 2025-02-28T00:00 b, 2028-02-28T23:59 d, 2028-02-29T00:00 a",
            id="a-year-from-a-leap-day",
        ),
        pytest.param(
            "Europe/Berlin",
            "2026-01-05T09:00",
            "weekly",
            2,
            "2026-01-19T07:59 a, 2026-01-19T08:00 b, 2026-03-30T06:59 b, 2026-03-30T07:00 c",
            id="two-weeks-each",
        ),
    ],
)
def test_the_clock_on_the_wall_decides(zone: str, start: str, every: str, length: int, expected: str) -> None:
    rotation = turns(zone, start, every, length=length)
    times = [entry.split()[0] for entry in expected.split(", ")]
    assert ", ".join(f"{at} {whose(rotation, at) or '-'}" for at in times) == expected


def test_a_turn_ends_where_another_overtakes_the_next() -> None:
    rotation = turns("Pacific/Apia", "2011-12-29T22:00", "hourly", length=5)
    turn = rotation.at(utc("2011-12-30T13:30"))  # the next begins at 18:00Z, the sixth at 14:00Z
    assert turn is not None
    assert turn.ends == utc("2011-12-30T14:00") == rotation.next_change(utc("2011-12-30T13:30"))


def test_a_start_with_an_offset_is_a_moment_whose_clock_time_is_kept() -> None:
    rotation = turns("Europe/Berlin", "2026-03-27T08:00:00Z", "daily")  # 09:00 in Berlin
    assert (whose(rotation, "2026-03-29T06:59"), whose(rotation, "2026-03-29T07:00")) == ("b", "c")


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (1, "mon a, tue b, wed c, thu d, fri a, sat -, sun -, mon b"),
        (2, "mon a, tue a, wed b, thu b, fri c, sat -, sun -, mon c"),
    ],
)
def test_turns_by_day_count_only_their_days(length: int, expected: str) -> None:
    days = ["mon", "tue", "wed", "thu", "fri"]
    rotation = turns("Europe/Berlin", "2026-11-02T09:00", "daily", length=length, weekdays=days)
    noon = [datetime(2026, 11, 2, 11, tzinfo=timezone.utc) + timedelta(days=n) for n in range(8)]
    said = [f"{day:%a} {','.join(turn.names) if turn else '-'}".lower() for day in noon for turn in [rotation.at(day)]]
    assert ", ".join(said) == expected
    assert whose(rotation, "2026-11-07T07:59") is not None  # Friday's ends on Saturday at nine
    assert whose(rotation, "2026-11-07T08:00") is None
    assert rotation.next_change(utc("2026-11-07T08:00")) == utc("2026-11-09T08:00")


def test_a_by_day_rotation_may_start_on_a_day_that_is_not_among_them() -> None:
    rotation = turns("UTC", "2026-11-07T09:00", "daily", weekdays=["wed", "mon"])  # a Saturday
    assert [whose(rotation, f"2026-11-{day:02}T12:00") for day in (7, 9, 10, 11, 16, 18)] == [
        None, "a", None, "b", "c", "d",
    ]  # fmt: skip


def test_after_its_end_it_is_nobodys() -> None:
    rotation = turns("Europe/Berlin", "2026-03-27T09:00", "daily", until="2026-03-29T12:00")
    assert (whose(rotation, "2026-03-29T09:59"), whose(rotation, "2026-03-29T10:00")) == ("c", None)
    turn = rotation.at(utc("2026-03-29T09:59"))
    assert turn is not None
    assert turn.ends == utc("2026-03-29T10:00")
    assert rotation.next_change(utc("2026-03-29T10:00")) is None


def test_long_after_its_start_it_still_counts_right() -> None:
    rotation = turns("Europe/Berlin", "1971-01-04T09:00", "weekly")
    for at, day in (("2026-11-23T08:00", (2026, 11, 23)), ("2199-12-16T08:00", (2199, 12, 16))):
        weeks = (datetime(*day) - datetime(1971, 1, 4)).days // 7
        turn = rotation.at(utc(at))
        assert turn is not None
        assert (turn.number, turn.begins, turn.names) == (weeks, utc(at), (ABCD[weeks % 4],))


ZONES = ("Europe/Berlin", "America/New_York", "Asia/Shanghai", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Cairo")


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("every", ["hourly", "daily", "weekly", "monthly"])
def test_any_moment_has_the_turn_that_counting_one_by_one_gives(zone: str, every: str) -> None:
    """Against turns made one after another and looked through from the end."""
    chance = random.Random(f"{zone} {every}")
    info = ZoneInfo(zone)
    for _ in range(6):
        length = chance.choice([1, 1, 2, 3, 7, 12])
        start = datetime(2011, 1, 1) + timedelta(minutes=chance.randrange(365 * 24 * 60))
        rotation = turns(zone, start.isoformat(), every, length=length)
        begins = [instant(time, info) for time in one_by_one(start, every, length, 3000)]
        for _ in range(40):
            at = begins[0] + timedelta(seconds=chance.randrange(-1000, 2 * 365 * 86400))
            if at >= begins[-1]:
                continue
            number = max((n for n, moment in enumerate(begins) if moment <= at), default=None)
            turn = rotation.at(at)
            if number is None:
                assert turn is None
                assert rotation.next_change(at) == begins[0]
                continue
            assert turn is not None
            assert turn.number == number
            assert turn.ends == min(begins[number + 1 :]) == rotation.next_change(at)


def one_by_one(start: datetime, every: str, length: int, count: int) -> list[datetime]:
    steps = {"hourly": timedelta(hours=1), "daily": timedelta(days=1), "weekly": timedelta(weeks=1)}
    if every != "monthly":
        return [start + n * length * steps[every] for n in range(count)]
    times, month = [], start.replace(day=1)
    for n in range(count // 10 * length):
        following = (month + timedelta(days=32)).replace(day=1)
        if n % length == 0:
            times.append(month.replace(day=min(start.day, (following - timedelta(days=1)).day)))
        month = following
    return times
