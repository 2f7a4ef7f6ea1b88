"""When a layer covers: weekdays and times of the day over changes of the clocks."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from whystall.agent_server.settings.sections.oncall import Layer
from whystall.agent_server.ticketing.oncall.windows import Windows


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("zone", "layer", "expected"),
    [
        pytest.param(
            "Europe/Berlin",
            {"from": "09:00", "to": "18:00", "weekdays": ["mon", "tue", "wed", "thu", "fri"]},
            # a Friday in winter, the weekend with the change, and a Monday in summer
            "2026-03-27T07:59 -, 2026-03-27T08:00 +, 2026-03-27T16:59 +, 2026-03-27T17:00 -, 2026-03-28T12:00 -, "
            "2026-03-30T06:59 -, 2026-03-30T07:00 +, 2026-03-30T15:59 +, 2026-03-30T16:00 -",
            id="office-hours",
        ),
        pytest.param(
            "Europe/Berlin",
            {"from": "22:00", "to": "06:00", "weekdays": ["sat"]},
            "2026-03-28T20:59 -, 2026-03-28T21:00 +, 2026-03-29T03:59 +, 2026-03-29T04:00 -, 2026-03-29T21:00 -",
            id="the-night-from-saturday-has-seven-hours",
        ),
        pytest.param(
            "Europe/Berlin",
            {"from": "22:00", "to": "06:00", "weekdays": ["sat"]},
            "2026-10-24T19:59 -, 2026-10-24T20:00 +, 2026-10-25T04:59 +, 2026-10-25T05:00 -",
            id="the-night-from-saturday-has-nine-hours",
        ),
        pytest.param(
            "Europe/Berlin",
            {"from": "02:00", "to": "03:00"},
            "2026-03-28T01:30 +, 2026-03-29T00:30 -, 2026-03-29T01:00 -, 2026-03-29T01:30 -, 2026-03-30T00:30 +",
            id="an-hour-that-is-left-out",
        ),
        pytest.param(
            "Europe/Berlin",
            {"from": "02:30", "to": "03:15"},
            "2026-03-29T00:59 -, 2026-03-29T01:10 -, 2026-03-29T01:30 -, 2026-03-30T00:30 +",
            id="a-window-that-would-end-before-it-begins",
        ),
        pytest.param(
            "America/New_York",
            {"from": "01:00", "to": "02:00"},
            "2026-11-01T04:59 -, 2026-11-01T05:00 +, 2026-11-01T06:59 +, 2026-11-01T07:00 -, 2026-11-02T06:30 +",
            id="an-hour-that-comes-twice-is-covered-twice",
        ),
        pytest.param(
            "Australia/Lord_Howe",
            {"from": "02:00", "to": "02:30"},
            "2026-10-02T15:45 +, 2026-10-03T15:30 -, 2026-10-03T15:45 -, 2026-10-04T15:10 +",
            id="half-an-hour-that-is-left-out",
        ),
        pytest.param(
            "Asia/Shanghai",
            {"from": "09:00", "to": "09:00", "weekdays": ["wed"]},
            "2026-11-25T00:59 -, 2026-11-25T01:00 +, 2026-11-26T00:59 +, 2026-11-26T01:00 -",
            id="a-day-that-begins-at-nine",
        ),
        pytest.param(
            "UTC",
            {"weekdays": ["mon"], "starts": "2026-11-09T12:00", "until": "2026-11-16T12:00"},
            "2026-11-02T13:00 -, 2026-11-09T11:59 -, 2026-11-09T12:00 +, 2026-11-10T00:00 -, 2026-11-16T11:59 +, "
            "2026-11-16T12:00 -",
            id="only-for-a-time",
        ),
        pytest.param("Europe/Berlin", {}, "2026-03-29T01:00 +, 2026-10-25T01:00 +", id="always"),
    ],
)
def test_a_layer_covers_by_the_clock(zone: str, layer: dict[str, Any], expected: str) -> None:
    windows = Windows(Layer.model_validate({"users": ["a"], **layer}), ZoneInfo(zone))
    times = [entry.split()[0] for entry in expected.split(", ")]
    assert ", ".join(f"{at} {'+' if windows.covers(utc(at)) else '-'}" for at in times) == expected


def test_every_change_is_announced() -> None:
    """Minute by minute over the weekend with the change: nothing changes but where it was said."""
    layer = Layer.model_validate({"users": ["a"], "from": "22:15", "to": "02:30", "weekdays": ["fri", "sat", "sun"]})
    windows = Windows(layer, ZoneInfo("Europe/Berlin"))
    at = utc("2026-10-23T00:00")
    said, seen = at, []
    while at < utc("2026-10-27T00:00"):
        if at == said:
            following = windows.next_change(at)
            assert following is not None
            said = following
        after = at + timedelta(minutes=1)
        if windows.covers(after) != windows.covers(at):
            assert after == said
            seen.append(f"{after:%dT%H:%M}")
        at = after
    assert seen == ["23T20:15", "24T00:30", "24T20:15", "25T00:30", "25T21:15", "26T01:30"]


def test_a_layer_that_never_changes_says_so() -> None:
    assert (
        Windows(Layer.model_validate({"users": ["a"]}), ZoneInfo("Europe/Berlin")).next_change(utc("2026-01-01"))
        is None
    )
