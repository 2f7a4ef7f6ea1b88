"""When a stall is investigated, and how many are."""

from __future__ import annotations

from dataclasses import replace

from whystall.agent_server.watch.cases import SETTLE_NS, CaseLimits, Cases
from whystall.agent_server.watch.jobs import WatchedJob
from whystall.agent_server.watch.progress import Stall
from whystall.agent_server.watch.rhythm import NS

JOB = WatchedJob("run:1", "llama", {10: 1, 11: 1, 12: 1})
OTHER = WatchedJob("run:2", "bert", {20: 1})


def gap(start_s: float, end_s: float | None, place: int = 5, pid: int = 10) -> Stall:
    return Stall(
        "gap", pid, int(start_s * NS), None if end_s is None else int(end_s * NS), NS // 5, place=place, waited_ns=NS
    )


def test_a_stall_is_investigated_soon_after_its_end() -> None:
    cases = Cases(CaseLimits())
    case = cases.add(JOB, 10, gap(1, None), 3 * NS)
    assert cases.due(4 * NS) is None
    assert cases.add(JOB, 10, gap(1, 4), 4 * NS) is case
    assert cases.due(4 * NS + SETTLE_NS // 2) is None
    assert cases.due(4 * NS + SETTLE_NS) is case


def test_a_stall_that_lasts_is_looked_at_once_and_again_as_a_hang() -> None:
    cases = Cases(CaseLimits(look_after_s=4, hang_after_s=60))
    case = cases.add(JOB, 10, gap(1, None), 3 * NS)
    assert cases.due(8 * NS) is case
    case.looked = "d1"
    assert cases.due(50 * NS) is None
    assert not cases.is_hang(case, 50 * NS)
    assert cases.due(62 * NS) is case
    assert cases.is_hang(case, 62 * NS)


def test_a_thread_at_work_is_not_looked_at_while_it_shows_no_waits() -> None:
    cases = Cases(CaseLimits())
    case = cases.add(JOB, 10, gap(1, None), 3 * NS)
    case.ran = True
    assert cases.due(100 * NS) is None


def test_a_usual_pause_may_take_its_time() -> None:
    cases = Cases(CaseLimits(look_after_s=4))
    case = cases.add(JOB, 10, gap(1, None), 3 * NS)
    assert cases.due(20 * NS, allowance_ns=30 * NS) is None
    assert cases.due(34 * NS, allowance_ns=30 * NS) is case


def test_ranks_that_stall_together_are_one_case_about_the_one_that_is_elsewhere() -> None:
    cases = Cases(CaseLimits())
    for pid, place in ((10, 5), (11, 7), (12, 5)):
        cases.add(JOB, pid, gap(1 + pid / 100, 4, place, pid), 4 * NS)
    cases.add(OTHER, 20, gap(1, 4), 4 * NS)
    assert len(cases.open) == 2
    case = cases.due(6 * NS)
    assert case is not None
    assert case.main()[0] == 11
    case.tried.add(11)
    assert case.main()[0] in (10, 12), "whose waits lead to what that one did"


def test_stalls_one_after_the_other_are_two_cases() -> None:
    cases = Cases(CaseLimits())
    first = cases.add(JOB, 10, gap(1, 4), 4 * NS)
    assert cases.add(JOB, 10, gap(9, 12), 12 * NS) is not first
    assert cases.add(JOB, 10, gap(4, 6), 12 * NS) is not first, "it began when the first ended"


def test_a_blocked_thread_comes_before_one_that_ran_and_few_of_those_are_investigated() -> None:
    cases = Cases(CaseLimits(busy_per_job=1))
    busy = cases.add(JOB, 10, replace(gap(1, 3), waited_ns=0), 3 * NS)
    again = cases.add(JOB, 10, replace(gap(4, 6), waited_ns=0), 6 * NS)
    blocked = cases.add(OTHER, 20, gap(1, 3), 3 * NS)
    starved = cases.add(OTHER, 20, replace(gap(4, 6), waited_ns=0, starved=5.0), 6 * NS)
    order = []
    while (case := cases.due(9 * NS)) is not None:
        order.append((case, case.skipped))
        cases.drop(case)
    assert order[0] == (blocked, "")
    assert (again, "limit_of_own_work") in order or (busy, "limit_of_own_work") in order
    assert (starved, "") in order


def test_a_thread_that_lacks_a_cpu_as_usual_is_not_investigated_and_one_that_is_at_work_is() -> None:
    cases = Cases(CaseLimits())
    cases.add(JOB, 10, replace(gap(1, 4), waited_ns=2 * NS, runnable_ns=2 * NS), 4 * NS)
    first = cases.due(9 * NS)
    assert first is not None
    assert first.skipped == "busy_as_usual"
    cases.drop(first)
    cases.add(JOB, 10, replace(gap(11, 14), waited_ns=NS // 2, runnable_ns=NS // 2), 14 * NS)
    second = cases.due(19 * NS)
    assert second is not None
    assert second.skipped == ""


def test_investigations_per_hour_are_bounded_by_job_and_host() -> None:
    cases = Cases(CaseLimits(per_job=2, per_host=3))
    skipped = []
    for number, job in enumerate((JOB, JOB, JOB, OTHER, OTHER)):
        cases.add(job, 10, gap(10 * number, 10 * number + 3), (10 * number + 3) * NS)
        case = cases.due((10 * number + 6) * NS)
        assert case is not None
        skipped.append(case.skipped)
        cases.drop(case)
    assert skipped == ["", "", "limit_of_job", "", "limit_of_host"]
    cases.add(JOB, 10, gap(4000, 4003), 4003 * NS)
    later = cases.due(4006 * NS)
    assert later is not None
    assert later.skipped == ""
