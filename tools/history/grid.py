"""Rows of the history as a matrix: what was waited for, and what ran, by time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from whystall.tools.collect.slice_history import PART_NS, RUNNING, HistoryRow, Minute, Place

Floats = NDArray[np.float64]
MOST_COLUMNS = 2160
"""Columns of a span: six hours of ten seconds; of a longer one each is longer."""
MOST_ROWS = 1000
# Waits of which none ended, and whose time varies by no more than this share of its mean, are of idle threads.
_STEADY = 0.05
_LEAST_S = 0.001


class RowKey(NamedTuple):
    """A row: the name of the job (empty if unknown), and what its threads wait for, or run."""

    job: str
    place: Place


@dataclass(frozen=True)
class Grid:
    """`start_ns`: of the first column (CLOCK_REALTIME), `column_ns`: the length of each. `recorded`: seconds recorded
    in each column; `waited`: rows x columns, seconds of all threads of the row, of `running` ones of CPU time. `count`,
    `longest_ns`, `pids`: of each row; `enders`: who ended most of the time of its waits that ended, empty if unknown.
    `left_out`: rows beyond `MOST_ROWS`, and those of less than a millisecond."""

    start_ns: int
    column_ns: int
    keys: tuple[RowKey, ...]
    recorded: Floats
    waited: Floats
    count: tuple[int, ...]
    longest_ns: tuple[int, ...]
    pids: tuple[tuple[int, ...], ...]
    enders: tuple[str, ...]
    left_out: int = 0

    @property
    def totals(self) -> Floats:
        """Return the seconds of each row."""
        return np.asarray(self.waited.sum(axis=1))

    @property
    def running(self) -> NDArray[np.bool_]:
        """Return which rows are CPU time, not waits."""
        return np.array([key.place.state == RUNNING for key in self.keys], np.bool_)

    @property
    def idle(self) -> NDArray[np.bool_]:
        """Return which rows are of threads that waited all the time and were never woken: no wait of them ended."""
        rates, weight = self.rates(), self.recorded > 0
        if not weight.any():
            return np.zeros(len(self.keys), np.bool_)
        known = rates[:, weight]
        steady = known.std(axis=1) <= _STEADY * np.maximum(known.mean(axis=1), 1e-12)
        return np.asarray(steady & ~self.running & (np.array(self.count, np.int64) == 0) & (known.shape[1] > 1))

    def rates(self) -> Floats:
        """Return seconds of waiting per recorded second, rows x columns; 0 where nothing was recorded."""
        return np.asarray(self.waited / np.where(self.recorded > 0, self.recorded, np.inf))


def grid_of(
    minutes: Sequence[Minute], start_ns: int, end_ns: int, wanted: Callable[[Minute, HistoryRow], bool]
) -> Grid:
    """Return the grid of the parts of `minutes` from the one at `start_ns` to the one before `end_ns`, of the rows that
    are `wanted`."""
    first = start_ns // PART_NS
    parts = max(1, end_ns // PART_NS - first)
    per = -(-parts // MOST_COLUMNS)
    columns = -(-parts // per)
    recorded = np.zeros(columns)
    cells: dict[RowKey, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    counts: dict[RowKey, list[int]] = defaultdict(lambda: [0, 0])
    pids: dict[RowKey, set[int]] = defaultdict(set)
    enders: dict[RowKey, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for minute in minutes:
        begun = minute.minute_ns // PART_NS - first
        inside = [at for at in range(len(minute.recorded_ns)) if 0 <= begun + at < parts]
        for at in inside:
            recorded[(begun + at) // per] += minute.recorded_ns[at] / 1e9
        for row in minute.rows:
            if not wanted(minute, row) or not any(row.parts_ns[at] for at in inside):
                continue
            job = minute.jobs.get(row.pid)
            key = RowKey(job.name if job is not None else "", row.place)
            for at in inside:
                if row.parts_ns[at]:
                    cells[key][(begun + at) // per] += row.parts_ns[at] / 1e9
            counts[key][0] += row.number
            counts[key][1] = max(counts[key][1], row.longest_ns)
            pids[key].add(row.pid)
            for who, took in row.enders:
                enders[key][who] += took
    totals = {key: sum(row.values()) for key, row in cells.items()}
    ordered = sorted((key for key in cells if totals[key] >= _LEAST_S), key=lambda key: (-totals[key], key))
    keys = tuple(ordered[:MOST_ROWS])
    waited = np.zeros((len(keys), columns))
    for at, key in enumerate(keys):
        for column, seconds in cells[key].items():
            waited[at, column] = seconds
    return Grid(
        first * PART_NS,
        per * PART_NS,
        keys,
        recorded,
        waited,
        tuple(counts[key][0] for key in keys),
        tuple(counts[key][1] for key in keys),
        tuple(tuple(sorted(pids[key])) for key in keys),
        tuple(max(enders[key], key=lambda who, of=enders[key]: of[who], default="") for key in keys),  # type: ignore[misc]
        len(cells) - len(keys),
    )


def aligned(one: Grid, other: Grid) -> tuple[tuple[RowKey, ...], Floats, Floats]:
    """Return the rows of both grids, and the rates of each for them: 0 where a grid does not have the row."""
    keys = tuple(dict.fromkeys((*one.keys, *other.keys)))
    made = []
    for grid in (one, other):
        place = {key: at for at, key in enumerate(grid.keys)}
        rates = np.zeros((len(keys), grid.waited.shape[1]))
        own = grid.rates()
        for at, key in enumerate(keys):
            if key in place:
                rates[at] = own[place[key]]
        made.append(rates)
    return keys, made[0], made[1]
