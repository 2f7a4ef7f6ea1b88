"""Periods: found at their true length, told apart, and never seen in chance."""

from __future__ import annotations

import numpy as np
import pytest
from heat_scenes import Spells, at_random, every, rest_of, sampled, told

from whystall.tools.profiles.heat_map.activity import Runs, activity_of, closed
from whystall.tools.profiles.heat_map.chance import jitter, p_value, unevenness
from whystall.tools.profiles.heat_map.period import Period, periods


def quiet(spells: Spells, window: float, hz: float = 99.0, seed: int = 0) -> list[Period]:
    return periods(sampled(rest_of(spells, window), window, hz, seed))


@pytest.mark.parametrize("hz", [49, 99, 199])
@pytest.mark.parametrize(
    ("period", "length", "window"), [(1.33, 0.4, 12), (1.33, 0.85, 20), (0.27, 0.07, 12), (30, 4, 300)]
)
def test_a_period_is_found_at_every_rate(hz: int, period: float, length: float, window: float) -> None:
    for seed in range(5):
        found = quiet(every(period, length, window, seed), window, hz, seed)
        assert [one.what for one in found] == ["quiet"]
        assert found[0].period_ns / 1e9 == pytest.approx(period, rel=0.03)
        assert found[0].band_ns / 1e9 == pytest.approx(length, abs=1.5 / hz + 0.02 * length)
        assert found[0].share == pytest.approx(length / period, rel=0.35)


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize(("period", "length", "window"), [(1.33, 0.4, 12), (1.33, 0.9, 20), (0.3, 0.1, 30)])
def test_random_pauses_are_not_reported(period: float, length: float, window: float, uniform: bool) -> None:
    seen = [
        seed for seed in range(60) if quiet(at_random(period, length, window, seed, uniform=uniform), window, seed=seed)
    ]
    assert len(seen) <= 3, seen  # 95 % silence


def test_nothing_recurs_in_what_is_constant() -> None:
    assert periods(sampled([(0, 30)], 30, 99)) == []
    assert periods(sampled([], 30, 99)) == []
    assert periods(told([(0, 30)], 30)) == []


def test_four_periods_are_needed() -> None:
    def bands(count: int) -> list[tuple[float, float]]:
        return [(1 + 2 * at, 1.5 + 2 * at) for at in range(count)]

    assert quiet(bands(4), 9) == []
    assert [one.period_ns / 1e9 for one in quiet(bands(5), 11)] == [pytest.approx(2, rel=0.01)]


def test_steps_and_checkpoints_are_both_found_the_longest_stall_first() -> None:
    pauses, at = [], 0.1
    rng = np.random.default_rng(3)
    for step in range(1, 121):
        at += 0.25 * (1 + 0.03 * rng.normal())
        length = (0.5 if step % 5 == 0 else 0.06) * (1 + 0.05 * rng.normal())
        pauses.append((at, at + length))
        at += length
    found = quiet(pauses, at)
    assert [one.what for one in found] == ["quiet", "quiet"]
    checkpoint, step_gap = found
    assert checkpoint.period_ns / 1e9 == pytest.approx(5 * 0.25 + 4 * 0.06 + 0.5, rel=0.03)
    assert checkpoint.band_ns / 1e9 == pytest.approx(0.5, rel=0.05)
    assert step_gap.period_ns / 1e9 == pytest.approx(0.31, rel=0.03)


def test_drift_and_interrupted_bands_keep_one_period() -> None:
    drifting, at = [], 0.5
    while at < 40:
        drifting.append((at, at + 0.3))
        at += 1 + at / 40
    assert len(quiet(drifting, 40)) == 1
    rng = np.random.default_rng(1)
    broken = []
    for start, _ in every(1.33, 0.6, 30, 2):
        cut = start + float(rng.uniform(0.1, 0.4))
        broken += [(start, cut), (cut + 0.03, start + 0.6)]  # work for a moment, at another place in each
    found = quiet([one for one in broken if one[1] < 30], 30)
    assert found[0].period_ns / 1e9 == pytest.approx(1.33, rel=0.03)
    assert found[0].band_ns / 1e9 == pytest.approx(0.6, rel=0.05)


def test_bursts_in_silence_are_busy() -> None:
    found = periods(sampled(every(1.0, 0.05, 30, 4, jitter=0.003), 30, 99))
    assert [(one.what, round(one.period_ns / 1e9, 2)) for one in found] == [("busy", 1.0)]


def test_spans_tell_periods_far_below_a_cell() -> None:
    work = [(0.010 * at, 0.010 * at + 0.007) for at in range(300)]
    found = periods(told(work, 3.0))
    assert found[0].period_ns / 1e6 == pytest.approx(10, rel=1e-3)
    assert found[0].band_ns / 1e6 == pytest.approx(3, rel=1e-3)


def test_samples_tell_no_period_near_their_own() -> None:
    for one in periods(sampled([(0.03 * at, 0.03 * at + 0.015) for at in range(400)], 12, 99)):
        assert one.period_ns >= 4 * 1e9 / 99


def test_alternating_lengths_are_one_rhythm_and_not_half_of_it() -> None:
    pauses = [(0.8 * at, 0.8 * at + (0.3, 0.2)[at % 2]) for at in range(1, 36)]
    assert [round(one.period_ns / 1e9, 2) for one in quiet(pauses, 30)] == [0.8]


def test_a_hole_is_no_band() -> None:
    busy = rest_of([(1.0 + at, 1.4 + at) for at in range(11)], 12)
    holes = [(int((1.0 + at) * 1e9), int((1.4 + at) * 1e9)) for at in range(11)]
    starts, ends = (np.array(busy).T * 1e9).astype(np.int64)
    seen = activity_of(starts, ends - starts, 0, int(12e9), interval=0)
    assert len(periods(seen)) == 1
    unseen = activity_of(starts, ends - starts, 0, int(12e9), interval=0, holes=holes)
    assert periods(unseen) == []


def test_chance_is_what_random_pauses_do() -> None:
    rng = np.random.default_rng(7)
    for share in (0.0, 0.5):
        found = [p_value(unevenness(share + (1 - share) * rng.exponential(size=9)), 9, share) for _ in range(600)]
        assert np.mean(np.array(found) <= 0.05) == pytest.approx(0.05, abs=0.03)
    assert p_value(unevenness(np.full(9, 1.0)), 9, 0.0) < 1e-9
    steady = 1 + 0.1 * rng.normal(size=4000)
    assert jitter(unevenness(steady), len(steady)) == pytest.approx(0.1, rel=0.1)


def test_more_looks_need_more_evidence() -> None:
    pauses = every(1.33, 0.4, 9, 0)
    seen = sampled(rest_of(pauses, 9), 9, 99)
    assert periods(seen, 1)[0].p_value * 10 == pytest.approx(periods(seen, 10)[0].p_value, rel=1e-6)


def test_small_breaks_are_closed() -> None:
    runs = Runs(np.array([0, 100, 1000]), np.array([90, 200, 1100]))
    whole, own = closed(runs, 20)
    assert (whole.starts.tolist(), whole.ends.tolist(), own.tolist()) == ([0, 1000], [200, 1100], [190, 100])


def test_spells_without_length_are_not_even() -> None:
    assert unevenness(np.array([0.0, 0.0, 0.0])) == 1
    assert unevenness(np.array([0.0, 0.0, 1.0, 1.0])) == pytest.approx(2 / 3)
