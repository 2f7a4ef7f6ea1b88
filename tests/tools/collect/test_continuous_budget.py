"""The level of detail of a continuous recording follows its cost."""

from __future__ import annotations

import pytest

from whystall.tools.collect.continuous_budget import LEVELS, Budget, Cost, Limits

S = 1_000_000_000
MS = 1_000_000


class Session:
    """The kernel side, at the interface that a budget uses: its programs, and the job, run for a part of the time."""

    def __init__(self) -> None:
        self.ran_ns = self.job_ns = 0.0
        self.limits: dict[str, int] = {}
        self.processes = 1

    def job_processes(self) -> int:
        return self.processes

    def job_time_ns(self) -> int:
        return int(self.job_ns)

    def run_time_ns(self) -> int:
        return int(self.ran_ns)

    def limit(self, **limits: int) -> None:
        self.limits = limits


class Run:
    """A recording with a cost by level (shares of a core), for some seconds of a clock of its own."""

    def __init__(self, own: float = 0.001, job: float = 8.0) -> None:
        self.now, self.own, self.job = S, own, job
        self.session = Session()
        self.budget = Budget(Limits(), clock=lambda: self.now, statistics=lambda: None)
        self.budget.start(self.session)
        self.events = self.lost = 0

    def go(self, seconds: int, programs: list[float]) -> Run:
        for _ in range(seconds):
            self.now += S
            self.session.ran_ns += S * programs[min(self.budget.level, len(programs) - 1)]
            self.session.job_ns += S * self.job
            self.budget.spend(int(S * self.own))
            self.events += 100
            self.budget.check(self.session, self.events, self.lost)
        return self

    def cost(self) -> Cost:
        return self.budget.cost(memory_bytes=0, disk_bytes=0, lost=self.lost, longest_cut_ns=0, notes=())


def test_a_cheap_recording_keeps_its_detail() -> None:
    run = Run().go(600, [0.005])
    assert run.budget.level == 0
    cost = run.cost()
    assert (round(cost.user_share, 4), round(cost.kernel_share, 4)) == (0.001, 0.005)
    assert round(cost.events_per_s) == 100
    assert cost.reasons == ()
    assert run.session.limits == {"min_ns": MS, "wake_min_ns": MS, "sample_one_in": 1, "reuse_ns": 0, "looks": False}


def test_an_expensive_one_loses_detail_until_it_is_cheap() -> None:
    run = Run().go(120, [0.05, 0.02, 0.005])
    assert run.budget.level == 2
    assert run.session.limits["min_ns"] == 2 * MS
    assert len(run.cost().reasons) == 2
    assert "less detail at 5.10 % of a core" in run.cost().reasons[0]


def test_far_above_the_limit_detail_is_lost_soon() -> None:
    assert Run().go(10, [0.015]).budget.level == 0
    assert Run().go(10, [0.09]).budget.level == 1


def test_who_ended_long_waits_is_recorded_as_long_as_switches_are_hooked() -> None:
    run = Run().go(300, [0.5, 0.5, 0.5, 0.5, 0.005])
    assert run.session.limits["wake_min_ns"] == 100 * MS
    assert not run.session.limits["looks"]


def test_at_the_last_level_no_switch_is_hooked() -> None:
    run = Run().go(300, [0.5])
    assert run.budget.level == len(LEVELS) - 1
    assert run.session.limits["looks"]


def test_a_little_above_the_limit_of_a_core_switches_stay_hooked() -> None:
    run = Run().go(300, [0.015])
    assert run.budget.level == len(LEVELS) - 2
    assert not run.session.limits["looks"]


def test_the_programs_take_a_small_share_of_the_time_of_the_job() -> None:
    assert Run(job=1.0).go(120, [0.008]).budget.level == 0
    run = Run(job=0.4).go(60, [0.008, 0.0032])
    run.job = 0.0  # it stalls
    run.go(120, [0.008, 0.0032])
    assert run.budget.level == 1
    assert "less detail at 2.00 % of the job's CPU time" in run.cost().reasons[0]
    assert run.cost().job_share == pytest.approx(0.008)


def test_many_processes_that_wait_share_what_the_programs_take() -> None:
    run = Run(job=0.3)
    run.session.processes = 5
    assert run.go(120, [0.008]).budget.level == 0


def test_little_is_always_allowed_beside_a_job_that_sleeps() -> None:
    assert Run(job=0.0).go(120, [0.004]).budget.level == 0


def test_detail_that_was_too_much_before_comes_back_later_each_time() -> None:
    run = Run().go(60, [0.05, 0.002])
    run.go(400, [0.05, 0.002])  # raised after 300 s, and lowered
    assert len(run.cost().reasons) == 3
    run.go(400, [0.05, 0.002])
    assert len(run.cost().reasons) == 3


def test_detail_comes_back_after_some_calm_minutes() -> None:
    run = Run().go(60, [0.05, 0.002])
    assert run.budget.level == 1
    assert run.go(200, [0.002]).budget.level == 1
    assert run.go(200, [0.002]).budget.level == 0


def test_a_moment_of_load_changes_nothing() -> None:
    run = Run().go(60, [0.002])
    assert run.go(2, [0.2]).go(60, [0.002]).budget.level == 0


def test_lost_events_lower_the_detail() -> None:
    run = Run().go(60, [0.002])
    run.lost = 7
    assert run.go(1, [0.002]).budget.level == 1
    assert "7 events lost" in run.cost().reasons[0]


def test_what_was_asked_for_does_not_count() -> None:
    run = Run()
    run.budget.spend(10 * S, asked=True)
    assert run.go(60, [0.002]).budget.level == 0
