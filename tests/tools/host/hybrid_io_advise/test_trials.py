"""What a calibration is taken to say: bounds that hold, crossovers that were found, and none where there is noise."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import polars as pl
import pytest

from whystall.tools.collect.tables import CALIBRATION
from whystall.tools.host.hybrid_io_advise.trials import (
    LEAST_TRIALS,
    Compared,
    compare,
    cpu_crossover,
    crossover,
    median_bounds,
    nearest,
)

KIB, MIB = 1 << 10, 1 << 20
SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB)


def trials(
    ratios: dict[int, list[float]], *, way: str = "direct", operation: str = "read", cpu: dict[int, float] | None = None
) -> pl.DataFrame:
    """Rounds in which `way` moves so many times what today's way moves, and takes `cpu` times its CPU time per byte."""
    rows = []
    base = {"read": "buffered", "write": "synced"}[operation]
    for size, found in ratios.items():
        for number, ratio in enumerate(found):
            wall = 1_000_000 + 100_000 * number  # the disk gets slower meanwhile: rounds are compared each by itself
            for name, wall_ns, cpu_ns in (
                (base, wall, 400_000),
                (way, int(wall / ratio), int(400_000 * (cpu or {}).get(size, 1.0))),
            ):
                row = {"directory": "/d", "dev": "8:1", "fstype": "ext4", "operation": operation, "way": name}
                moved = {"request_bytes": size, "bytes": MIB, "wall_ns": wall_ns, "cpu_ns": cpu_ns, "trial": number}
                rows.append(row | moved)
    return pl.DataFrame(rows, schema=CALIBRATION["trials"], orient="row")


def steady(ratio: float, rounds: int = 8) -> list[float]:
    return [ratio * (1 + 0.01 * (number % 3)) for number in range(rounds)]


def noisy(rounds: int = 8) -> list[float]:
    return [0.5, 2.0] * (rounds // 2)


@pytest.mark.parametrize("count", range(5, 24))
def test_bounds_hold_the_median_as_often_as_is_said(count: int) -> None:
    """By the binomial, exactly: of `count` values, those outside of the bounds are on one side with such a chance."""
    bounds = median_bounds([float(value) for value in range(count)])
    outside = int(bounds.low)
    assert bounds.high == count - 1 - outside
    chance = 1 - 2 * sum(math.comb(count, k) for k in range(outside + 1)) / 2**count
    assert chance >= 0.9
    closer = 1 - 2 * sum(math.comb(count, k) for k in range(outside + 2)) / 2**count
    assert closer < 0.9


def test_bounds_hold_for_a_skewed_distribution_too() -> None:
    chance = random.Random(7)
    true = math.log(2)
    held = 0
    for _ in range(1000):
        bounds = median_bounds([chance.expovariate(1) for _ in range(16)])
        held += bounds.low <= true <= bounds.high
    assert 880 <= held <= 960


def test_one_value_is_its_own_median() -> None:
    assert median_bounds([3.0]) == (3.0, 3.0, 3.0)


def test_what_is_clearly_faster_or_slower_is_told_from_noise() -> None:
    found = compare(trials({4 * KIB: steady(0.2), 64 * KIB: noisy(), MIB: steady(1.5)}))
    assert [row.clear for row in found] == ["slower", "unclear", "faster"]
    fast = found[-1]
    assert (fast.trials, fast.way, fast.dev, fast.filesystem) == (8, "direct", "8:1", "ext4")
    assert fast.low_ratio <= fast.ratio <= fast.high_ratio
    assert fast.ratio == pytest.approx(1.5, rel=0.03)
    assert fast.cpu_ratio == 1


def test_a_disk_that_slows_down_changes_no_ratio() -> None:
    """The rounds differ by a factor of 1.7 in speed, and not in what the ways are to each other."""
    (row,) = compare(trials({MIB: [1.2] * 8}))
    assert row.low_ratio == pytest.approx(1.2, abs=0.01)
    assert row.high_ratio == pytest.approx(1.2, abs=0.01)


def test_few_trials_say_nothing() -> None:
    (row,) = compare(trials({MIB: steady(5.0, LEAST_TRIALS - 1)}))
    assert row.clear == "unclear"
    assert not row.enough
    assert not row.less_cpu
    assert row.cpu_ratio is None
    assert crossover([row]) is None
    assert nearest([row], MIB) is None


def test_the_crossover_is_where_every_larger_size_is_faster() -> None:
    assert crossover(compare(trials({4 * KIB: steady(0.2), 64 * KIB: steady(1.2), MIB: steady(2)}))) == 64 * KIB
    assert crossover(compare(trials({4 * KIB: steady(1.2), 64 * KIB: steady(0.9), MIB: steady(2)}))) == MIB
    assert crossover(compare(trials({4 * KIB: steady(1.2), 64 * KIB: steady(1.2), MIB: noisy()}))) is None
    assert crossover(compare(trials({size: steady(0.8) for size in SIZES}))) is None
    assert crossover(compare(trials({size: noisy() for size in SIZES}))) is None
    assert crossover([]) is None


def test_a_disk_that_is_as_fast_both_ways_may_still_cost_less_cpu() -> None:
    cheaper = {4 * KIB: 8.0, 64 * KIB: 1.0, MIB: 0.3, 16 * MIB: 0.1}
    found = compare(trials({size: noisy() for size in SIZES}, cpu=cheaper))
    assert crossover(found) is None
    assert cpu_crossover(found) == MIB
    slower = compare(trials({size: steady(0.5) for size in SIZES}, cpu=cheaper))
    assert cpu_crossover(slower) is None


def test_what_was_tried_with_smaller_requests_holds_for_larger_ones_and_not_the_other_way_round() -> None:
    found = compare(trials({64 * KIB: steady(1.2), MIB: steady(2)}))
    assert nearest(found, 4 * KIB) is None
    for asked, tried in ((64 * KIB, 64 * KIB), (512 * KIB, 64 * KIB), (MIB, MIB), (64 * MIB, MIB)):
        row = nearest(found, asked)
        assert row is not None
        assert row.request_bytes == tried


def test_writes_are_compared_until_they_are_on_the_disk() -> None:
    (row,) = compare(trials({MIB: steady(1.5)}, operation="write"))
    assert row.ratio == pytest.approx(1.5, rel=0.03)
    assert row.way == "direct"


def test_turned_round_it_says_the_same() -> None:
    (row,) = compare(trials({MIB: steady(0.25)}, cpu={MIB: 4.0}))
    turned = row.turned()
    assert (turned.way, turned.clear) == ("buffered", "faster")
    assert turned.ratio == pytest.approx(1 / row.ratio)
    assert turned.low_ratio <= turned.ratio <= turned.high_ratio
    assert turned.cpu_ratio == pytest.approx(0.25)
    assert turned.moved_bytes_rate == row.base_bytes_rate


def test_damaged_trials_are_left_out() -> None:
    good = trials({MIB: steady(1.5)})
    bad = good.with_columns(bytes=pl.lit(0, pl.Int64), trial=pl.col("trial") + 100)
    (row,) = compare(pl.concat([good, bad, good.with_columns(operation=pl.lit("rename"))]))
    assert row.trials == 8
    alone = good.filter(pl.col("way") == "direct")
    assert compare(alone) == []
    assert compare(good.clear()) == []


def test_sizes_come_in_order() -> None:
    found: list[Compared] = compare(trials({size: steady(1.0) for size in reversed(SIZES)}))
    assert all(a.request_bytes < b.request_bytes for a, b in pairwise(found))
