"""Folded counts of a program whose functions run for a known number of samples at a time: nothing is named where
nothing changed, and what changed is, if the bursts allow it.
"""

from __future__ import annotations

import numpy as np
import pytest

from whystall.tools.profiles.flamegraph_diff.comparison import Difference, compare
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.tree import Part

pytestmark = pytest.mark.thorough

SAMPLES, FUNCTIONS = 4000, 24
REST = np.linspace(1, 12, FUNCTIONS)


def folded(counts: np.ndarray) -> StackProfile:
    """As ``stackcollapse-perf.pl`` writes it; the last function is ``target``."""
    build = Builder()
    event = build.event("samples")
    for at, count in enumerate(counts):
        name = "target" if at == len(counts) - 1 else f"f{at}"
        if count:
            build.sample(
                build.stack([build.frame(one) for one in ("main", f"part{at % 3}", name)]), event, float(count)
            )
    return build.profile("folded")


def run(rng: np.random.Generator, target: int, burst: int = 1) -> np.ndarray:
    """Counts of one run whose functions stay for `burst` samples on average, geometrically distributed."""
    shares = np.append(REST / REST.sum() * (SAMPLES - target), target) / SAMPLES
    lengths = rng.geometric(1 / burst, 2 * SAMPLES // burst + 100)
    which = np.repeat(rng.choice(len(shares), len(lengths), p=shares), lengths)[:SAMPLES]
    return np.bincount(which, minlength=len(shares))


def differences(burst: int, targets: tuple[int, int], count: int) -> list[Difference]:
    rng = np.random.default_rng(burst)
    return [compare(*(Part(folded(run(rng, one, burst))) for one in targets)) for _ in range(count)]


def named(one: Difference) -> set[str]:
    return {one.tree.labels[row.group.frame] for row in one.rows if row.role == "proven"}


@pytest.mark.parametrize("burst", [1, 3, 10, 30])
def test_the_same_program_twice_names_nothing(burst: int) -> None:
    found = differences(burst, (27, 27), 25)
    assert sum(bool(named(one)) for one in found) == 0
    # the variance of geometric runs of this mean, relative to single samples
    assert np.median([one.bursts.factor for one in found]) == pytest.approx(2 * burst - 1, rel=0.6)


def test_27_of_4000_samples_that_become_111_are_named() -> None:
    found = differences(1, (27, 111), 25)
    assert sum(named(one) == {"target"} for one in found) >= 23
    shares = [int(one) for one in REST / REST.sum() * SAMPLES]
    exactly = compare(Part(folded(np.array([*shares, 27]))), Part(folded(np.array([*shares, 111]))))
    assert (named(exactly), exactly.bursts.functions) == ({"target"}, FUNCTIONS)


def test_in_long_bursts_it_is_chance_and_a_larger_change_is_not() -> None:
    assert not any(named(one) for one in differences(10, (27, 111), 10))
    assert sum(named(one) == {"target"} for one in differences(10, (100, 1000), 10)) >= 9


def test_functions_that_scatter_in_both_directions_are_bursts_not_changes() -> None:
    """A third of the functions runs for 40 samples at a time, the others for one: some gain and as many lose."""
    counts = np.array([*np.full(16, 200), *np.full(8, 100)])
    other = counts.copy()
    other[16:] += np.array([75, -70, 60, -80, 90, -65, 70, -60])
    assert named(compare(Part(folded(counts)), Part(folded(other)))) == set()


def test_many_samples_are_not_called_too_few() -> None:
    rng = np.random.default_rng(9)
    counts = [rng.multinomial(68_052, REST / REST.sum()) for _ in range(2)]
    found = compare(*(Part(folded(one)) for one in counts))
    assert (found.verdict, found.reasons) == ("alike", ("bursts_estimated",))
    assert found.bound is not None
    assert found.bound < 3
