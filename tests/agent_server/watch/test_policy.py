"""Whether a stall becomes a ticket."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from whystall.agent_server.watch.investigate import saw_the_stall
from whystall.agent_server.watch.policy import decide, not_explaining
from whystall.agent_server.watch.progress import Kind, Stall
from whystall.agent_server.watch.requests import Answer, Request
from whystall.agent_server.watch.rhythm import NS
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Assessment, CauseState, Diagnosis, Verdict
from whystall.tools.contract.findings import Severity
from whystall.tools.contract.result import Coverage

GAP = Stall("gap", 7, 100 * NS, 102 * NS, NS // 5, place=9, waited_ns=2 * NS)
LONG = replace(GAP, end_ns=130 * NS, waited_ns=29 * NS)
BUSY = replace(GAP, place=0, waited_ns=3 * NS // 2, runnable_ns=3 * NS // 2, starved=1.2)
STARVED = replace(BUSY, starved=8.0)


def diagnosed(verdict: str, cause: str | None, share: float = 90.0) -> Diagnosis:
    return Diagnosis(
        id="d",
        created="2026-01-01T00:00:00Z",
        target="pid 7",
        symptom="",
        verdict=Verdict(verdict),
        cause=cause,
        severity=Severity.MAJOR,
        victim=None,
        culprit=None,
        explained_pct=90.0,
        chain=[],
        assessments=[Assessment(cause=cause, state=CauseState.SUPPORTED, window_pct=share)] if cause else [],
        missing=[],
        findings=[],
        steps=[],
        coverage=[],
        artifacts=[],
        recording=None,
    )


def action(stall: Stall, verdict: str, cause: str | None, share: float = 90.0) -> tuple[str, str]:
    diagnosis = diagnosed(verdict, cause, share)
    decision = decide(diagnosis, load_causes()[cause] if cause else None, stall, 200 * NS)
    return decision.action, decision.why


@pytest.mark.parametrize(
    ("stall", "verdict", "cause", "expected"),
    [
        (GAP, "confirmed", "file_lock_held", ("ticket", "cause_found")),
        (GAP, "likely", "file_lock_held", ("ticket", "cause_found")),
        (GAP, "inconclusive", "file_lock_held", ("log", "no_cause")),
        (GAP, "inconclusive", None, ("log", "no_cause")),
        (LONG, "inconclusive", None, ("ticket", "no_cause_but_long")),
        (replace(LONG, waited_ns=NS), "inconclusive", None, ("log", "no_cause")),
        (replace(GAP, end_ns=None), "inconclusive", None, ("ticket", "no_cause_but_long")),
        (LONG, "healthy", None, ("log", "no_fault")),
        (GAP, "idle", None, ("log", "no_fault")),
        (GAP, "likely", "own_hot_code", ("log", "own_work")),
        (replace(GAP, phase=True), "likely", "slow_file_read", ("log", "phase")),
        (replace(GAP, phase=True), "confirmed", "slow_file_read", ("ticket", "cause_found")),
        (BUSY, "likely", "cpu_contention", ("log", "busy_as_usual")),
        (STARVED, "likely", "cpu_contention", ("ticket", "cause_found")),
        (BUSY, "likely", "memory_reclaim", ("ticket", "cause_found")),
    ],
)
def test_the_action(stall: Stall, verdict: str, cause: str | None, expected: tuple[str, str]) -> None:
    assert action(stall, verdict, cause) == expected


@pytest.mark.parametrize("kind", ["gap", "late", "wait"])
def test_a_cause_that_takes_little_of_the_stall_is_not_named(kind: Kind) -> None:
    stall = replace(GAP, kind=kind)
    assert action(stall, "confirmed", "slow_file_read", 30.0) == ("log", "weak")
    assert action(stall, "likely", "slow_file_read", 60.0) == ("ticket", "cause_found")


SIGNAL = replace(GAP, kind="signal", waited_ns=0, place=0)


@pytest.mark.parametrize(
    ("stall", "cause", "expected"),
    [
        (SIGNAL, "file_lock_held", ("ticket", "cause_found")),
        (SIGNAL, "garbage_collection", ("ticket", "cause_found")),
        (SIGNAL, "own_hot_code", ("log", "own_work")),
        (replace(SIGNAL, end_ns=190 * NS), "own_hot_code", ("ticket", "own_work_too_long")),
        (replace(SIGNAL, end_ns=None), "own_hot_code", ("ticket", "own_work_too_long")),
        (replace(SIGNAL, end_ns=190 * NS, usual_ns=30 * NS), "own_hot_code", ("log", "own_work")),
    ],
)
def test_the_programs_own_work_is_worth_a_ticket_only_if_a_named_sign_stays_away_for_long(
    stall: Stall, cause: str, expected: tuple[str, str]
) -> None:
    assert action(stall, "likely", cause) == expected


@pytest.mark.parametrize(("times", "why"), [(1.2, "busy_as_usual"), (8.0, "cause_found"), (None, "cause_found")])
def test_a_thread_that_is_awaited_and_lacks_a_cpu_as_before_is_no_cause(times: float | None, why: str) -> None:
    """A worker decodes one file for long on a host that is as busy as before."""
    decided = decide(diagnosed("likely", "cpu_contention"), load_causes()["cpu_contention"], GAP, 200 * NS, times)
    assert decided.why == why


def test_a_pause_in_which_the_thread_ran_does_not_excuse_the_next_one() -> None:
    ran = replace(GAP, place=0, waited_ns=0)
    decision = decide(diagnosed("likely", "own_hot_code"), load_causes()["own_hot_code"], ran, 200 * NS)
    assert (decision.why, decision.usual) == ("own_work", False)


def test_on_a_busy_host_another_cause_is_examined_if_the_thread_was_blocked_for_unusually_long() -> None:
    causes = load_causes()
    polling = replace(BUSY, unusual_ns=NS)
    assert "cpu_contention" in not_explaining(polling, causes)
    assert "interpreter_lock_contention" not in not_explaining(polling, causes)
    assert causes.keys() - not_explaining(BUSY, causes) == {"garbage_collection", "own_hot_code"}
    assert not not_explaining(replace(polling, starved=8.0), causes)
    # blocked for most of it, by another thread that has no CPU
    blocked = replace(GAP, runnable_ns=NS // 5)
    assert action(blocked, "likely", "cpu_contention", 90.0) == ("ticket", "cause_found")
    assert action(blocked, "likely", "cpu_contention", 30.0) == ("log", "busy_as_usual")
    # 75 % of the pause it had no CPU as usual, nearly all else was the lock
    assert action(polling, "likely", "interpreter_lock_contention", 22.0) == ("ticket", "cause_found")
    assert action(polling, "likely", "interpreter_lock_contention", 5.0) == ("log", "weak")


def test_requests_and_answers_survive_as_json() -> None:
    request = Request("run:1", "llama", 7, (7,), 3, GAP, 1, 2, 3, "/slices", "/recording", 7, 6.0, "d0", False)
    assert Request.from_json(request.to_json()) == request
    answer = Answer("d", "likely", "file_lock_held", "major", "ticket", "cause_found", ticket="4", new=True)
    assert Answer.from_json(answer.to_json()) == answer
    with pytest.raises((ValueError, TypeError)):
        Answer.from_json('{"unknown": 1}')


@pytest.mark.parametrize(
    ("began_s", "ended_s", "counts"), [(10.0, 3.0, True), (10.0, 7.5, False), (10.0, 9.9, False), (10.0, None, True)]
)
def test_a_look_that_began_after_the_stall_is_no_evidence(began_s: float, ended_s: float | None, counts: bool) -> None:
    now = time.monotonic_ns()
    start, end = (None if ago is None else now - int(ago * NS) for ago in (began_s, ended_s))
    assert start is not None
    since = datetime.now(timezone.utc) - timedelta(seconds=8)
    window = Coverage(
        recording="",
        host="h",
        kernel="6",
        start=since.isoformat(),
        window_s=6.0,
        requested_s=6.0,
        target="pid 7",
        collectors=[],
    )
    look = diagnosed("confirmed", "cpu_contention").model_copy(update={"coverage": [window]})
    assert saw_the_stall(look, replace(GAP, start_ns=start, end_ns=end)) is counts
