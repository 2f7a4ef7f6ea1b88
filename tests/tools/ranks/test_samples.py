"""Two samples beside each other: exact where the numbers are known, and silent on equal ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from math import comb

import pytest

from whystall.tools.ranks.statistics.two_samples import more_often, rank_test, shift


def above(before: Sequence[float], after: Sequence[float]) -> int:
    """Pairs in which the later value is the larger one."""
    return sum(b > a for a in before for b in after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]),
        ([6, 7, 8, 9, 10], [1, 2, 3, 4, 5]),
        ([1, 2, 6], [3, 4, 5, 7]),
        ([1, 3], [2, 4]),
        ([1, 4, 5, 8, 11, 12], [2, 3, 6, 7, 9, 10, 13]),
    ],
)
def test_small_samples_are_exact(before: list[float], after: list[float]) -> None:
    """As counted over all ways to part the values."""
    every = [*before, *after]
    ways = [
        above([value for place, value in enumerate(every) if place not in own], [every[place] for place in own])
        for own in combinations(range(len(every)), len(after))
    ]
    pairs = len(before) * len(after)
    seen = above(before, after)
    least = min(seen, pairs - seen)
    p_value, superior = rank_test(before, after)
    assert p_value == pytest.approx(min(1.0, 2 * sum(way <= least for way in ways) / len(ways)))
    assert superior == pytest.approx(seen / pairs)


def test_many_values_are_counted_as_few_are() -> None:
    dice = random.Random(1)
    before, after = ([dice.gauss(at, 1) for _ in range(20)] for at in (0, 0.5))
    exact = rank_test(before, after)[0]
    tied = [after[0], *after[1:-1], after[0]]  # a tie leaves the exact way; two values of twenty change
    assert 0.001 < exact < 0.1
    assert rank_test(before, tied)[0] == pytest.approx(exact, rel=0.6)


@pytest.mark.parametrize("values", [[5.0] * 30, []])
def test_nothing_to_tell_is_no_difference(values: list[float]) -> None:
    assert rank_test(values, values) == (1.0, 0.5)


def test_equal_runs_seldom_differ() -> None:
    """Independent steps, and steps that resemble their neighbours, which are fewer than they look."""

    def spells(dice: random.Random) -> list[float]:
        value, out = 0.0, []
        for _ in range(100):
            value = 0.8 * value + dice.gauss(0, 1)
            out.append(value)
        return out

    alone = together = outside = 0
    for seed in range(200):
        dice = random.Random(seed)
        pair = [[dice.gauss(100, 3) for _ in range(20)] for _ in range(2)]
        found = shift(*pair)
        alone += found.p_value < 0.01
        outside += not found.low < 0 < found.high
        together += rank_test(spells(dice), spells(dice))[0] < 0.01
    assert alone <= 6
    assert outside <= 12
    assert together <= 8


def test_the_change_of_the_mean_is_bounded() -> None:
    dice = random.Random(3)
    before, after = ([dice.gauss(at, 2) for _ in range(50)] for at in (100, 110))
    found = shift(before, after)
    assert 7 < found.low < 10 < found.high < 13
    assert found == shift(before, after)
    assert found.p_value < 1e-9


@pytest.mark.parametrize("hits", [(2, 50, 10, 50), (0, 20, 10, 60), (3, 10, 3, 10), (0, 5, 5, 5), (0, 9, 0, 4)])
def test_more_extremes_are_reported_from_chance(hits: tuple[int, int, int, int]) -> None:
    """As counted over all tables with the same margins that are no likelier."""
    before, n, after, m = hits
    found = before + after
    tables = [comb(n, found - k) * comb(m, k) for k in range(max(0, found - n), min(m, found) + 1)]
    seen = comb(n, before) * comb(m, after)
    expected = sum(ways for ways in tables if ways <= seen) / comb(n + m, found)
    assert more_often(*hits) == pytest.approx(expected)
