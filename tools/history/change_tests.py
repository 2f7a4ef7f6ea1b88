"""Whether what was waited for has changed: two spans compared, or one span searched for a stretch that differs.

Neighbouring parts of a span depend on each other: a phase of a program lasts. So they are averaged in blocks (batch
means: A. M. Law, J. S. Carson, Operations Research 27, 1979), and blocks are permuted. The statistic of two spans is
the studentised difference of means, whose permutation test holds asymptotically also if the variances differ
(E. Chung, J. P. Romano, Annals of Statistics 41, 2013); the interval is the same test inverted. A stretch within a span
is the one that differs most from the rest, also if it touches an end (circular binary segmentation: A. B. Olshen et
al., Biostatistics 5, 2004), by the same permutations; its interval does not allow for the choice of the stretch. Of all
rows tested together the expected share of false ones among those reported is at most `LEVEL` (Y. Benjamini,
Y. Hochberg, JRSS B 57, 1995).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
LEVEL = 0.05
LEAST_BLOCKS = 8
"""Of each span; with fewer no row can be significant beside others."""
_BLOCKS = 16  # of the shorter span
_SEARCHED = 36
_DRAWS, _SEARCH_DRAWS, _FIRST_DRAWS = 9999, 1999, 199
_FAR = 0.1
_COVERAGE = 0.95
_POWER = 0.8416  # the normal quantile of 80 %
_HALF = 0.5
_SMALL = 1e-3  # least standard error, relative to the larger mean: blocks that all agree are not certain


@dataclass(frozen=True)
class Compared:
    """Per row: the mean rate of each span, seconds of waiting per second; `low` to `high`: interval of the change, 95 %
    for each row alone; `p`, and `q`: p adjusted for all rows. `detectable`: the smallest change that is found with a
    probability of 80 % at the level of a test of all rows (Bonferroni); NaN where it is not known."""

    before: Floats
    after: Floats
    low: Floats
    high: Floats
    p: Floats
    q: Floats
    detectable: Floats


@dataclass(frozen=True)
class Stretches:
    """Per row: the columns [first, last) that differ most from the others, compared with these."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    compared: Compared


