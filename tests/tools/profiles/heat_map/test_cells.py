"""Cells: a column per second, bounded, and dark only where it was quiet."""

from __future__ import annotations

import numpy as np
import pytest

from whystall.tools.profiles.heat_map.cells import (
    CELL_NS,
    MOST_COLUMNS,
    ROWS,
    Grid,
    Presence,
    extent_of,
    grid_of,
    merged,
)

SECOND = 1_000_000_000


def spells(*pairs: tuple[float, float]) -> Presence:
    starts, ends = (np.array(pairs) * SECOND).astype(np.int64).T
    return Presence(starts, ends)


def samples(at: np.ndarray, interval: float = 0.01) -> Presence:
    starts = (at * SECOND).astype(np.int64)
    return Presence(starts, starts + int(interval * SECOND))


def drawn(
    presence: Presence, window: tuple[float, float] | None = None, holes: tuple[tuple[float, float], ...] = ()
) -> Grid:
    known = (int(window[0] * SECOND), int(window[1] * SECOND)) if window else None
    lost = [(int(a * SECOND), int(b * SECOND)) for a, b in holes]
    return grid_of(presence, extent_of(presence, known), lost)


def test_a_spell_is_spread_over_its_cells() -> None:
    grid = drawn(spells((0.01, 0.05), (0.9, 1.31)), (0, 3))
    assert grid.value.shape == (3, ROWS)
    assert grid.cell_ns == CELL_NS
    assert grid.value[0, :4].tolist() == pytest.approx([0.5, 1.0, 0.5, 0.0])
    assert grid.value[0, 45:].tolist() == pytest.approx([1.0] * 5)
    assert grid.value[1, 14:17].tolist() == pytest.approx([1.0, 0.5, 0.0])
    assert np.nansum(grid.value) * CELL_NS == pytest.approx(0.45 * SECOND)


def test_the_end_is_the_latest_and_order_does_not_matter() -> None:
    at = np.arange(0, 7.5, 0.01)
    shuffled = np.random.default_rng(0).permutation(at)
    grid = drawn(samples(shuffled))
    assert len(grid.columns) == 8
    assert np.allclose(grid.value, drawn(samples(at)).value, equal_nan=True)
    assert grid.last == pytest.approx(7.5 * SECOND, abs=0.02 * SECOND)


def test_one_stray_instant_makes_no_huge_picture() -> None:
    at = np.concatenate([np.arange(0, 30, 0.01), [4e9]])
    grid = drawn(samples(at))
    assert len(grid.columns) == 30
    assert (grid.outliers, grid.gaps) == (1, 0)


def test_long_gaps_are_cut_out() -> None:
    at = np.concatenate([np.arange(0, 5, 0.01), np.arange(5000, 5005, 0.01)])
    grid = drawn(samples(at))
    assert len(grid.columns) == 10
    assert (grid.outliers, grid.gaps) == (0, 1)
    assert np.nanmean(grid.value) == pytest.approx(1.0, abs=0.01)


def test_an_hour_is_bounded() -> None:
    grid = drawn(samples(np.arange(0, 3600, 0.05), 0.05))
    assert len(grid.columns) <= MOST_COLUMNS
    assert grid.column_ns == 2 * SECOND
    assert np.nanmean(grid.value) == pytest.approx(1.0, abs=0.01)


def test_what_was_not_observed_is_not_dark() -> None:
    grid = drawn(spells((0, 0.3)), (0, 1.5), holes=((0.5, 0.6),))
    assert np.isnan(grid.value[1, 25:]).all()
    assert np.isnan(grid.value[0, 25:30]).all()
    assert (grid.value[0, 30:] == 0).all()
    assert (grid.value[1, :25] == 0).all()


def test_a_hair_beyond_a_second_is_no_column() -> None:
    assert len(drawn(spells((0, 8)), (0, 8.0007)).columns) == 8
    assert np.nansum(drawn(spells((0, 8.0007)), (0, 8.0007)).value) == pytest.approx(8 * ROWS, rel=1e-6)


def test_full_is_what_is_ever_busy_at_once() -> None:
    pool = [(at * 1.0, at + 0.5) for at in range(5)] * 4
    grid = drawn(spells(*pool), (0, 5))
    assert grid.lanes == 4
    assert grid.value[0, 3] == pytest.approx(1.0)
    assert drawn(spells((0, 0.004), (1, 1.004)), (0, 2)).lanes == 1


def test_outside_of_the_window_is_counted() -> None:
    extent = extent_of(spells((-5, -4), (0.1, 0.2), (3, 4)), (0, SECOND))
    assert extent.outliers == 2


def test_nested_work_counts_once() -> None:
    starts, ends = np.array([0, 10, 30, 5]), np.array([20, 15, 40, 8])
    who, presence = merged(np.array([0, 0, 0, 1]), starts, ends)
    assert who.tolist() == [0, 0, 1]
    assert list(zip(presence.starts.tolist(), presence.ends.tolist(), strict=True)) == [(0, 20), (30, 40), (5, 8)]


def test_nothing_has_no_columns() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    grid = drawn(Presence(nothing, nothing))
    assert len(grid.columns) == 0
    assert grid.cell_of(np.array([5])).tolist() == [-1]


def test_cells_of_instants() -> None:
    grid = drawn(samples(np.concatenate([np.arange(0, 2, 0.01), np.arange(100, 102, 0.01)])))
    at = (np.array([0.0, 0.03, 1.99, 50.0, 100.5]) * SECOND).astype(np.int64)
    assert grid.cell_of(at).tolist() == [0, 1, 99, -1, 125]


@pytest.mark.parametrize(
    ("seconds", "interval_ns", "column_s"),
    [(20, 1e7, 1), (5, 1e7, 0.5), (2, 1e7, 0.2), (0.5, 1e7, 0.05), (0.1, 1e7, 0.05), (0.1, 0, 0.01), (2, 1e8, 0.5)],
)
def test_short_windows_have_shorter_columns_but_not_finer_cells_than_samples_show(
    seconds: float, interval_ns: float, column_s: float
) -> None:
    presence = samples(np.arange(0, seconds, 0.01))
    grid = grid_of(presence, extent_of(presence, (0, int(seconds * SECOND))), (), interval_ns)
    assert grid.column_ns == pytest.approx(column_s * SECOND)
    assert np.nanmean(grid.value) == pytest.approx(1, abs=0.02)
    assert grid.lanes == 1
