"""Find periods: quiet bands or busy bursts that recur evenly.

The search uses the bands, not a spectrum: the time between bands has no harmonics, and a band has a length and a place.
Longest bands come first, so that a rare long stall is found although short pauses come between; pauses are then
searched for between the stalls. Results must be unlikely by chance (`chance`), corrected for the number of searches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from whystall.tools.profiles.heat_map.activity import Activity, Runs, closed
from whystall.tools.profiles.heat_map.chance import jitter, p_value, unevenness

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

What = Literal["quiet", "busy"]
LEAST_PERIODS = 4
REGULAR = 0.2
"""Largest scatter of single intervals of a period, as a share of it."""
MOST_P = 0.005
"""After correction for the number of searches."""
# Up to this share of quiet time, quiet intervals can be bands; beyond it, only busy ones.
_MOSTLY_QUIET = 0.8
# Least share of the window of all bands, and least period in sampling intervals.
_LEAST_SHARE = 0.01
_LEAST_PERIOD = 4
_SAME = 0.12
_MOST_FOUND = 3
_MOST_RUNS = 20_000
_FINER = 0.85  # ratio of successive minimum lengths of bands
# Shorter bands than this share of the longest are of another kind.
_ALIKE = 0.5
# Largest interrupted share of a band.
_INTERRUPTED = 0.25
_BLIPS_NS = tuple(int(ms * 1e6) for ms in (0, 0.1, 0.3, 1, 3, 10, 30, 100, 300))


@dataclass(frozen=True)
class Period:
    """Bands that recur.

    `period_ns`: median time from start to start. `band_ns`: median length. `jitter`: scatter of single periods, as a
    share. `share`: of the observed time. `p_value`: corrected for the number of searches.
    """

    what: What
    bands: Runs
    period_ns: float
    band_ns: float
    jitter: float
    share: float
    p_value: float

    @property
    def total_ns(self) -> int:
        """Return the total length of the bands."""
        return int(self.bands.lengths.sum())


def periods(activity: Activity, searches: int = 1) -> list[Period]:
    """Return the periods in `activity`, longest bands first; empty if nothing recurs evenly.

    `searches`: the number of activities the caller searches in all, for the correction of `p_value`.
    """
    found: list[Period] = []
    taken: list[Runs] = []
    while len(found) < _MOST_FOUND:
        candidates = [
            one for one in _candidates(activity, taken, searches) if not any(_same(one, other) for other in found)
        ]
        if not candidates:
            break
        best = _preferred(candidates)
        found.append(best)
        taken.append(best.bands)
    return found


def _preferred(candidates: Sequence[Period]) -> Period:
    """Return the longest quiet bands, else the longest bursts; of one period the least likely by chance."""
    longest = max(candidates, key=lambda one: (one.what == "quiet", one.band_ns))
    alike = [one for one in candidates if one.what == longest.what and _same(one, longest)]
    return min(alike, key=lambda one: (one.p_value, -one.total_ns))


def _same(one: Period, other: Period) -> bool:
    return abs(one.period_ns - other.period_ns) <= _SAME * max(one.period_ns, other.period_ns)


def _candidates(activity: Activity, taken: Sequence[Runs], searches: int) -> Iterator[Period]:
    """Yield the first period from the longest bands downward, for quiet and busy ones, ignoring short interruptions."""
    quiet = float(activity.quiet.lengths.sum()) / max(activity.last - activity.first, 1)
    kinds: tuple[tuple[What, Runs, bool], ...] = (
        ("quiet", activity.quiet, quiet <= _MOSTLY_QUIET),
        ("busy", activity.busy, quiet >= 0.5),
    )
    for what, runs, exceptional in kinds:
        if not exceptional:
            continue
        before = -1
        for blip in _BLIPS_NS:
            if blip and blip < activity.resolution:
                continue
            whole, own = closed(runs, blip)
            if len(whole) == before:  # nothing was closed: as before
                continue
            before = len(whole)
            whole = whole.where(own >= (1 - _INTERRUPTED) * whole.lengths)
            if one := _from_longest(what, whole, activity, taken, searches):
                yield one


@dataclass(frozen=True)
class _Try:
    least: float
    bands: Runs
    period: float
    uneven: float
    intervals: int
    p_value: float

    @property
    def typical_total(self) -> float:
        """Return the number of bands times their median length."""
        import numpy as np

        return float(np.median(self.bands.lengths)) * len(self.bands)


def _from_longest(what: What, runs: Runs, activity: Activity, taken: Sequence[Runs], searches: int) -> Period | None:
    import numpy as np

    observed = activity.last - activity.first - int(activity.holes.lengths.sum())
    inner = (runs.starts > activity.first) & (runs.ends < activity.last)
    for one in (activity.holes, *taken):
        inner &= ~_touch(runs, one)
    runs = runs.where(inner)
    if len(runs) <= LEAST_PERIODS or observed <= 0:
        return None
    barriers = np.sort(np.concatenate([activity.holes.starts, *(one.starts for one in taken)]))
    tries = list(_tries(what, runs, barriers, activity.resolution, _LEAST_SHARE * observed))
    # Alpha spending: the tries get 1/2, 1/6, 1/12 ... of the error probability, in all one.
    spent = {one.least: (at + 1) * (at + 2) * searches for at, one in enumerate(tries)}
    good = [
        one
        for one in tries
        if one.p_value * spent[one.least] <= MOST_P and jitter(one.uneven, one.intervals) <= REGULAR
    ]
    if not good:
        return None
    first = good[0]
    related = [one for one in good if one.least >= _ALIKE * first.least and _multiple(first.period, one.period)]
    best = min(related, key=lambda one: (one.p_value, one.least))
    lengths = best.bands.lengths
    return Period(
        what=what,
        bands=best.bands,
        period_ns=best.period,
        band_ns=float(np.median(lengths)),
        jitter=jitter(best.uneven, best.intervals),
        share=float(lengths.sum()) / observed,
        p_value=min(best.p_value * spent[best.least], 1.0),
    )


def _multiple(longer: float, shorter: float) -> bool:
    """Return whether `longer` is a small multiple of `shorter`: shorter bands lie between the longer ones."""
    times = longer / shorter
    return any(abs(times - whole) <= _SAME * whole for whole in (1, 2, 3, 4))


def _tries(what: What, runs: Runs, barriers: NDArray[np.int64], resolution: int, least_total: float) -> Iterator[_Try]:
    """Yield every distinct set of bands of a minimum length, from the longest downward."""
    import numpy as np

    lengths = np.sort(runs.lengths)[::-1][:_MOST_RUNS]
    if len(lengths) <= LEAST_PERIODS:
        return
    floor = max(float(lengths[-1]), 1.0)
    least, before = float(lengths[LEAST_PERIODS]), 0
    while True:
        bands = runs.where(runs.lengths >= least)
        if len(bands) != before:
            before = len(bands)
            one = _try(what, least, bands, barriers)
            # by the median band: a single long one is no rhythm
            if one is not None and one.typical_total >= least_total and one.period >= _LEAST_PERIOD * resolution:
                yield one
        if least <= floor:
            return
        least = max(least * _FINER, floor)


def _try(what: What, least: float, bands: Runs, barriers: NDArray[np.int64]) -> _Try | None:
    import numpy as np

    one_period = np.ones(len(bands) - 1, dtype=bool)
    if len(barriers):  # bands with another kind between them are not one period apart
        one_period = np.diff(np.searchsorted(barriers, bands.starts)) == 0
    intervals = np.diff(bands.starts).astype(np.float64)[one_period]
    if len(intervals) < LEAST_PERIODS:
        return None
    work = (bands.starts[1:] - bands.ends[:-1]).astype(np.float64)[one_period]
    # a band between two of another kind has no neighbour and so no period
    bands = bands.where(np.concatenate([one_period, [False]]) | np.concatenate([[False], one_period]))
    uneven = unevenness(intervals)
    share = min(float(bands.lengths.mean() / intervals.mean()), 1.0)
    # pauses come at random; busy bands are the time between them
    chance = p_value(uneven, len(intervals), share if what == "quiet" else 1 - share)
    if what == "quiet":
        # a loop of work and waiting may have even work but uneven waits: the better of two searches
        chance = 2 * min(chance, p_value(unevenness(work), len(work), 0.0))
    return _Try(least, bands, float(np.median(intervals)), uneven, len(intervals), chance)


def _touch(runs: Runs, others: Runs) -> NDArray[np.bool_]:
    """Mark the `runs` that overlap one of `others` (disjoint, in time order)."""
    import numpy as np

    if not len(others):
        return np.zeros(len(runs), dtype=bool)
    after = np.searchsorted(others.ends, runs.starts, side="right")
    inside = after < len(others)
    touched: NDArray[np.bool_] = inside & (others.starts[np.minimum(after, len(others) - 1)] < runs.ends)
    return touched
