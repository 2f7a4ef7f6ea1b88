"""Two profiles of one thing whose samples depend on each other, or do not say how many they are: no difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from whystall.tools.profiles.flamegraph_diff.comparison import Difference, compare
from whystall.tools.profiles.flamegraph_diff.noise import variances
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import NO_TIME, SAMPLES, StackProfile
from whystall.tools.stacks.tree import Part

pytestmark = pytest.mark.thorough

Thread = tuple[Any, Any]
"""When it was sampled (s), and in which function."""
HZ = 99


def stays(rng: np.random.Generator, mean_s: Any, seconds: float, start: float = 0.0) -> Thread:
    """A thread that goes from function to function at random, and stays in each for a random time."""
    mean = np.asarray(mean_s, float)
    count = int(3 * seconds / mean.mean()) + 100
    which = rng.integers(len(mean), size=count)
    ends = start + np.cumsum(rng.exponential(mean[which]))
    at = np.arange(start + rng.uniform(0, 1 / HZ), start + seconds, 1 / HZ)
    return at, which[np.searchsorted(ends, at).clip(max=count - 1)]


def profile(threads: Sequence[Thread], below: Sequence[str] = ("main",), **event: Any) -> StackProfile:
    """`below`: what stands beneath the functions of each thread; of more threads the last."""
    build = Builder()
    build.event(**{"name": "cpu-clock", "unit": "samples", **event})
    rows = []
    for number, (at, which) in enumerate(threads):
        root = build.frame(below[min(number, len(below) - 1)])
        stacks = np.array([build.stack([root, build.frame(f"f{one}")]) for one in range(int(which.max()) + 1)])
        thread = build.thread(1, 1 + number)
        told = {"at_ns": (at * 1e9).astype(np.int64), "span_ns": 0, "thread": thread, "stack": stacks[which]}
        rows.append(pl.DataFrame({**told, "event": 0, "weight": 1.0}).cast(dict(SAMPLES)))
    made = build.profile("perf_script")
    return replace(made, tables={**made.tables, "samples": pl.concat(rows)})


def weighing(of: StackProfile, *weight: pl.Expr) -> StackProfile:
    return replace(of, tables={**of.tables, "samples": of.samples.with_columns(*weight)})


def summed(of: StackProfile) -> StackProfile:
    """As folded stacks tell it."""
    sums = of.samples.group_by("stack", "event", maintain_order=True).agg(pl.col("weight").sum())
    rows = sums.with_columns(at_ns=pl.lit(NO_TIME), span_ns=0, thread=-1).select(SAMPLES.names()).cast(dict(SAMPLES))
    return replace(of, tables={**of.tables, "samples": rows})


def differ(pairs: Sequence[tuple[StackProfile, StackProfile]]) -> list[Difference]:
    found = [compare(Part(before), Part(after)) for before, after in pairs]
    return [one for one in found if any(row.role == "proven" for row in one.rows)]


def test_stays_of_seconds_are_few_observations() -> None:
    rng = np.random.default_rng(1)
    pairs = [tuple(profile([stays(rng, [5, 5], 60)]) for _ in range(2)) for _ in range(25)]
    assert len(differ(pairs)) <= 1  # type: ignore[arg-type]


def test_threads_that_start_at_another_time_are_no_difference_of_the_code() -> None:
    rng = np.random.default_rng(2)

    def run() -> StackProfile:
        starts = rng.uniform(0, 10, 4)
        threads = [stays(rng, np.geomspace(1e-3, 5e-2, 20), 20 - start, start) for start in starts]
        return profile(threads, ("main", "start_thread"))

    assert len(differ([(run(), run()) for _ in range(25)])) <= 1


def test_one_thread_and_eight_of_the_same_code() -> None:
    rng = np.random.default_rng(3)
    mean = np.random.default_rng(4).lognormal(-5, 1.5, 25)

    def run(threads: int) -> StackProfile:
        return profile([stays(rng, mean, 20) for _ in range(threads)])

    assert len(differ([(run(1), run(8)) for _ in range(25)])) <= 1


def test_weights_of_a_counter_are_not_so_many_samples() -> None:
    rng = np.random.default_rng(5)

    def run(unit: str) -> StackProfile:
        made = profile([stays(rng, [0.005, 0.01, 0.02], 20)], name="cycles", unit=unit)
        cycles = pl.Series("weight", rng.lognormal(16, 1.5, made.samples.height).round())
        return weighing(made, pl.lit(cycles).alias("weight"), pl.lit(NO_TIME, pl.Int64).alias("at_ns"))

    for unit in ("cycles", "count"):
        found = compare(Part(run(unit)), Part(run(unit)))
        assert (found.verdict, found.reasons) == ("cannot_tell", ("not_samples",))


@pytest.mark.parametrize("times", [1.0, 10_000.0])
def test_counts_of_folded_stacks_may_be_times(times: float) -> None:
    rng = np.random.default_rng(6)
    mean = np.geomspace(1e-4, 2e-2, 12)
    pair = [summed(weighing(profile([stays(rng, mean, 60)]), pl.col("weight") * times)) for _ in range(2)]
    found = compare(Part(pair[0]), Part(pair[1]))
    assert not any(row.role == "proven" for row in found.rows)
    assert (found.verdict == "alike") is (times == 1)


def test_what_is_all_there_is_has_no_variance_to_divide_by() -> None:
    """Rounding made an infinite one of it: the judgement ended, or all degrees of freedom were lost to it."""
    rng = np.random.default_rng(7)
    for _ in range(40):
        made = [profile([stays(rng, np.full(25, 0.005), 5)], unit="cycles") for _ in range(2)]
        made = [weighing(one, pl.lit(pl.Series("weight", rng.lognormal(16, 1.5, one.samples.height)))) for one in made]
        found = compare(Part(made[0]), Part(made[1]))
        whole = np.ones((1, len(found.before.weights)))
        assert max(float(one[0]) for one in variances(found.before, found.after, whole, whole[0])) < 1e-12


@pytest.mark.parametrize("times", [1e-300, 1e300])
def test_weights_at_the_ends_of_what_numbers_hold(times: float) -> None:
    rng = np.random.default_rng(8)
    pair = [profile([stays(rng, [0.005, 0.01, 0.02], 20)], unit="cycles") for _ in range(2)]
    found = compare(Part(pair[0]), Part(weighing(pair[1], pl.col("weight") * times)))
    assert found.bound is not None
    assert 0 < found.bound < 50
    assert found.verdict == "alike"
