"""Steps of busy but healthy hosts accuse no rank, and faults of the same size are named: by simulation, fixed seeds.

Whole jobs are simulated elsewhere (rank_jobs); here are the ranks' times per step alone, for many seeds.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest

from whystall.tools.ranks.slow_node_check.examine import Suspects, examine
from whystall.tools.ranks.slow_node_check.grid import Grid

STEP_NS = 43e6
SIZES = [(2, 20), (4, 20), (4, 60), (8, 60), (2, 200)]


@dataclass(frozen=True)
class Host:
    """`jitter`: of a step; `spells`: how much of it is as in the step before. `stalls`: share of steps in which one of
    `stall_steps` steps begins, of `stall_ms` at least each (heavy-tailed)."""

    jitter: float = 0.03
    spells: float = 0.0
    stalls: float = 0.0
    stall_ms: float = 10.0
    stall_steps: int = 1


HOSTS = {
    "loud": Host(jitter=0.1),
    "busy": Host(jitter=0.1, spells=0.6),
    "very busy": Host(jitter=0.15, spells=0.8),
    "stalls": Host(jitter=0.05, stalls=0.03, stall_ms=15),
    "stalls of four steps": Host(jitter=0.05, stalls=0.01, stall_steps=4),
}


def times(host: Host, ranks: int, steps: int, seed: int) -> list[list[float]]:
    """Times in ns, a row per step."""
    dice = random.Random(seed)
    pace, stalled = [dice.gauss(0, 1) for _ in range(ranks)], [0] * ranks
    table = []
    for _ in range(steps):
        row = []
        for rank in range(ranks):
            pace[rank] = host.spells * pace[rank] + math.sqrt(1 - host.spells**2) * dice.gauss(0, 1)
            took = STEP_NS * math.exp(host.jitter * pace[rank])
            if not stalled[rank] and dice.random() < host.stalls:
                stalled[rank] = host.stall_steps
            if stalled[rank]:
                stalled[rank] -= 1
                took += host.stall_ms * 1e6 * min(20.0, dice.paretovariate(1.5))
            row.append(took)
        table.append(row)
    return table


def examined(own: list[list[float]]) -> Suspects:
    names = [str(rank) for rank in range(len(own[0]))]
    frame = pl.DataFrame(own, schema=names, orient="row")
    wait = frame.select((pl.max_horizontal(pl.all()) - pl.col(name)).alias(name) for name in names)
    step_ns = float(pl.Series(max(row) for row in own).median())  # type: ignore[arg-type]
    return examine(Grid(tuple(range(len(names))), tuple(range(len(own))), frame, wait, frame, step_ns), 0.1 * step_ns)


def accused(found: Suspects) -> list[tuple[int, str]]:
    at_times: list[Any] = [(one.rank, one.shape) for one in found.at_times]
    return [(one.rank, "late") for one in found.late] + at_times


@pytest.mark.thorough
@pytest.mark.parametrize("host", HOSTS)
def test_hardly_ever_is_a_rank_of_a_healthy_job_accused(host: str) -> None:
    """One in a hundred would be what the tests promise; it is far less, of 75 jobs."""
    found = [
        (ranks, steps, seed)
        for ranks, steps in SIZES
        for seed in range(15)
        if accused(examined(times(HOSTS[host], ranks, steps, seed)))
    ]
    assert len(found) <= 1, found


FAULTS = {
    "late": range(1000),
    "period": range(0, 1000, 5),
    "start": range(3),
    "stretch": range(20, 40),
    "drift": range(1000),
}


def faulty(shape: str, host: Host, ranks: int, steps: int, seed: int) -> Suspects:
    """Half a step more in the steps of `shape`, or 1 % of one more with every step."""
    own = times(host, ranks, steps, seed)
    for row in FAULTS[shape]:
        if row < steps:
            own[row][seed % ranks] += STEP_NS * (0.01 * row if shape == "drift" else 0.5)
    return examined(own)


QUIET = {
    "late": [(2, 20), (8, 20)],
    "period": [(2, 20), (4, 20), (8, 60)],
    "start": [(2, 200), (4, 200), (8, 200)],
    "stretch": [(2, 80), (8, 60)],
    "drift": [(2, 60), (8, 60)],
}
STALLS = {"late": [(2, 20), (4, 60)], "period": [(4, 60), (8, 60)], "stretch": [(4, 80)], "drift": [(2, 60), (8, 60)]}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("shape", "host", "sizes"),
    [(shape, Host(), sizes) for shape, sizes in QUIET.items()]
    + [(shape, Host(jitter=0.05, stalls=0.01, stall_ms=12), sizes) for shape, sizes in STALLS.items()],
)
def test_a_faulty_rank_is_named(shape: str, host: Host, sizes: list[tuple[int, int]]) -> None:
    for ranks, steps in sizes:
        named = [accused(faulty(shape, host, ranks, steps, seed)) for seed in range(10)]
        right = sum(found == [(seed % ranks, shape)] for seed, found in enumerate(named))
        assert right >= 9, (ranks, steps, named)


def test_too_few_steps_are_undecided() -> None:
    """Three slow steps at the start of twenty, or a stretch of six, may be a healthy rank's only stall."""
    for seed in range(10):
        for rows in (range(3), range(6, 12)):
            own = times(Host(), 4, 20, seed)
            for row in rows:
                own[row][1] += STEP_NS / 2
            found = examined(own)
            assert (accused(found), found.doubtful) == ([], True)
