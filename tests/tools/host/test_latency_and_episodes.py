"""Quantiles against numpy, histograms that lose nothing, and periods that are there or not."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from whystall.tools.host.common.latency import Slot, log2_histogram, quantile, slot_quantile
from whystall.tools.host.fileslower.episodes import Call, episodes, period_s

QS = (0.0, 0.01, 0.5, 0.9, 0.99, 1.0)


def samples(seed: int) -> list[int]:
    source = np.random.default_rng(seed)
    shapes = [source.lognormal(12, 2, 400), source.integers(0, 50, 300), source.uniform(1, 1e9, 5), np.full(7, 4096)]
    return [int(v) for v in shapes[seed % 4]]


def slotted(values: list[int], parts: int = 8) -> list[Slot]:
    """A log-linear histogram: `parts` equal slots per power of two."""
    counts: dict[tuple[int, int], int] = {}
    for value in values:
        power = 1 << max(value.bit_length() - 1, 3)
        width = max(power // parts, 1)
        low = value // width * width
        counts[low, low + width] = counts.get((low, low + width), 0) + 1
    return [(low, high, count) for (low, high), count in counts.items()]


@pytest.mark.parametrize("seed", range(24))
def test_quantiles_of_values_are_numpys_nearest_rank(seed: int) -> None:
    values = samples(seed)
    for q in QS:
        assert quantile(values, q) == np.quantile(values, q, method="inverted_cdf")


@pytest.mark.parametrize("seed", range(24))
def test_quantiles_of_histograms_are_within_a_slot_of_numpys(seed: int) -> None:
    values = samples(seed)
    slots = slotted(values)
    random.Random(seed).shuffle(slots)
    made = [slot_quantile(slots, q) for q in QS]
    assert made == sorted(made)
    for q, value in zip(QS, made, strict=True):
        exact = np.quantile(values, q, method="inverted_cdf")
        low, high, _ = next(s for s in slots if s[0] <= exact < s[1])
        assert low <= value <= high, (q, exact)


@pytest.mark.parametrize("seed", range(24))
def test_powers_of_two_keep_every_count_and_leave_no_gap(seed: int) -> None:
    values = samples(seed)
    coarse = log2_histogram(slotted(values))
    assert sum(c for _, _, c in coarse) == len(values)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(coarse))
    assert all(high == 2 * low for low, high, _ in coarse)
    for low, high, count in coarse[1:]:
        assert count == sum(low <= v < high for v in values)


def test_nothing_has_no_quantile_and_no_histogram() -> None:
    assert (quantile([], 0.5), slot_quantile([], 0.5), slot_quantile([(1, 2, 0)], 0.5)) == (0.0, 0.0, 0.0)
    assert log2_histogram([]) == log2_histogram([(4, 8, 0)])[:0] == []


def starts(gaps: list[float]) -> list[int]:
    return [int(1e9 * sum(gaps[:i])) for i in range(len(gaps) + 1)]


@pytest.mark.parametrize(
    ("gaps", "period"),
    [
        ([], None),
        ([3.0], None),
        ([3.0, 3.0], 3.0),
        ([3.0] * 20, 3.0),
        ([2.8, 3.1, 3.3, 2.9, 3.0], 3.0),
        ([3.0, 3.0, 6.0, 3.0, 9.0, 3.0, 3.0], 3.0),
        ([0.1, 5.0, 0.2, 9.0, 0.1, 3.0], None),
        ([1.0, 9.0], None),
        ([0.0, 0.0, 0.0], None),
    ],
)
def test_period(gaps: list[float], period: float | None) -> None:
    times = starts(gaps)
    random.Random(1).shuffle(times)
    assert period_s(times) == (None if period is None else pytest.approx(period, rel=0.05))


@pytest.mark.parametrize("seed", range(20))
def test_a_period_survives_jitter_and_missing_repeats(seed: int) -> None:
    source = random.Random(seed)
    times = [int(1e9 * (3.0 * i + source.uniform(-0.2, 0.2))) for i in range(1, 30)]
    kept = [t for t in times if source.random() > 0.2]
    assert period_s(kept) == pytest.approx(3.0, rel=0.1)


def test_chance_is_seldom_taken_for_a_period() -> None:
    source = random.Random(5)
    periods = [period_s(starts([source.expovariate(1) for _ in range(20)])) for _ in range(200)]
    assert sum(p is not None for p in periods) <= 4


MS = 1_000_000


@pytest.mark.parametrize(
    ("calls", "lengths"),
    [
        ([], []),
        ([(0, 10, "a"), (30, 40, "a")], [40]),
        ([(0, 10, "a"), (70, 80, "a")], [10, 10]),
        ([(0, 30, "a"), (70, 100, "a"), (140, 170, "a")], [30, 30, 30]),  # a loop that computes in between
        ([(0, 1000, "a"), (1200, 2200, "a")], [2200]),
        ([(0, 10, "a"), (15, 20, "b")], [10, 5]),
        ([(70, 80, "a"), (0, 10, "a")], [10, 10]),
    ],
)
def test_episodes(calls: list[tuple[int, int, str]], lengths: list[int]) -> None:
    made = episodes(Call(start * MS, end * MS, path) for start, end, path in calls)
    assert [e.duration_ns // MS for e in made] == lengths
    assert sum(len(e.calls) for e in made) == len(calls)


def test_what_is_durable_is_over() -> None:
    """One file written and synced again at once: two times, not one long one."""
    calls = [(0, 40, False), (41, 90, True), (92, 130, False), (131, 190, True)]
    made = episodes(Call(start * MS, end * MS, "a", final) for start, end, final in calls)
    assert [e.duration_ns // MS for e in made] == [90, 98]


def test_the_removal_of_an_older_file_belongs_to_the_sync_before_it() -> None:
    calls = [
        *(Call(0, 40 * MS, "new"), Call(40 * MS, 1000 * MS, "new", final=True)),
        *(Call(1001 * MS, 1030 * MS, "old", renames=True), Call(1030 * MS, 1050 * MS, "older", renames=True)),
        *(Call(1200 * MS, 1230 * MS, "other", renames=True), Call(1600 * MS, 2600 * MS, "newer", final=True)),
    ]
    found = [(run.start_ns // MS, run.end_ns // MS) for run in episodes(calls)]
    assert found == [(0, 1050), (1200, 1230), (1600, 2600)]
