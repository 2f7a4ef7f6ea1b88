"""Whether a function of the program takes longer each time it is called, within one window. Pure."""

from __future__ import annotations

from itertools import combinations
from math import sqrt
from statistics import fmean

from whystall.tools.host.common.places import Function
from whystall.tools.host.common.timelines import Timeline

# With fewer calls, a rise from the first to the last third may be that of two calls.
_LEAST_CALLS = 9
# Calls beyond it are averaged in groups of neighbours: the test below compares all pairs.
_MOST_VALUES = 150
# Standard deviations of the Mann-Kendall score from that of a random order: 1 in 700 by chance.
_TREND = 3.0
STEADY = 1.0
"""Growth of a function that takes equally long each time, as far as samples can tell."""


def growth_of(line: Timeline, function: Function) -> float | None:
    """Return the CPU time that thread `line` spends in a call of `function`, its callees included, in the last third of
    the window's calls as a multiple of that in the first third; `STEADY` without a trend, None with too few calls.

    A call is a run of samples with the function on the stack, so that calls with nothing between them count as one, and
    one shorter than the period of the samples may be missed. Time off the CPU does not count: a neighbour on the CPU
    makes no call longer. Test for a trend: Mann-Kendall (H. B. Mann, Econometrica 13, 1945), normal approximation.
    """
    calls = _calls(line, function)[1:-1]  # the window may cut off the first and the last one
    if len(calls) < _LEAST_CALLS:
        return None
    size = -(-len(calls) // _MOST_VALUES)
    values = [fmean(calls[at : at + size]) for at in range(0, len(calls), size)]
    third = max(len(values) // 3, 1)
    ratio = fmean(values[-third:]) / fmean(values[:third])
    return ratio if abs(_score(values)) >= _TREND else STEADY


def _calls(line: Timeline, function: Function) -> list[int]:
    """Return the number of samples in each call, in order."""
    moments = [(sample.at_ns, sample.place, True) for sample in line.samples if sample.place.python]
    moments += [(wait.start_ns, wait.place, False) for wait in line.waits if wait.place.python]
    found, count = [], 0
    for _, place, ran in sorted(moments, key=lambda moment: moment[0]):
        if function in place.functions:
            count += ran
        elif count:
            found.append(count)
            count = 0
    return [*found, count] if count else found


def _score(values: list[float]) -> float:
    """Return by how many standard deviations the Mann-Kendall score differs from that of a random order."""
    count = len(values)
    score = sum((b > a) - (b < a) for a, b in combinations(values, 2))
    ties = [values.count(value) for value in set(values)]
    variance = (count * (count - 1) * (2 * count + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    return score / sqrt(variance) if variance > 0 else 0.0
