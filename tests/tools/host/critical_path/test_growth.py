"""Calls of a function that take longer and longer, by the samples of a thread."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from recordings import Scene

from whystall.tools.host.common.objects import objects_of
from whystall.tools.host.common.places import Function, Place
from whystall.tools.host.common.timelines import Sample, Timeline
from whystall.tools.host.critical_path.growth import STEADY, growth_of
from whystall.tools.host.critical_path.world import World

SEARCH = Function("search", "train.py")
INSIDE = Place((("find", "train.py", 30), ("search", "train.py", 20), ("main", "train.py", 1)))
BETWEEN = Place((("step", "train.py", 10), ("main", "train.py", 1)))


def line(calls: Sequence[int]) -> Timeline:
    """A thread with that many samples in each call, and one between two calls."""
    places = [place for count in calls for place in (*[INSIDE] * count, BETWEEN)]
    return Timeline(1, 1, "train", samples=[Sample(number * 10, place, ()) for number, place in enumerate(places)])


NOISE = (0, 1, 0, -1, 1, -1, 0, 1)


@pytest.mark.parametrize(
    ("calls", "low", "high"),
    [
        pytest.param([5 + n // 6 + NOISE[n % 8] for n in range(60)], 2.0, 3.0, id="grows"),
        pytest.param([6 + NOISE[n % 8] for n in range(60)], STEADY, STEADY, id="steady"),
        pytest.param([4 + 8 * (n % 2) for n in range(40)], STEADY, STEADY, id="long and short calls in turn"),
        pytest.param([6 + n // 200 for n in range(2000)], 1.5, 2.5, id="thousands of calls"),
        pytest.param([20 - n // 4 for n in range(60)], 0.2, 0.8, id="gets shorter"),
    ],
)
def test_growth_needs_a_trend_over_many_calls(calls: list[int], low: float, high: float) -> None:
    found = growth_of(line(calls), SEARCH)
    assert found is not None
    assert low <= found <= high


def test_few_calls_show_no_growth() -> None:
    assert growth_of(line([3, 9, 20, 40]), SEARCH) is None
    assert growth_of(line([500]), SEARCH) is None
    assert growth_of(Timeline(1, 1, "train"), SEARCH) is None


def test_the_running_time_of_a_waker_is_divided_by_its_samples() -> None:
    waker = line([3] * 10)
    world = World({1: waker}, objects_of(Scene().thread().build()), 400, frozenset({1}))
    waker.alive = (0, 400)
    took = {chain[-1].line: took for chain, took in world.walk.chains(waker, 0, 400)}
    assert took == {"find (train.py:30)": 300, "step (train.py:10)": 100}
    assert {chain[-1].mode for chain, _ in world.walk.chains(waker, 0, 400)} == {"user"}
