"""Causes of rows of the critical path: how their shares add up, and which may lead."""

from __future__ import annotations

from typing import Any

import pytest
from making import finding

from whystall.agent_server.diagnosis.assess import assess, combined_share
from whystall.agent_server.diagnosis.verdict import Conclusion, conclude
from whystall.knowledge_base.causes import considered_for, load_causes, matches
from whystall.knowledge_base.models import Cause, Pattern, Victim
from whystall.tools.contract.findings import Finding

LIKE = load_causes()["lock_wait"]
ME = Victim(
    **dict.fromkeys(("user_pct", "system_pct", "runnable_pct", "blocked_pct", "idle_pct"), 0.0),
    pid=4000,
    tid=4000,
    comm="train",
    chosen_by="main_thread",
    lost_pct=30,
)


def row(kind: str, pct: float, id: str, /, **words: str) -> Finding:
    who = {"pid": 4000, "tid": int(words.pop("tid", "4000"))}
    return finding(kind, subject=who, words=words, window_pct=pct).model_copy(update={"id": id})


def cause(id: str, **changes: Any) -> Cause:
    kept: dict[str, Any] = {"supporting": [], "refuted": [], "less": [], "against": [], "examined_by": ["offcputime"]}
    return LIKE.model_copy(update={**kept, "id": id, **changes})


def waits(code: str, **more: Any) -> list[Pattern]:
    return [Pattern(kind="path.wait", attributes={"wait": [code]}, **more)]


CAUSES = {
    "asleep": cause("asleep", primary=waits("sleep"), ordinary=True),
    "disk": cause("disk", primary=waits("file")),
    "pause": cause("pause", primary=[Pattern(kind="path.pause")], symptoms=[["periodic"]], stall_pct=2),
}


def judge(*findings: Finding, symptom: str = "") -> Conclusion:
    causes = considered_for(CAUSES, symptom)
    return conclude(causes, assess(causes, findings, ME, ["offcputime"]), findings, ME, [])


def test_rows_of_the_path_add_up_and_other_accounts_of_the_same_time_do_not() -> None:
    rows = [row("path.wait", 30, "a"), row("path.running", 20, "b")]
    assert combined_share(rows) == pytest.approx(50)
    again = [row("offcpu.blocked", 29, "c"), row("path.pause", 45, "d", function="f"), row("path.loop_lag", 12, "e")]
    assert combined_share([*rows, *again]) == pytest.approx(50)


@pytest.mark.parametrize(
    ("sleep", "file", "symptom", "expected"),
    [
        (75, 0, "", None),  # healthy programs sleep
        (75, 0, "it is slow", "asleep"),
        (75, 7, "it is slow", "asleep"),
        (75, 15, "it is slow", "disk"),
        (75, 7, "", "disk"),
    ],
)
def test_an_ordinary_cause_needs_a_symptom_and_does_not_lead_over_another(
    sleep: float, file: float, symptom: str, expected: str | None
) -> None:
    found = judge(row("path.wait", sleep, "s", wait="sleep"), row("path.wait", file, "f", wait="file"), symptom=symptom)
    assert found.cause == expected
    if expected == "asleep":
        assert found.explained_pct == pytest.approx(sleep)


@pytest.mark.parametrize(("symptom", "expected"), [("pauses periodically", "pause"), ("it is slow", "asleep")])
def test_a_short_pause_explains_the_symptom_of_pauses(symptom: str, expected: str) -> None:
    found = judge(row("path.wait", 75, "s", wait="sleep"), row("path.pause", 4.6, "p"), symptom=symptom)
    assert found.cause == expected


def test_rows_of_other_parts_of_the_time_are_no_rivals() -> None:
    causes = {"disk": CAUSES["disk"], "peer": cause("peer", primary=waits("socket"))}
    findings = [row("path.wait", 15, "f", wait="file"), row("path.wait", 14, "s", wait="socket")]
    found = conclude(causes, assess(causes, findings, ME, ["offcputime"]), findings, ME, [])
    assert "rivals_open" not in found.missing


def test_findings_about_a_thread_that_the_victim_waits_for_concern_the_victim() -> None:
    pattern = Pattern(kind="path.waker")
    assert matches(pattern, row("path.waker", 20, "w", tid="4711", waiter="train (4000)"), ME)
    assert not matches(pattern, row("path.waker", 20, "w", tid="4000", waiter="train (4711)"), ME)


def test_a_value_may_be_excluded() -> None:
    lock = row("path.wait", 20, "l", wait="lock", role="collective")
    assert matches(waits("lock")[0], lock, ME)
    assert not matches(waits("lock", unless={"role": ["coll*"]})[0], lock, ME)
    assert matches(waits("lock", unless={"role": ["", "data_loader"]})[0], lock, ME)
