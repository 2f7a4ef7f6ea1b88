"""Who is on call: layers and their priority, groups, overrides, temporary schedules, the fallback."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest

from whystall.agent_server.journal.overrides import Override
from whystall.agent_server.settings.sections.oncall import OncallSettings
from whystall.agent_server.ticketing.oncall.on_call import on_call, shifts
from whystall.tools.contract.errors import ErrorCode, ToolError


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


def settings(*layers: dict[str, Any], **schedule: Any) -> OncallSettings:
    return OncallSettings.model_validate(
        {
            "groups": {"storage": ["mia", "noor"]},
            "rotations": {
                "week": {"every": "weekly", "start": "2026-11-02T09:00", "members": ["ann", "bo", ["cy", "storage"]]},
                "late": {"every": "daily", "start": "2026-11-30T00:00", "members": ["zoe"]},
            },
            "schedules": {"s": {"timezone": "UTC", "layers": list(layers), **schedule}},
        }
    )


def override(id: int, begins: str = "2026-11-03T00:00", ends: str = "2026-11-04T00:00", **more: Any) -> Override:
    return Override(id=id, schedule=more.pop("schedule", "s"), begins=utc(begins), ends=utc(ends), **more)


WEEK = {"rotation": "week"}
NIGHT = {"name": "night", "users": ["zoe"], "from": "22:00", "to": "06:00", "priority": 1}
NOON = utc("2026-11-03T12:00")


def said(configured: OncallSettings, at: str | datetime, *overrides: Override) -> tuple[str, str]:
    found = on_call(configured, overrides, "s", utc(at) if isinstance(at, str) else at)
    return " ".join(found.users), found.why


@pytest.mark.parametrize(
    ("layers", "at", "expected"),
    [
        pytest.param([WEEK], "2026-11-03T12:00", ("ann", "rotation:week"), id="a-rotation"),
        pytest.param([WEEK], "2026-11-17T12:00", ("cy mia noor", "rotation:week"), id="two-and-a-group-together"),
        pytest.param([WEEK], "2026-11-02T08:59", ("", ""), id="before-it-begins"),
        pytest.param([WEEK, NIGHT], "2026-11-03T23:00", ("zoe", "layer:night"), id="the-higher-priority"),
        pytest.param([NIGHT, WEEK], "2026-11-03T12:00", ("ann", "rotation:week"), id="the-lower-where-that-is-not"),
        pytest.param(
            [{"rotation": "late", "priority": 9}, WEEK], "2026-11-03T12:00", ("ann", "rotation:week"),
            id="a-higher-one-that-has-nobody-yet",
        ),
        pytest.param(
            [WEEK, {"users": ["zoe", "ann"]}], "2026-11-03T12:00", ("ann zoe", "rotation:week"),
            id="layers-of-one-priority-together-the-first-decides",
        ),
        pytest.param([{"users": ["storage"]}], "2026-11-03T12:00", ("mia noor", "layer:1"), id="without-a-name"),
        pytest.param([], "2026-11-03T12:00", ("", ""), id="no-layer"),
    ],
)  # fmt: skip
def test_layers(layers: list[dict[str, Any]], at: str, expected: tuple[str, str]) -> None:
    assert said(settings(*layers), at) == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        pytest.param([{"add": "zoe"}], ("ann zoe", "override:1"), id="added"),
        pytest.param([{"add": "ann"}], ("ann", "rotation:week"), id="added-who-is-there"),
        pytest.param([{"remove": "ann"}], ("", "override:1"), id="taken-out"),
        pytest.param([{"remove": "bo"}], ("ann", "rotation:week"), id="taken-out-who-is-not-there"),
        pytest.param([{"remove": "ann", "add": "zoe"}], ("zoe", "override:1"), id="replaced"),
        pytest.param([{"remove": "bo", "add": "zoe"}], ("ann", "rotation:week"), id="replaced-who-is-not-there"),
        pytest.param([{"remove": "ann", "add": "storage"}], ("mia noor", "override:1"), id="replaced-by-a-group"),
        pytest.param(
            [{"remove": "ann", "add": "bo"}, {"remove": "bo", "add": "zoe"}], ("zoe", "override:2"), id="handed-on"
        ),
        pytest.param(
            [{"remove": "ann", "add": "bo"}, {"remove": "bo", "add": "ann"}], ("ann", "override:2"), id="round-and-back"
        ),
        pytest.param([{"only": ("zoe", "bo")}], ("zoe bo", "temporary:1"), id="a-temporary-schedule"),
        pytest.param([{"only": ()}], ("", "temporary:1"), id="a-temporary-schedule-of-nobody"),
        pytest.param([{"only": ("zoe",)}, {"add": "bo"}], ("zoe", "temporary:1"), id="which-goes-over-later-overrides"),
        pytest.param([{"only": ("zoe",)}, {"only": ("bo",)}], ("bo", "temporary:2"), id="of-two-the-later"),
        pytest.param([{"add": "zoe", "schedule": "t"}], ("ann", "rotation:week"), id="of-another-schedule"),
        pytest.param([{"add": "zoe", "ends": "2026-11-03T12:00"}], ("ann", "rotation:week"), id="over-at-its-end"),
        pytest.param(
            [{"add": "zoe", "begins": "2026-11-03T12:00"}], ("ann zoe", "override:1"), id="from-its-beginning"
        ),
    ],
)
def test_overrides(overrides: list[dict[str, Any]], expected: tuple[str, str]) -> None:
    made = [override(n, **fields) for n, fields in enumerate(overrides, 1)]
    assert said(settings(WEEK), NOON, *made) == expected
    assert said(settings(WEEK), NOON, *reversed(made)) == expected  # in the order they were made, not given


def test_a_temporary_schedule_of_the_settings_replaces_layers_and_overrides() -> None:
    configured = settings(
        WEEK,
        timezone="Europe/Berlin",
        temporary=[
            {
                "name": "feast",
                "from": "2026-11-03T09:00",
                "to": "2026-11-05T09:00",
                "shifts": [
                    {"users": ["zoe"], "from": "2026-11-03T09:00", "to": "2026-11-03T21:00"},
                    {"users": ["storage"], "from": "2026-11-04T09:00", "to": "2026-11-09T21:00"},
                ],
            }
        ],
    )
    extra = override(1, ends="2026-11-30T00:00", add="bo")
    assert said(configured, "2026-11-03T07:59", extra) == ("ann bo", "override:1")
    assert said(configured, "2026-11-03T08:00", extra) == ("zoe", "temporary:feast")
    assert said(configured, "2026-11-03T20:00", extra) == ("", "temporary:feast")
    assert said(configured, "2026-11-04T08:00", extra) == ("mia noor", "temporary:feast")
    assert said(configured, "2026-11-05T08:00", extra) == ("ann bo", "override:1")
    assert said(configured, NOON, override(2, only=("cy",))) == ("cy", "temporary:2")  # what was made while it ran


def test_the_fallback_is_asked_where_nobody_is_on_call() -> None:
    configured = settings(NIGHT, fallback=["storage"])
    assert said(configured, NOON) == ("mia noor", "fallback")
    assert said(configured, NOON, override(1, only=())) == ("mia noor", "fallback")
    assert said(configured, "2026-11-03T23:00") == ("zoe", "layer:night")
    everywhere = OncallSettings.model_validate({**configured.model_dump(by_alias=True), "fallback": ["ann"]})
    assert said(everywhere, NOON) == ("mia noor", "fallback")


def test_who_is_taken_out_is_not_asked_in_another_s_stead() -> None:
    configured = settings(WEEK, fallback=["ann", "mia"])
    away = override(1, remove="ann")
    assert said(configured, NOON, away) == ("mia", "fallback")
    assert said(configured, NOON, away, override(2, add="ann")) == ("ann", "override:2")
    assert said(settings(WEEK, fallback=["ann"]), NOON, away) == ("", "override:1")


def test_until_when_it_holds() -> None:
    configured = settings(WEEK, NIGHT)
    assert on_call(configured, [], "s", NOON).until == utc("2026-11-03T22:00")
    assert on_call(configured, [override(1, begins="2026-11-03T14:00", add="zoe")], "s", NOON).until == utc(
        "2026-11-03T14:00"
    )
    # A change that changes nothing is none: a rotation of one, an override that does not concern it.
    alone = settings({"rotation": "late"})
    assert on_call(alone, [], "s", utc("2026-12-01T00:00")).until is None
    assert on_call(settings({"users": ["zoe"]}), [], "s", NOON).until is None
    assert on_call(settings(WEEK), [override(1, remove="zoe")], "s", NOON).until == utc("2026-11-09T09:00")


def test_shifts_leave_no_gap_and_agree_with_who() -> None:
    configured = settings(WEEK, NIGHT, timezone="Europe/Berlin", fallback=["mia"])
    exceptions = [override(1, add="bo"), override(2, "2026-11-10T00:00", "2026-11-11T00:00", only=())]
    begins, ends = utc("2026-10-24T00:00"), utc("2026-11-24T00:00")
    found = list(shifts(configured, exceptions, "s", begins, ends))
    assert (found[0].begins, found[-1].ends) == (begins, ends)
    assert all(one.ends == other.begins for one, other in pairwise(found))
    assert all((one.users, one.why) != (other.users, other.why) for one, other in pairwise(found))
    for shift in found:
        for at in (shift.begins, shift.begins + (shift.ends - shift.begins) / 2, shift.ends - timedelta(seconds=1)):
            answer = on_call(configured, exceptions, "s", at)
            assert (answer.users, answer.why) == (shift.users, shift.why)


def test_a_schedule_that_is_not_there_is_not_found() -> None:
    with pytest.raises(ToolError) as caught:
        on_call(settings(WEEK), [], "nights", NOON)
    assert (caught.value.code, caught.value.remedy) == (ErrorCode.NOT_FOUND, "one of: s")


@pytest.mark.parametrize("year", [1969, 2200, 9999])
def test_a_time_beyond_reckoning_is_refused(year: int) -> None:
    with pytest.raises(ToolError) as caught:
        on_call(settings(WEEK), [], "s", datetime(year, 6, 1, tzinfo=timezone.utc))
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
