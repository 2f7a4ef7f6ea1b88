"""Assignment and escalation of tickets."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from whystall.agent_server.journal.overrides import Override
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.settings.sections.oncall import OncallSettings
from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.oncall.assign import Facts, assign, reassign
from whystall.agent_server.ticketing.oncall.escalate import due_escalation, escalates_at
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.classify.report import Report
from whystall.knowledge_base.ticket_models import Assignment, Ticket
from whystall.knowledge_base.times import rfc3339
from whystall.tools.contract.findings import Severity

NOW = datetime(2026, 11, 3, 12, tzinfo=timezone.utc)
SETTINGS: dict[str, Any] = {
    "groups": {"storage": ["mia", "noor"]},
    "rotations": {"week": {"every": "weekly", "start": "2026-11-02T09:00", "members": ["ann", "bo"]}},
    "schedules": {
        "platform": {
            "timezone": "UTC",
            "layers": [{"rotation": "week"}],
            "escalation": [{"after": "15m", "schedules": ["deep", "spare"]}, {"after": "1h", "users": ["storage"]}],
        },
        "deep": {"timezone": "UTC", "layers": [{"users": ["zoe"], "from": "00:00", "to": "06:00"}]},
        "spare": {"timezone": "UTC", "layers": [{"users": ["yan"]}]},
    },
    "schedule": "platform",
    "categories": {"network": "spare"},
    "rules": [
        {"id": "lustre", "categories": ["storage"], "labels": {"cluster": "gpu-*"}, "users": ["storage", "ann"]},
        {"id": "pages", "severities": ["critical"], "origins": ["alert"], "components": ["nccl"], "schedule": "spare"},
    ],
}


def settings(**more: Any) -> OncallSettings:
    return OncallSettings.model_validate({**SETTINGS, **more})


def facts(**more: Any) -> Facts:
    return Facts(**{"category": "cpu", "component": "cpu", "severity": "major", "origin": "alert", **more})


@pytest.mark.parametrize(
    ("given", "rule", "users", "why"),
    [
        pytest.param(facts(), "default", ["ann"], "rotation:week", id="the-default"),
        pytest.param(facts(category="network"), "category:network", ["yan"], "layer:1", id="the-category"),
        pytest.param(
            facts(category="storage", labels={"cluster": "gpu-7"}), "rule:lustre", ["mia", "noor", "ann"], "",
            id="a-rule-and-a-group",
        ),
        pytest.param(facts(category="storage", labels={"cluster": "cpu-7"}), "default", ["ann"], "rotation:week",
                     id="a-label-that-differs"),
        pytest.param(facts(category="storage"), "default", ["ann"], "rotation:week", id="a-label-that-is-not-there"),
        pytest.param(facts(severity="critical", component="nccl"), "rule:pages", ["yan"], "layer:1", id="all-hold"),
        pytest.param(facts(severity="critical"), "default", ["ann"], "rotation:week", id="one-does-not-hold"),
        pytest.param(
            facts(category="storage", labels={"cluster": "gpu-7"}, receiver="oncall", schedule="spare"),
            "receiver:oncall", ["yan"], "layer:1", id="the-receiver-goes-first",
        ),
        pytest.param(facts(receiver="x", schedule="gone"), "default", ["ann"], "rotation:week",
                     id="a-schedule-that-is-gone"),
    ],
)  # fmt: skip
def test_the_most_specific_rule_decides(given: Facts, rule: str, users: list[str], why: str) -> None:
    made = assign(given, settings(), [], NOW)
    assert (made.rule, made.users, made.why, made.level, made.at) == (rule, users, why, 0, "2026-11-03T12:00:00Z")


def test_the_shift_and_overrides_are_rfc3339() -> None:
    made = assign(facts(), settings(), [], NOW)
    assert (made.schedule, made.until) == ("platform", "2026-11-09T09:00:00Z")
    swap = Override(id=7, schedule="platform", begins=NOW, ends=NOW + timedelta(hours=1), add="bo", remove="ann")
    made = assign(facts(), settings(), [swap], NOW)
    assert (made.users, made.why, made.until) == (["bo"], "override:7", "2026-11-03T13:00:00Z")


def test_without_schedules_only_the_fallback_is_assigned() -> None:
    made = assign(facts(), OncallSettings(), [], NOW)
    assert (made.users, made.rule, made.why, made.schedule) == ([], "none", "", None)
    made = assign(facts(), OncallSettings(fallback=["li"]), [], NOW)
    assert (made.users, made.rule, made.why) == (["li"], "none", "fallback")
    made = assign(facts(receiver="r", schedule="deep"), settings(), [], NOW)
    assert (made.users, made.rule, made.why) == ([], "receiver:r", "")


def test_label_patterns_are_no_regular_expressions_and_are_fast() -> None:
    hostile = {"rules": [{"id": "r", "labels": {"a": "*a*a*a*a*a*a*a*a*b"}, "users": ["x"]}]}
    assert assign(facts(labels={"a": "a" * 300}), settings(**hostile), [], NOW).rule == "default"


def ticket(assignment: Assignment | None, **more: Any) -> Ticket:
    at = rfc3339(NOW)
    fields = {"id": "1", "created": at, "updated": at, "dedup_key": "2:x", "severity": Severity.MAJOR}
    return Ticket(**{**fields, "category": "cpu", "component": "cpu", "assignment": assignment, **more})


def first() -> Assignment:
    return assign(facts(), settings(), [], NOW)


def after(minutes: float, assignment: Assignment, configured: OncallSettings | None = None) -> Assignment | None:
    return due_escalation(ticket(assignment), configured or settings(), [], NOW + timedelta(minutes=minutes))


def test_steps_follow_after_their_delays_and_then_end() -> None:
    assert after(14.9, first()) is None
    one = after(15, first())
    assert one is not None
    # nobody is on call in the first schedule at this time, but in the second
    assert (one.users, one.level, one.why, one.rule, one.at) == (
        ["yan"], 1, "layer:1", "default", "2026-11-03T12:15:00Z",
    )  # fmt: skip
    assert escalates_at(ticket(one), settings()) == NOW + timedelta(minutes=75)
    assert after(74, one) is None
    two = after(75, one)
    assert two is not None
    assert (two.users, two.level, two.why) == (["mia", "noor"], 2, "escalation")
    assert after(10_000, two) is None
    assert escalates_at(ticket(two), settings()) is None


def test_a_repetition_starts_with_the_users_on_call_then() -> None:
    schedules = {**SETTINGS["schedules"], "platform": {**SETTINGS["schedules"]["platform"], "repeat": 1}}
    configured = settings(schedules=schedules)
    week_later = NOW + timedelta(days=7)
    last = first().model_copy(update={"level": 2, "at": rfc3339(week_later)})
    assert due_escalation(ticket(last), configured, [], week_later + timedelta(minutes=59)) is None
    again = due_escalation(ticket(last), configured, [], week_later + timedelta(hours=1))
    assert again is not None
    assert (again.users, again.level, again.why) == (["bo"], 3, "rotation:week")
    end = again.model_copy(update={"level": 5})
    assert due_escalation(ticket(end), configured, [], week_later + timedelta(days=9)) is None


@pytest.mark.parametrize("state", ["acknowledged", "resolved", "closed"])
def test_an_acknowledged_ticket_is_not_escalated(state: str) -> None:
    assert due_escalation(ticket(first(), state=state), settings(), [], NOW + timedelta(days=1)) is None
    assert escalates_at(ticket(first(), state=state), settings()) is None


def test_without_schedule_or_steps_nothing_is_escalated() -> None:
    for assignment in (None, assign(facts(category="network"), settings(), [], NOW), Assignment(rule="none", at="")):
        assert due_escalation(ticket(assignment), settings(), [], NOW + timedelta(days=1)) is None
    gone = first().model_copy(update={"schedule": "gone"})
    assert due_escalation(ticket(gone), settings(), [], NOW + timedelta(days=1)) is None


def test_steps_without_users_are_skipped() -> None:
    platform = {**SETTINGS["schedules"]["platform"], "escalation": [{"after": "15m", "schedules": ["deep"]},
                                                                    {"after": "1h", "users": ["yan"]}]}  # fmt: skip
    configured = settings(schedules={**SETTINGS["schedules"], "platform": platform})
    found = after(15, first(), configured)
    assert found is not None
    assert (found.users, found.level) == (["yan"], 2)
    nobody = {**platform, "escalation": [{"after": "15m", "schedules": ["deep"]}]}
    assert after(15, first(), settings(schedules={**SETTINGS["schedules"], "platform": nobody})) is None


def test_a_ticket_without_assignees_escalates_without_delay() -> None:
    nobody = assign(facts(receiver="r", schedule="deep"), settings(), [], NOW)
    deep = {**SETTINGS["schedules"]["deep"], "escalation": [{"after": "1h", "users": ["yan"]}]}
    configured = settings(schedules={**SETTINGS["schedules"], "deep": deep})
    found = due_escalation(ticket(nobody), configured, [], NOW)
    assert found is not None
    assert (found.users, found.level) == (["yan"], 1)
    assert escalates_at(ticket(nobody), configured) == NOW


def test_a_clock_jump_escalates_by_one_level() -> None:
    far = after(60 * 24 * 365, first())  # ahead, or nothing ran for long
    assert far is not None
    assert far.level == 1
    assert due_escalation(ticket(far), settings(), [], NOW + timedelta(days=365, minutes=59)) is None
    # Set back: an assignment from the future is not waited for.
    back = due_escalation(ticket(first()), settings(), [], NOW - timedelta(days=365))
    assert back is not None
    assert (back.level, back.at) == (1, "2025-11-03T12:00:00Z")
    assert due_escalation(ticket(first()), settings(), [], NOW - timedelta(seconds=30)) is None


def test_schedules_that_name_each_other_terminate() -> None:
    both = {
        name: {"timezone": "UTC", "layers": [{"users": [name]}], "escalation": [{"after": "1m", "schedules": [other]}]}
        for name, other in (("a", "b"), ("b", "a"))
    }
    configured = OncallSettings.model_validate({"schedules": both, "schedule": "a"})
    start = assign(facts(), configured, [], NOW)
    found = due_escalation(ticket(start), configured, [], NOW + timedelta(minutes=1))
    assert found is not None
    assert (found.users, found.schedule) == (["b"], "a")
    assert due_escalation(ticket(found), configured, [], NOW + timedelta(days=1)) is None


def test_a_reopened_ticket_goes_to_the_users_on_call_now() -> None:
    escalated = first().model_copy(update={"level": 2, "users": ["mia"]})
    again = reassign(escalated, settings(), [], NOW + timedelta(days=7))
    assert again is not None
    assert (again.users, again.level, again.rule, again.at) == (["bo"], 0, "default", "2026-11-10T12:00:00Z")
    for kept in (
        Assignment(users=["ann"], rule="person:kim", at=rfc3339(NOW)),
        first().model_copy(update={"schedule": "x"}),
    ):
        assert reassign(kept, settings(), [], NOW) is None


def test_a_ticket_that_is_reopened_is_not_escalated_for_the_time_it_was_closed(tmp_path: Path) -> None:
    configured = Settings.model_validate({"oncall": SETTINGS})
    with Stores(tmp_path / "knowledge.db") as kb:
        service = TicketService(kb, configured)
        made = service.file(Report(origin="alert", title="a job", created=rfc3339(NOW)), now=NOW).ticket
        service.close(made.id, "stale", "kim", now=NOW + timedelta(minutes=5))
        later = NOW + timedelta(days=7)
        reopened = service.reopen(made.id, "kim", now=later)
        assert reopened.assignment is not None
        assert reopened.assignment.users == ["bo"]
        assert kb.tickets.get(made.id).assignment == reopened.assignment
        assert due_escalation(reopened, configured.oncall, [], later + timedelta(minutes=14)) is None
        assert due_escalation(reopened, configured.oncall, [], later + timedelta(minutes=15)) is not None
        mine = service.assign(made.id, ["zoe"], "kim", now=later)
        service.close(made.id, "stale", "kim", now=later)
        assert service.reopen(made.id, "kim", now=later).assignment == mine.assignment  # a person's word stands
