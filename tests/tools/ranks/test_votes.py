"""Votes of steps: exact, at any number of ranks, and silent on noise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import product

import polars as pl
import pytest

from whystall.tools.ranks.job import MATCHED, OWN
from whystall.tools.ranks.slow_node_check import votes
from whystall.tools.ranks.slow_node_check.grid import Grid, grid, highest, known, lost_in
from whystall.tools.ranks.statistics import probability

STEP_NS = 100.0
FLOOR_NS = 10.0


def board(
    ranks: int, steps: int, extra: Callable[[int, int], float], noise: float = 1.0, seed: int = 1, work: bool = True
) -> Grid:
    """Ranks that take 60 plus `extra(rank, step)` plus noise, and wait for the slowest of the step."""
    dice = random.Random(seed)
    names = [str(rank) for rank in range(ranks)]
    own = [[60 + extra(rank, step) + dice.gauss(0, noise) for rank in range(ranks)] for step in range(steps)]
    frame = pl.DataFrame(own, schema=names, orient="row")
    wait = frame.select((pl.max_horizontal(pl.all()) - pl.col(name)).alias(name) for name in names)
    return Grid(tuple(range(ranks)), tuple(range(steps)), frame, wait, frame if work else None, STEP_NS)


def slow(*ranks: int, by: float = 20.0, since: int = 0) -> Callable[[int, int], float]:
    return lambda rank, step: by if rank in ranks and step >= since else 0.0


@pytest.mark.parametrize(("hits", "trials", "share"), [(3, 5, 0.25), (5, 5, 0.5), (1, 7, 0.1), (0, 3, 0.5)])
def test_the_tail_is_that_of_all_outcomes(hits: int, trials: int, share: float) -> None:
    every = sum(
        math.prod(share if won else 1 - share for won in outcome)
        for outcome in product((True, False), repeat=trials)
        if sum(outcome) >= hits
    )
    assert probability.binomial_tail(hits, trials, share) == pytest.approx(every, rel=1e-12)


def test_the_tail_of_many_trials_neither_overflows_nor_vanishes() -> None:
    assert 0 < probability.binomial_tail(2000, 2000, 0.5) < 1e-300 or probability.binomial_tail(1000, 1000, 0.5) > 0
    assert probability.binomial_tail(5000, 10000, 0.5) == pytest.approx(0.5, abs=0.01)
    assert probability.binomial_tail(4, 3, 0.5) == 0


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16, 64])
def test_one_slow_rank_is_found_at_any_number_of_ranks(ranks: int) -> None:
    (found,) = votes.late(board(ranks, 20, slow(1)), FLOOR_NS)
    assert (found.rank, found.votes, found.steps, found.began) == (1, 20, 20, -1)
    assert found.cost_ns == pytest.approx(20, abs=3)
    assert found.p_value < 1e-4


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_the_fewest_steps_are_enough_for_a_clear_margin(ranks: int) -> None:
    enough = votes.enough_steps(board(ranks, 1, slow()))
    assert votes.late(board(ranks, enough, slow(1)), FLOOR_NS)


@pytest.mark.thorough
@pytest.mark.parametrize("noise", [1.0, 5.0, 25.0])
@pytest.mark.parametrize("ranks", [2, 3, 4, 16])
def test_noise_is_no_ranks_fault(ranks: int, noise: float) -> None:
    for seed in range(30):
        even = board(ranks, 20, slow(), noise, seed)
        assert not votes.late(even, FLOOR_NS)
        assert not votes.turns(even, FLOOR_NS)


def test_two_equally_slow_ranks_do_not_hide_each_other() -> None:
    found = votes.late(board(4, 20, slow(1, 2)), FLOOR_NS)
    assert {one.rank for one in found} == {1, 2}
    assert all(one.cost_ns == pytest.approx(20, abs=3) for one in found)


def test_a_slow_rank_does_not_hide_behind_one_that_is_slower() -> None:
    found = votes.late(board(8, 20, lambda rank, _: {3: 60.0, 5: 15.0}.get(rank, 0.0)), FLOOR_NS)
    assert [one.rank for one in found] == [3, 5]


def test_never_more_than_half_of_the_ranks() -> None:
    assert not votes.late(board(4, 20, slow(0, 1, 2)), FLOOR_NS)
    assert votes.suspects(board(4, 20, slow(0, 1, 2)), 2) != (0, 1, 2)


def test_often_late_by_little_is_below_the_floor() -> None:
    assert not votes.late(board(4, 40, slow(1, by=6.0)), FLOOR_NS)


def test_one_huge_step_makes_no_rank_slow() -> None:
    assert not votes.late(board(4, 20, lambda rank, step: 2000.0 if (rank, step) == (2, 7) else 0.0), FLOOR_NS)


def test_waiting_and_work_are_distinguished() -> None:
    only_waited_for = board(4, 20, slow(1))
    flat = board(4, 20, slow())
    (found,) = votes.late(
        Grid(
            only_waited_for.ranks, only_waited_for.steps, only_waited_for.own, only_waited_for.wait, flat.own, STEP_NS
        ),
        FLOOR_NS,
    )
    assert found.lost_ns == pytest.approx(20, abs=3)
    assert found.work_lost_ns == pytest.approx(0, abs=3)
    assert found.cost_ns < FLOOR_NS


@pytest.mark.parametrize(("ranks", "steps", "since"), [(4, 20, 10), (4, 20, 12), (2, 30, 20), (16, 24, 14)])
def test_the_beginning_is_found(ranks: int, steps: int, since: int) -> None:
    (found,) = votes.late(board(ranks, steps, slow(1, since=since)), FLOOR_NS)
    assert (found.rank, found.began) == (1, since)
    assert found.cost_ns == pytest.approx(20, abs=3)


def test_a_huge_step_is_no_beginning() -> None:
    def extra(rank: int, step: int) -> float:
        return (600.0 if step >= 18 else 20.0) if rank == 1 else 0.0

    (found,) = votes.late(board(4, 20, extra), FLOOR_NS)
    assert (found.rank, found.began) == (1, -1)


def test_of_two_ranks_each_has_its_own_beginning() -> None:
    def extra(rank: int, step: int) -> float:
        return 20.0 if rank == 1 else 45.0 if rank == 2 and step >= 10 else 0.0

    assert {one.rank: one.began for one in votes.late(board(4, 24, extra), FLOOR_NS)} == {1: -1, 2: 10}


@pytest.mark.parametrize(("ranks", "every"), [(4, 5), (4, 10), (8, 3), (16, 5), (2, 10)])
def test_ranks_that_take_turns(ranks: int, every: int) -> None:
    found = votes.turns(board(ranks, 40, lambda r, step: 20.0 if r == step // every % min(ranks, 4) else 0.0), FLOOR_NS)
    assert found is not None
    assert set(found.rows) == set(range(min(ranks, 4)))
    assert found.lost_ns == pytest.approx(20, abs=4)


def test_turns_of_single_steps_between_few_ranks() -> None:
    found = votes.turns(board(8, 40, lambda rank, step: 20.0 if rank == step % 2 else 0.0), FLOOR_NS)
    assert found is not None
    assert set(found.rows) == {0, 1}


@pytest.mark.parametrize("extra", [slow(1), slow(1, 2), slow(1, since=10)])
def test_a_slow_rank_takes_no_turns(extra: Callable[[int, int], float]) -> None:
    assert votes.turns(board(4, 20, extra), FLOOR_NS) is None


def test_who_is_last_is_none_when_it_is_not_clear() -> None:
    assert votes.last_ranks(board(4, 6, slow(2), noise=0.0)) == [2] * 6
    assert votes.last_ranks(board(4, 6, slow(), noise=0.1)) == [None] * 6


def test_a_rank_that_is_worse_than_before_is_no_rank_that_was_always_slow() -> None:
    values = [20.0] * 10 + [60.0] * 10
    assert votes.change(values, FLOOR_NS) == -1
    assert votes.change([0.5, -0.5] * 5 + [60.0, 59.0] * 5, FLOOR_NS) == 10
    assert votes.change([1.0] * 3, FLOOR_NS) == -1


# --- the grid -------------------------------------------------------------------------------------------------------


def own_rows(steps: dict[int, list[int]]) -> pl.DataFrame:
    rows = [
        {"rank": rank, "step": step, "step_ns": 100, "wait_ns": 10, "own_ns": 90 + rank, "compute_ns": 50, "gap_ns": 5}
        | {"loader_ns": -1, "exposed_comm_ns": 20, "launch_delay_ns": -1}
        for rank, numbers in steps.items()
        for step in numbers
    ]
    return pl.DataFrame(rows, schema=OWN)


def test_only_steps_that_all_have_are_compared() -> None:
    made = grid(own_rows({0: [1, 2, 3], 1: [2, 3, 4], 7: [1, 2, 3]}), (0, 1), has_work=True)
    assert (made.ranks, made.steps) == ((0, 1), (2, 3))
    assert made.own.to_dict(as_series=False) == {"0": [90.0, 90.0], "1": [91.0, 91.0]}
    assert made.work is not None
    assert made.work["0"].to_list() == [55.0, 55.0]


def test_ranks_without_common_steps_have_no_rows() -> None:
    made = grid(own_rows({0: [1], 1: [2]}), (0, 1))
    assert made.steps == ()
    assert votes.late(made, FLOOR_NS) == []
    assert votes.turns(made, FLOOR_NS) is None


def test_what_was_lost_is_left_out_and_what_a_rank_never_has_is_not_lost() -> None:
    # rank 0 is in a group that only it is in; rank 1 lost an operation of step 2
    counts = {(0, 1): 3, (0, 2): 3, (0, 3): 3, (1, 1): 2, (1, 2): 1, (1, 3): 2}
    rows = [{"rank": rank, "step": step} for (rank, step), count in counts.items() for _ in range(count)]
    filled = [{name: row.get(name, "" if dtype == pl.String else 0) for name, dtype in MATCHED.items()} for row in rows]
    gone = lost_in(pl.DataFrame(filled, schema=MATCHED), (0, 1))
    assert gone.rows() == [(1, 2)]
    made = grid(own_rows({0: [1, 2, 3], 1: [1, 2, 3]}), (0, 1), lost=gone)
    assert made.own["1"].to_list() == [91.0, None, 91.0]
    assert known(highest(made.own, (0, 1))) == [91.0, 90.0, 91.0]
