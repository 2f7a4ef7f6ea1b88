"""The level of detail of a continuous recording follows its cost, process by process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from whystall.bpf.continuous import Detail, HookTime
from whystall.tools.collect.continuous_budget import Budget, Cost, Limits
from whystall.tools.collect.continuous_levels import LAST

S = 1_000_000_000
MS = 1_000_000
A, B = 812, 815


class Session:
    """The kernel side, at the interface that a budget uses: hooks and processes that run for a part of the time."""

    def __init__(self) -> None:
        self.ran_ns, self.run_ns = 0.0, 100
        self.hooks_ns: dict[int, float] = {}
        self.jobs_ns: dict[int, float] = {}
        self.details: Sequence[Detail] = ()
        self.look_min_ns = 0
        self.levels: dict[int, int] = {}
        self.sample_one_in = 0
        self.begun: dict[int, float] | None = None

    def set_details(self, details: Sequence[Detail], look_min_ns: int) -> None:
        self.details, self.look_min_ns = details, look_min_ns

    def limit(self, levels: Mapping[int, int], sample_one_in: int) -> None:
        self.levels, self.sample_one_in = dict(levels), sample_one_in

    def level_of(self, pid: int) -> int:
        return self.levels.get(pid, 0)

    def measure(self, on: bool) -> dict[int, HookTime]:
        begun, self.begun = self.begun, dict(self.hooks_ns) if on else None
        taken = {pid: int(ns - (begun or {}).get(pid, 0)) for pid, ns in self.hooks_ns.items()}
        return {pid: HookTime(ns, ns // self.run_ns) for pid, ns in taken.items()} if begun is not None else {}

    def job_times_ns(self) -> dict[int, int]:
        return {pid: int(ns) for pid, ns in self.jobs_ns.items()}

    def run_time_ns(self) -> int:
        return int(self.ran_ns)


class Run:
    """A recording of processes, each with a cost of its hooks by level and a CPU time (shares of a core), for some
    seconds of a clock of its own. `others`: what the programs take beside."""

    def __init__(self, own: float = 0.001, job: float = 8.0) -> None:
        self.now, self.own, self.others = S, own, 0.0
        self.jobs = {A: job}
        self.session = Session()
        self.budget = Budget(Limits(), clock=lambda: self.now, statistics=lambda: None)
        self.budget.start(self.session)
        self.events = self.lost = 0

    def go(self, seconds: int, programs: Sequence[float], more: Sequence[float] = (0.0,)) -> Run:
        """`programs`: of process A by its level, `more`: of B."""
        session = self.session
        for _ in range(seconds):
            self.now += S
            for pid, costs in ((A, programs), (B, more)):
                if pid in self.jobs:
                    took = S * costs[min(session.levels.get(pid, 0), len(costs) - 1)]
                    session.hooks_ns[pid] = session.hooks_ns.get(pid, 0) + took
                    session.jobs_ns[pid] = session.jobs_ns.get(pid, 0) + S * self.jobs[pid]
                    session.ran_ns += took
            session.ran_ns += S * self.others
            self.budget.spend(int(S * self.own))
            self.events += 100
            self.budget.check(session, self.events, self.lost)
        return self

    def cost(self) -> Cost:
        return self.budget.cost(memory_bytes=0, disk_bytes=0, lost=self.lost, longest_cut_ns=0, notes=())


def test_a_cheap_recording_keeps_its_detail() -> None:
    run = Run().go(600, [0.005])
    cost = run.cost()
    assert (round(cost.user_share, 4), round(cost.kernel_share, 4)) == (0.001, 0.005)
    assert round(cost.events_per_s) == 100
    assert (cost.reasons, cost.lowered, cost.min_ns) == ((), {}, MS)
    assert (run.session.levels, run.session.sample_one_in) == ({A: 0}, 1)
    assert run.session.details[0] == Detail(MS, MS, 0)
    assert (len(run.session.details), run.session.look_min_ns) == (LAST, 1000 * MS)


def test_an_expensive_one_loses_detail_until_it_is_cheap() -> None:
    run = Run().go(120, [0.05, 0.02, 0.005])
    assert run.session.levels == {A: 2}
    assert run.budget.min_ns_of(A) == 2 * MS
    assert run.budget.min_ns_of(B) == MS
    assert len(run.cost().reasons) == 2
    assert "less detail of process 812 at 5.10 % of a core" in run.cost().reasons[0]


def test_far_above_the_limit_detail_is_lost_soon() -> None:
    assert Run().go(10, [0.015]).session.levels == {A: 0}
    assert Run().go(10, [0.09]).session.levels == {A: 1}


def test_all_that_it_costs_stays_below_the_limit_with_a_margin() -> None:
    assert Run(own=0.003).go(120, [0.0055, 0.003]).session.levels == {A: 0}
    run = Run(own=0.003).go(120, [0.0065, 0.003])
    assert run.session.levels == {A: 1}
    assert run.cost().cpu_share < 0.009


def test_who_ended_long_waits_is_recorded_as_long_as_switches_are_hooked() -> None:
    run = Run().go(300, [0.5, 0.5, 0.5, 0.5, 0.005])
    assert run.session.levels == {A: LAST - 1}
    assert run.session.details[LAST - 1].wake_min_ns == 100 * MS


def test_at_the_last_level_no_switch_is_hooked() -> None:
    run = Run().go(300, [0.015])
    assert run.session.levels == {A: LAST} == {A: len(run.session.details)}
    assert run.cost().lowered == {A: 1000 * MS}


def test_a_process_is_delayed_by_a_small_share_of_its_own_time() -> None:
    assert Run(own=0.0005, job=1.0).go(120, [0.0065]).session.levels == {A: 0}
    run = Run(own=0.0005, job=0.4).go(60, [0.008, 0.0024])
    run.jobs[A] = 0.0  # it stalls
    run.go(120, [0.008, 0.0024])
    assert run.session.levels == {A: 1}
    assert "less detail of process 812 at 2.00 % of its CPU time" in run.cost().reasons[0]
    assert run.cost().job_share == pytest.approx(0.006)


def test_one_that_switches_much_loses_detail_and_others_keep_theirs() -> None:
    run = Run(job=1.0)
    run.jobs[B] = 0.1
    run.go(300, [0.003], [0.004, 0.003, 0.002, 0.0015, 0.0012, 0.0])
    assert run.session.levels == {A: 0, B: LAST}
    assert run.session.sample_one_in == 1
    assert run.cost().lowered == {B: 1000 * MS}
    assert all(f"process {B} " in reason for reason in run.cost().reasons)


def test_one_that_switches_seldom_keeps_its_hooks_whatever_a_switch_costs() -> None:
    run = Run(job=0.01)
    run.session.run_ns = 20_000
    assert run.go(300, [0.004]).session.levels == {A: LAST - 1}


def test_the_costliest_lose_detail_when_all_of_it_is_too_much() -> None:
    run = Run()
    run.jobs[B] = 8.0
    run.go(60, [0.002], [0.009, 0.003])
    assert run.session.levels == {A: 0, B: 1}


def test_if_the_switches_of_others_cost_too_much_nothing_is_hooked() -> None:
    run = Run()
    run.jobs[B] = 8.0
    run.others = 0.012
    run.go(400, [0.001], [0.002])
    assert run.session.levels == {A: LAST, B: LAST}


def test_a_new_process_begins_with_the_detail_that_the_kernel_side_gave_it() -> None:
    run = Run().go(60, [0.002])
    run.session.levels[B] = 3
    run.jobs[B] = 1.0
    assert run.go(30, [0.002], [0.002]).session.levels == {A: 0, B: 3}
    del run.jobs[A], run.session.jobs_ns[A]
    assert run.go(30, [0.002], [0.002]).session.levels == {B: 3}


def test_little_is_always_allowed_beside_a_job_that_sleeps() -> None:
    assert Run(job=0.0).go(120, [0.0003]).session.levels == {A: 0}


def test_detail_that_was_too_much_before_comes_back_later_each_time() -> None:
    run = Run().go(60, [0.05, 0.002])
    run.go(400, [0.05, 0.002])  # raised after 300 s, and lowered
    assert len(run.cost().reasons) == 3
    run.go(400, [0.05, 0.002])
    assert len(run.cost().reasons) == 3


def test_detail_comes_back_after_some_calm_minutes() -> None:
    run = Run().go(60, [0.05, 0.002])
    assert run.session.levels == {A: 1}
    assert run.go(200, [0.002]).session.levels == {A: 1}
    assert run.go(200, [0.002]).session.levels == {A: 0}
    assert "more detail of process 812" in run.cost().reasons[-1]


def test_a_moment_of_load_changes_nothing() -> None:
    run = Run().go(60, [0.002])
    assert run.go(2, [0.2]).go(60, [0.002]).session.levels == {A: 0}


def test_lost_events_lower_the_detail() -> None:
    run = Run().go(60, [0.002])
    run.lost = 7
    assert run.go(1, [0.002]).session.levels == {A: 1}
    assert "7 events lost" in run.cost().reasons[0]


def test_what_was_asked_for_does_not_count() -> None:
    run = Run()
    run.budget.spend(10 * S, asked=True)
    assert run.go(60, [0.002]).session.levels == {A: 0}
