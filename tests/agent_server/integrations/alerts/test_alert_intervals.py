"""Time intervals hold when Alertmanager's would."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from whystall.agent_server.integrations.alerts.intervals import Interval, days, months, times, weekdays, years, zone


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


NINE_TO_FIVE = Interval(times=(times("09:00", "17:00"),), weekdays=(weekdays("monday:friday"),))


@pytest.mark.parametrize(
    ("interval", "moment", "expected"),
    [
        (Interval(), "2026-01-01T00:00", True),
        (NINE_TO_FIVE, "2026-11-23T09:00", True),  # a Monday
        (NINE_TO_FIVE, "2026-11-23T16:59:59", True),
        (NINE_TO_FIVE, "2026-11-23T17:00", False),
        (NINE_TO_FIVE, "2026-11-22T12:00", False),
        (Interval(weekdays=(weekdays("sunday"),)), "2026-11-22T12:00", True),
        (Interval(times=(times("22:00", "24:00"), times("00:00", "06:00"))), "2026-11-22T23:59", True),
        (Interval(times=(times("22:00", "24:00"), times("00:00", "06:00"))), "2026-11-22T06:00", False),
        (Interval(days=(days("-1"),)), "2028-02-29T12:00", True),
        (Interval(days=(days("-1"),)), "2028-02-28T12:00", False),
        (Interval(days=(days("31"),)), "2026-02-28T12:00", False),
        (Interval(days=(days("28:31"),)), "2026-02-28T12:00", True),
        (Interval(days=(days("1:5"),)), "2026-02-05T12:00", True),
        (Interval(days=(days("-31:-28"),)), "2026-02-01T12:00", True),
        (Interval(months=(months("january:march"), months("12"))), "2026-12-01T12:00", True),
        (Interval(months=(months("january:march"),)), "2026-04-01T12:00", False),
        (Interval(years=(years("2026:2027"),)), "2028-01-01T00:00", False),
        # 09:00 in Berlin is 07:00 UTC in summer and 08:00 in winter
        (Interval(times=(times("09:00", "10:00"),), zone=zone("Europe/Berlin")), "2026-07-01T07:30", True),
        (Interval(times=(times("09:00", "10:00"),), zone=zone("Europe/Berlin")), "2026-12-01T07:30", False),
        (Interval(times=(times("09:00", "10:00"),), zone=zone("Europe/Berlin")), "2026-12-01T08:30", True),
        (Interval(weekdays=(weekdays("monday"),), zone=zone("Asia/Shanghai")), "2026-11-22T17:00", True),
    ],
)
def test_holds(interval: Interval, moment: str, expected: bool) -> None:
    assert interval.contains(at(moment)) is expected


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (weekdays, "friday:monday"),
        (weekdays, "fri"),
        (weekdays, "monday:tuesday:friday"),
        (months, "13"),
        (months, "march:january"),
        (months, "0"),
        (years, "2027:2026"),
        (years, "x"),
        (days, "0"),
        (days, "32"),
        (days, "-3:2"),
        (days, "20:5"),
        (days, "5:-30"),
        (zone, "Mars/Olympus"),
        (zone, "../etc/passwd"),
    ],
)
def test_refused(reader, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"\w"):
        reader(text)


@pytest.mark.parametrize(
    ("start", "end"), [("9:00", "10:00"), ("10:00", "09:00"), ("10:00", "10:00"), ("25:00", "26:00")]
)
def test_times_that_are_none(start: str, end: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        times(start, end)
