"""Ranks that are slow in some steps only: named with their steps, and no healthy job accused."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import polars as pl
import pytest
from rank_jobs import Fault, Plan, simulate

from whystall.agent_server.presentation.headlines import headline_of
from whystall.tools.contract.findings import Polarity
from whystall.tools.contract.registry import Judgement
from whystall.tools.ranks.slow_node_check.grid import Grid
from whystall.tools.ranks.slow_node_check.intermittent import intermittent
from whystall.tools.ranks.slow_node_check.tables import Data
from whystall.tools.ranks.slow_node_check.tool import TOOL, Params, judge
from whystall.tools.ranks.statistics import placement, probability
from whystall.tools.ranks.statistics.correlation import half_life, serial, unbiased, widened
from whystall.tools.ranks.statistics.trend import trend
from whystall.tools.recording.store import Recording

pytestmark = pytest.mark.thorough

SLOW = 1


def check(ranks: int, steps: int, seed: int, *faults: Fault, **recorded: Any) -> Judgement[Data]:
    plan = Plan(ranks=ranks, steps=steps, seed=seed, layers=1, faults=faults, **recorded)
    return judge(simulate(plan).recording, Params(top=200))


def fault(shape: str, steps: int, rank: int = SLOW) -> Fault:
    """The four faults of a step of about 43 ms."""
    return {
        "period": Fault("compute", (rank,), ms=25, period=5),
        "start": Fault("gap", (rank,), ms=40, until=3),
        "stretch": Fault("loader", (rank,), ms=25, since=steps // 3, until=steps // 3 + steps // 4),
        "drift": Fault("compute", (rank,), growth_ms=0.43),
    }[shape]


def steps_of(of: Fault, steps: int) -> set[int]:
    return {step for step in range(steps) if of.hits(of.ranks[0], step)}


NOISE = {
    "quiet": {"step_jitter": 0.03},
    "stalls": {"step_jitter": 0.05, "stalls": 0.01, "stall_ms": 12.0},
    "loud": {"step_jitter": 0.1},
}
CLASSES = {"period": "compute_slow", "start": "host_slow", "stretch": "loader_slow", "drift": "compute_slow"}


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("shape", CLASSES)
def test_the_rank_and_its_steps_are_named(shape: str, noise: str) -> None:
    # a single short event is seldom at the start of many steps by chance, but often at that of few
    for ranks, steps, seed in ((4, 200, 1), (8, 160, 2)) if shape == "start" else ((4, 60, 1), (8, 80, 2)):
        put_in = fault(shape, steps, seed)
        data = check(ranks, steps, seed, put_in, **NOISE[noise]).data
        assert (data.verdict, [row.rank for row in data.accused]) == ("intermittent", [seed]), data.reasons
        (row,) = data.accused
        assert row.slow_steps is not None
        assert (row.slow_steps.shape, row.slow_class) == (shape, CLASSES[shape])
        named = set(row.slow_steps.steps)
        assert len(named - steps_of(put_in, steps)) <= 1  # a stall beside one of them
        if shape == "period":
            assert row.slow_steps.period == 5
        if shape == "drift":
            assert row.slow_steps.growth_pct == pytest.approx(1.0, rel=0.4)
        else:
            assert len(named) >= 0.7 * len(steps_of(put_in, steps))
            assert row.lost_ms_per_step == pytest.approx(put_in.ms, rel=0.35)
        assert row.slow_steps.lost_ms == pytest.approx(row.slow_steps.count * (row.lost_ms_per_step or 0))


@pytest.mark.parametrize(
    ("ranks", "steps", "shape"),
    [
        *((ranks, 20, "period") for ranks in (2, 4, 32)),
        *((8, 60, shape) for shape in ("stretch", "drift")),
        *((2, 200, shape) for shape in ("start", "stretch")),
    ],
)
def test_nine_of_ten_seeds_are_named_and_nobody_else(ranks: int, steps: int, shape: str) -> None:
    right = 0
    for seed in range(10):
        slow = seed % ranks
        data = check(ranks, steps, seed, fault(shape, steps, slow), **NOISE["quiet"]).data
        assert {row.rank for row in data.accused} <= {slow}
        right += data.verdict == "intermittent"
    assert right >= 9


@pytest.mark.parametrize("shape", ["start", "stretch"])
def test_a_single_event_in_few_steps_is_undecided(shape: str) -> None:
    """Neither healthy nor an accusation: a healthy rank may stall once, for some steps."""
    data = check(4, 20, 1, fault(shape, 20), **NOISE["quiet"]).data
    assert (data.verdict, data.accused, data.reasons) == ("cannot_tell", [], ["few_slow_steps", *data.reasons[1:]])
    assert data.detectable_pct is not None
    for lang, text in (("en", "too few steps to tell a fault from chance"), ("zh", "步数太少")):
        assert text in "\n".join(headline_of("slow_node_check", data, lang))


HEALTHY: dict[str, dict[str, Any]] = {
    "loud": {"step_jitter": 0.1},
    "heavy-tailed stalls of random ranks": {"step_jitter": 0.05, "stalls": 0.03, "stall_ms": 15.0},
    "all ranks warm up": {"step_jitter": 0.1, "warm_up": 3},
    "all ranks evaluate": {"step_jitter": 0.08, "shared_every": 10},
    "one shared slow step": {"step_jitter": 0.08, "warm_up": 1, "shared_factor": 8.0},
    "a busy host": {"step_jitter": 0.1, "spells": 0.6},
    "a very busy host": {"step_jitter": 0.15, "spells": 0.8},
    "stalls of several steps": {"step_jitter": 0.05, "stalls": 0.01, "stall_steps": 4},
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_a_healthy_job_accuses_no_rank(kind: str) -> None:
    for ranks, steps in ((2, 20), (4, 50)):
        for seed in range(2):
            result = check(ranks, steps, seed + 50, **HEALTHY[kind])
            assert result.data.verdict in ("none", "cannot_tell", "moving")
            assert not result.data.accused


def test_pauses_that_every_rank_makes_at_its_own_steps_are_nobodys_fault() -> None:
    pauses = tuple(Fault("gap", (rank,), ms=30, since=2 + 3 * rank, period=12) for rank in range(4))
    data = check(4, 96, 1, *pauses, step_jitter=0.03).data
    assert (data.verdict, data.accused) == ("moving", [])


def test_two_ranks_that_are_slow_at_times() -> None:
    both = (Fault("compute", (1,), ms=30, period=7), Fault("gap", (3,), ms=30, since=20, until=34))
    data = check(8, 70, 1, *both, step_jitter=0.03).data
    assert (data.verdict, {row.rank for row in data.accused}) == ("intermittent", {1, 3})


def test_a_rank_that_is_always_slow_is_not_intermittent_and_may_stand_beside_one_that_is() -> None:
    data = check(8, 50, 1, Fault("compute", (1,), ms=15), Fault("gap", (3,), ms=60, period=10)).data
    shapes = {row.rank: row.slow_steps and row.slow_steps.shape for row in data.accused}
    assert shapes == {1: None, 3: "period"}


# --- conditions -----------------------------------------------------------------------------------------------------


def board(own: list[list[float]], wait: list[list[float]] | None = None, work: bool = True) -> Grid:
    """Ranks in columns, steps in rows; they wait for the slowest unless `wait` is given."""
    names = [str(rank) for rank in range(len(own[0]))]
    frame = pl.DataFrame(own, schema=names, orient="row")
    waits = frame.select((pl.max_horizontal(pl.all()) - pl.col(name)).alias(name) for name in names)
    if wait is not None:
        waits = pl.DataFrame(wait, schema=names, orient="row")
    return Grid(tuple(range(len(names))), tuple(range(len(own))), frame, waits, frame if work else None, 100.0)


def checkpoints(steps: int = 40) -> list[list[float]]:
    dice = random.Random(1)
    return [
        [70 + dice.gauss(0, 1) + (40 if rank == 0 and step % 10 == 9 else 0) for rank in range(4)]
        for step in range(steps)
    ]


def test_checkpoints_of_rank_0_are_a_loss_if_the_others_wait_for_them() -> None:
    (found,) = intermittent(board(checkpoints()), 10.0).found
    assert (found.rank, found.shape, found.period, found.rows) == (0, "period", 10, (9, 19, 29, 39))
    assert found.lost_ns == pytest.approx(160, rel=0.1)


def test_checkpoints_that_nobody_waits_for_are_no_loss() -> None:
    own = checkpoints()
    assert intermittent(board(own, [[0.0] * 4 for _ in own]), 10.0).found == []


def test_work_behind_the_last_collective_is_waited_for_in_the_next_step() -> None:
    own = checkpoints(50)
    waits = [[0.0, *([40.0 if step and own[step - 1][0] > 90 else 0.0] * 3)] for step in range(len(own))]
    (found,) = intermittent(board(own, waits), 10.0).found
    assert (found.rank, found.shape, found.rows) == (0, "period", (9, 19, 29, 39))


def test_little_time_is_not_worth_a_finding() -> None:
    own = checkpoints(40)
    assert intermittent(board(own), 45.0).found == []


def test_a_finding_states_its_steps_and_does_not_blame_the_node() -> None:
    result = check(4, 60, 1, fault("period", 60), step_jitter=0.03)
    (found,) = [one for one in result.findings if one.polarity is Polarity.ABNORMAL]
    assert found.kind == "rank.intermittent"
    assert found.kind in TOOL.kinds
    assert found.metrics["period_steps"] == 5
    assert found.attributes["shape"] == "period"
    text = "\n".join(headline_of("slow_node_check", result.data, "en"))
    assert "every 5 steps, 12 times: 0, 5, 10" in text
    assert "does not show that its node is bad" in text
    assert "每 5 步慢一次" in "\n".join(headline_of("slow_node_check", result.data, "zh"))


# --- power ----------------------------------------------------------------------------------------------------------


def test_the_smallest_slowdown_that_would_have_been_found() -> None:
    """One rank 6 % slower on a busy host: not found, and the answer has the smallest slowdown that would have been."""
    slow = (Fault("compute", (SLOW,), ms=2.5),)
    data = check(4, 40, 1, *slow, step_jitter=0.1).data
    assert not data.accused
    assert data.detectable_pct is not None
    assert 6 < data.detectable_pct < 40
    text = "\n".join(headline_of("slow_node_check", data, "en"))
    assert "in every step would have been found" in text
    more = Fault("compute", (SLOW,), ms=2.5 + 1.15 * data.detectable_pct / 100 * (data.step_ms or 0))
    assert [row.rank for row in check(4, 40, 1, more, step_jitter=0.1).data.accused] == [SLOW]


def test_there_is_no_power_to_state_where_something_else_prevents_a_verdict() -> None:
    assert check(4, 4, 1).data.detectable_pct is None
    assert check(4, 40, 1, Fault("compute", (SLOW,), ms=25)).data.detectable_pct is None


def test_without_marked_loading_a_late_host_may_have_waited_for_data() -> None:
    recording = simulate(Plan(ranks=4, steps=20, faults=(Fault("loader", (SLOW,), ms=20),))).recording
    assert judge(recording, Params()).data.reasons == []
    frames = recording.tables()
    frames["ranks.steps"] = frames["ranks.steps"].with_columns(loader_ns=pl.lit(-1, pl.Int64))
    data = judge(Recording.in_memory(recording.manifest, frames), Params()).data
    assert ([row.slow_class for row in data.accused], data.reasons) == (["host_slow"], ["loader_unseen"])


# --- statistics -----------------------------------------------------------------------------------------------------


def test_the_tails_are_those_of_all_draws() -> None:
    for total, marked, drawn in ((7, 3, 4), (6, 5, 3), (5, 5, 2), (8, 2, 6)):
        draws = [sum(member < marked for member in chosen) for chosen in combinations(range(total), drawn)]
        expected = [sum(hit >= hits for hit in draws) / len(draws) for hits in range(min(marked, drawn) + 1)]
        assert probability.hypergeometric_tails(total, marked, drawn) == pytest.approx(expected)


@pytest.mark.parametrize("drawn", [4, 5])
def test_a_period_by_chance_is_seldom_unlikely(drawn: int) -> None:
    """Over all ways to place the episodes: the p value is not too small."""
    steps = range(18)
    every = [placement.period(begins, steps)[2] for begins in combinations(steps, drawn)]
    for level in (0.01, 0.05, 0.2):
        assert sum(p <= level for p in every) <= level * len(every)


def test_the_period_is_named() -> None:
    length, on_it, p_value = placement.period([3, 10, 14, 17, 24, 31, 38, 45, 52, 59], range(100, 160))
    assert (length, on_it) == (7, (0, 1, 3, 4, 5, 6, 7, 8, 9))
    assert p_value < 1e-4
    assert placement.period([1, 9, 22, 38, 57], range(60))[2] > 0.05
    assert placement.period([5, 10, 15], range(60)) == (0, (), 1.0)


def test_a_single_event_by_chance() -> None:
    """Of one in every hundred steps, at most 1/e of all jobs of a hundred steps have exactly one."""
    assert placement.at_start(0, 3, 200, 1) == pytest.approx(1 / 198 / 2.718, rel=1e-3)
    assert placement.at_start(0, 3, 200, 4) == pytest.approx(4 / 198)
    assert placement.at_start(0, 3, 20, 1) > 0.01
    assert placement.at_start(9, 3, 10, 5) == 1.0
    assert placement.lasting(10, [], 0.0) == pytest.approx(0.5**9)
    assert placement.lasting(10, [4, 4, 4], 0.0) > 0.05
    assert placement.lasting(10, [], 0.9) > 0.1


# --- neighbouring steps ---------------------------------------------------------------------------------------------


def spells(r: float, count: int, seed: int) -> list[float]:
    dice, value, values = random.Random(seed), 0.0, []
    for _ in range(count):
        value = r * value + (1 - r * r) ** 0.5 * dice.gauss(0, 1)
        values.append(value)
    return values


@pytest.mark.parametrize("r", [0.0, 0.5, 0.8])
def test_correlation_is_estimated_without_bias(r: float) -> None:
    found = [unbiased(serial(spells(r, 30, seed)), 30) for seed in range(300)]
    assert sum(found) / len(found) == pytest.approx(r, abs=0.08)


def test_how_many_steps_count_as_one() -> None:
    assert (widened(0.0), widened(-0.5)) == (1.0, 1.0)
    assert widened(0.5) == pytest.approx(3)
    assert [half_life(r) for r in (-0.1, 0.0, 0.5, 0.8, 0.9)] == [1, 1, 1, 3, 7]


def test_students_tail() -> None:
    for t, freedom, tail in (
        (1.0, 1, 0.25),
        (2.920, 2, 0.05),
        (2.764, 10, 0.01),
        (3.090, 1e6, 0.001),
        (63.657, 1, 0.005),
    ):
        assert probability.student_tail(t, freedom) == pytest.approx(tail, rel=0.01)
    assert probability.student_tail(-1, 5) == 1.0


def test_a_trend_is_found_and_noise_has_none() -> None:
    p_value, slope = trend([0.1 * step + (5 if step == 3 else 0) for step in range(40)])
    assert p_value < 1e-6
    assert slope == pytest.approx(0.1)
    seldom = 0
    for seed in range(200):
        seldom += trend(spells(0.7, 60, seed))[0] < 0.01
    assert seldom <= 10
    assert trend([1.0, 1.0]) == (1.0, 0.0)
    assert trend([2.0] * 30)[0] == 1.0


def test_half_of_the_values_may_be_anywhere() -> None:
    middle, scale = probability.shortest_half([*([10.0] * 3), 9.9, 10.1, 10.2, *([500.0] * 5)])
    assert middle == pytest.approx(10.05, abs=0.15)
    assert scale < 1
    assert probability.shortest_half([]) == (0.0, 0.0)
