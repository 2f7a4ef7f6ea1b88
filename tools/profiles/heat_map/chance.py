"""The probability that chance makes intervals as even as observed.

Evenness compares neighbouring intervals (Shinomoto's local variation, Neural Computation 15, 2003): a slow drift of the
period does not matter. By chance, pauses begin at random: an interval is the pause plus an exponential wait, and the
evenness depends on the pause's share of the interval. Draws have a fixed seed, so that results are reproducible.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_DRAWS = 4000
_SEED = 20
# Drawn lengths of series; other lengths use the next shorter one, which is conservative.
_LENGTHS = (3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 24, 32, 48, 64)
_PARTS = 20  # steps of the pauses' share, from none to nine tenths
# A missed or additional pause spoils two neighbours: from eight terms on, the most uneven fifth is left out.
_TRIM_FROM, _KEEP = 8, 0.8
# Trimmed mean of squared normal deviations relative to the full mean: 1 - 2 z pdf(z) / 0.8 at z = 1.2816.
_KEPT = 0.4377


def unevenness(intervals: NDArray[np.float64]) -> float:
    """Return the trimmed mean squared relative difference of neighbours; at least two intervals."""
    import numpy as np

    return float(_trimmed(_differences(np.asarray(intervals, dtype=np.float64)[None, :]))[0])


def jitter(uneven: float, intervals: int) -> float:
    """Return the scatter of single intervals, as a share of the interval, that corresponds to `uneven`."""
    kept = _KEPT if intervals - 1 >= _TRIM_FROM else 1.0
    return float((2 * uneven / kept) ** 0.5)


def p_value(uneven: float, intervals: int, pause_share: float) -> float:
    """Return the probability that random pauses are at least this even; `pause_share`: of the interval.

    Below 1 % it is extrapolated with the slope between 10 % and 1 %, which gives no too small value.
    """
    import numpy as np

    terms = max(length for length in _LENGTHS if length <= max(intervals - 1, _LENGTHS[0]))
    # rounded up: random pauses are more even, the larger their share
    drawn = _by_chance(terms, min(int(np.ceil(pause_share * _PARTS)), 18))
    one, ten = drawn[_DRAWS // 100], drawn[_DRAWS // 10]
    if uneven >= one:
        return float(np.searchsorted(drawn, uneven, side="right") + 1) / (_DRAWS + 1)
    if uneven <= 0:
        return 1e-12
    slope = 1.0 / np.log10(ten / one)
    return float(max(0.01 * (uneven / one) ** slope, 1e-12))


@lru_cache(maxsize=256)
def _by_chance(terms: int, parts: int) -> NDArray[np.float64]:
    """Return the unevenness of random pauses, ascending."""
    import numpy as np

    share = parts / _PARTS
    waits = np.random.default_rng(_SEED).exponential(size=(_DRAWS, terms + 1))
    return np.sort(_trimmed(_differences(share + (1 - share) * waits)))


def _differences(intervals: NDArray[np.float64]) -> NDArray[np.float64]:
    import numpy as np

    before, after = intervals[:, :-1], intervals[:, 1:]
    both = before + after
    # two empty intervals are not even
    found: NDArray[np.float64] = np.divide(before - after, both, out=np.ones_like(both), where=both > 0) ** 2
    return found


def _trimmed(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    import numpy as np

    count = terms.shape[1]
    if count < _TRIM_FROM:
        mean: NDArray[np.float64] = terms.mean(axis=1)
        return mean
    keep = int(np.ceil(_KEEP * count))
    kept: NDArray[np.float64] = np.partition(terms, keep - 1, axis=1)[:, :keep].mean(axis=1)
    return kept