def blocks_of(rates: Floats, recorded: Floats, length: int) -> Floats:
    """Return the mean rates of blocks of `length` recorded columns, rows x blocks. What is left over at the end joins
    the last block."""
    kept = rates[:, recorded > 0]
    count = max(1, kept.shape[1] // length)
    edges = np.arange(count) * length
    sums = np.add.reduceat(kept, edges, axis=1) if kept.shape[1] else np.zeros((len(rates), 0))
    sizes = np.diff(np.append(edges, kept.shape[1])) if kept.shape[1] else np.zeros(0)
    return np.asarray(sums / sizes) if kept.shape[1] else sums


def compare(before: Floats, after: Floats, recorded: tuple[Floats, Floats]) -> Compared | None:
    """Compare the rates of two spans (rows x columns each); None with fewer than `LEAST_BLOCKS` in one of them."""
    shorter = int(min((one > 0).sum() for one in recorded))
    length = max(1, shorter // _BLOCKS)
    one, other = (blocks_of(rates, known, length) for rates, known in zip((before, after), recorded, strict=True))
    if min(one.shape[1], other.shape[1]) < LEAST_BLOCKS:
        return None
    return _compared(one, other)


def _compared(one: Floats, other: Floats) -> Compared:
    both = np.concatenate([one, other], axis=1)
    in_other = np.zeros(both.shape[1], np.bool_)
    in_other[one.shape[1] :] = True
    floor = _SMALL * np.maximum(one.mean(axis=1), other.mean(axis=1)) + 1e-9
    change, error = (part[:, 0] for part in _studentised(both, in_other[None, :], floor))
    rng = np.random.default_rng(5)
    labels = rng.permuted(np.tile(in_other, (_DRAWS, 1)), axis=1)
    drawn_change, drawn_error = _studentised(both, labels, floor)
    drawn = np.abs(drawn_change / drawn_error)
    score = np.abs(change / error)
    p = (1 + (drawn >= score[:, None] * (1 - 1e-9)).sum(axis=1)) / (_DRAWS + 1)
    reach = np.quantile(drawn, _COVERAGE, axis=1) * error
    # minimum detectable effect: H. S. Bloom, Evaluation Review 19, 1995
    detectable = (np.quantile(drawn, 1 - LEVEL / max(len(p), 1), axis=1) + _POWER) * error
    return Compared(one.mean(axis=1), other.mean(axis=1), change - reach, change + reach, p, adjusted(p), detectable)


def _studentised(blocks: Floats, labels: Bools, floor: Floats) -> tuple[Floats, Floats]:
    """Return the difference of the means of the blocks with a label and without, and its standard error, both rows x
    `labels`."""
    chosen = labels.T.astype(np.float64)
    counts = chosen.sum(axis=0)
    found = []
    for weights, count in ((chosen, counts), (1 - chosen, labels.shape[1] - counts)):
        mean = blocks @ weights / count
        square = (blocks**2) @ weights / count
        found.append((mean, np.maximum(square - mean**2, 0.0) / np.maximum(count - 1, 1)))
    error = np.sqrt(found[0][1] + found[1][1]) + floor[:, None]
    return np.asarray(found[0][0] - found[1][0]), np.asarray(error)


def adjusted(p: Floats) -> Floats:
    """Return the p-values adjusted for their number (Benjamini-Hochberg)."""
    if not len(p):
        return p
    order = np.argsort(p)
    scaled = p[order] * len(p) / np.arange(1, len(p) + 1)
    found = np.empty_like(p)
    found[order] = np.minimum.accumulate(scaled[::-1])[::-1].clip(max=1.0)
    return found


def search(rates: Floats, recorded: Floats) -> Stretches | None:
    """Return the stretch of each row (rows x columns) that differs most from the rest of the span; None with fewer than
    twice `LEAST_BLOCKS`."""
    length = max(1, int((recorded > 0).sum()) // _SEARCHED)
    blocks = blocks_of(rates, recorded, length)
    count = blocks.shape[1]
    if count < 2 * LEAST_BLOCKS:
        return None
    starts, ends = np.triu_indices(count + 1, 1)
    sizes = ends - starts
    inside = (sizes >= 2) & (sizes <= count - 2)
    starts, ends, sizes = starts[inside], ends[inside], sizes[inside]
    rng = np.random.default_rng(7)
    orders = rng.permuted(np.tile(np.arange(count), (_SEARCH_DRAWS, 1)), axis=1)
    first, last = np.zeros(len(blocks), np.int64), np.zeros(len(blocks), np.int64)
    p = np.ones(len(blocks))
    made = []
    for row, values in enumerate(blocks):
        own = _arcs(values[None, :], starts, ends, sizes)[0]
        at = int(own.argmax())
        first[row], last[row] = starts[at], ends[at]
        if values.std() > 1e-9:
            p[row] = _by_chance(values, float(own[at]), orders, (starts, ends, sizes))
        if first[row] == 0:  # what follows is what changed
            first[row], last[row] = ends[at], count
        chosen = np.zeros(count, np.bool_)
        chosen[first[row] : last[row]] = True
        made.append(_interval(values, chosen))
    before, after, low, high = (np.array(one) for one in zip(*made, strict=True)) if made else (np.zeros(0),) * 4
    known = np.flatnonzero(recorded > 0)
    columns = np.append(known[np.arange(count) * length], known[-1] + 1)
    unknown = np.full_like(p, np.nan)
    return Stretches(columns[first], columns[last], Compared(before, after, low, high, p, adjusted(p), unknown))


def _by_chance(
    values: Floats,
    score: float,
    orders: NDArray[np.int64],
    stretches: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
) -> float:
    """Return the share of `orders` in which some stretch differs by at least `score`. The first few suffice for rows
    far from significance (J. Besag, P. Clifford, Biometrika 78, 1991)."""
    above = done = 0
    for part in (orders[:_FIRST_DRAWS], orders[_FIRST_DRAWS:]):
        above += int((_arcs(values[part], *stretches).max(axis=1) >= score * (1 - 1e-9)).sum())
        done += len(part)
        if above > _FAR * done:
            break
    return (1 + above) / (done + 1)


def _arcs(values: Floats, starts: NDArray[np.int64], ends: NDArray[np.int64], sizes: NDArray[np.int64]) -> Floats:
    """Return by how much the mean of each stretch differs from that of the rest, in standard deviations."""
    count = values.shape[1]
    centred = values - values.mean(axis=1, keepdims=True)
    sums = np.concatenate([np.zeros((len(values), 1)), centred.cumsum(axis=1)], axis=1)
    spread = np.sqrt(sizes * (1 - sizes / count)) * np.maximum(centred.std(axis=1, keepdims=True), 1e-12)
    return np.asarray(np.abs(sums[:, ends] - sums[:, starts]) / spread)


def _interval(values: Floats, chosen: Bools) -> tuple[float, float, float, float]:
    """Return the mean outside and inside the stretch, and the interval of the difference (percentiles of a bootstrap of
    blocks: B. Efron, R. Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13)."""
    rng = np.random.default_rng(11)
    inside, outside = values[chosen], values[~chosen]
    drawn = [one[rng.integers(0, len(one), (_SEARCH_DRAWS, len(one)))].mean(axis=1) for one in (outside, inside)]
    low, high = np.quantile(drawn[1] - drawn[0], [_HALF - _COVERAGE / 2, _HALF + _COVERAGE / 2])
    return float(outside.mean()), float(inside.mean()), float(low), float(high)
