"""One of two compared profiles: the weight of each atom, and its variance.

Samples are not independent: a function that runs for a second is sampled a hundred times. Where samples have times, the
variance is that between blocks of time (a block bootstrap in its normal approximation). Blocks are the training steps
of a trace with something recurring at even intervals, else equal times so long that longer ones give the same variance
(as in Flyvbjerg & Petersen 1989). The variance is at least that of counting. Without times it is estimated from the
scatter between the profiles (`bursts`), or taken from the other profile if that has times (`noise`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.tools.profiles.common.sample_weight import one_sample
from whystall.tools.profiles.common.stack_nodes import stack_nodes
from whystall.tools.profiles.flamegraph_diff.bursts import UNKNOWN, Bursts, bursts_between
from whystall.tools.stacks.model import NO_TIME
from whystall.tools.stacks.tree import CallTree, Part

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
DURATIONS = frozenset({"ns", "us", "ms", "s", "nanoseconds", "microseconds", "milliseconds", "seconds"})
_BLOCKS = (64, 32, 16)
_STEADY = 1.4
"""Blocks are long enough if twice as long ones change the variance by at most this factor: with 16 blocks its estimate
is uncertain by about a third."""
_COARSER = ((16, 2.3, 1.1), (8, 3.0, 1.35), (4, 4.2, 2.2))
"""(blocks, times, error): drifts and long bursts vary more between longer blocks. This many longer blocks are used for
a group if its variance between them is `times` that of the shorter ones, which chance makes in 1 % (quantile of F with
63 degrees of freedom); so few blocks make the error `error` times larger (Student's t at 1 %)."""
_LEAST_STEPS, _MOST_STEPS = 4, 500
_EVEN = 0.35
"""Intervals are even if their standard deviation is at most this share of their mean."""
_COVERED = 0.8
_SMALLEST = 1e-60
_LEAST_SAMPLES = 4
"""Least average number of samples of a block, for a spread of shares rather than of presence."""


@dataclass(frozen=True)
class Side:
    """`weights`: by atom; `blocks`: the same by block (rows), None without times. `counting`: by atom, the variance of
    the weight for independent samples, without blocks times `Bursts.factor`. `known`: whether the number of samples is
    known; `whole`: if not, whether all weights are whole numbers without a unit, which may be counts of samples.
    `traced`: all events are recorded, not sampled. `how`: steps, time or counts. `span_ns`: from the first sample to
    the end of the last. `threads`: effective number of threads; 1 if one has nearly all samples. `steady`: blocks are
    long enough for most of the weight. `free`: degrees of freedom of the variance; `burst`: the factor in `counting`.
    """

    weights: Floats
    blocks: Floats | None
    counting: Floats
    samples: int
    traced: bool
    known: bool
    how: str
    span_ns: float = 0.0
    threads: float = 1.0
    steady: bool = True
    whole: bool = False
    free: float = np.inf
    burst: float = 1.0

    @property
    def sum(self) -> float:
        """Return the total weight."""
        return float(self.weights.sum())

    def variance(self, member: Floats, of: Floats) -> tuple[Floats, Floats | None]:
        """Return the variances of the groups' ratios (`member`, a row each) to the weight of the atoms `of`: by
        counting, and between blocks if there are any."""
        whole = float(of @ self.weights)
        ratio = member @ self.weights / whole
        cross = (member * of) @ self.counting
        counted = (member @ self.counting - 2 * ratio * cross + ratio**2 * float(of @ self.counting)) / whole**2
        counted = np.maximum(counted, 0.0)
        if self.blocks is None:
            return counted, None
        spread = _spread(self.blocks, member, of, ratio, whole)
        if self.how == "time":
            for blocks, times, error in _COARSER:
                if blocks < len(self.blocks):
                    longer = _spread(_together(self.blocks, blocks), member, of, ratio, whole)
                    taken = longer > (times if self.steady else 1.0) * spread
                    spread = np.where(taken, np.maximum(spread, error**2 * longer), spread)
        return counted, spread


def _together(blocks: Floats, count: int) -> Floats:
    return np.asarray(blocks.reshape(count, len(blocks) // count, -1).sum(axis=1))


def _spread(blocks: Floats, member: Floats, of: Floats, ratio: Floats, whole: float) -> Floats:
    count = len(blocks)
    off = (blocks @ member.T - np.outer(blocks @ of, ratio)) / whole
    return np.asarray(count / (count - 1) * (off**2).sum(axis=0))


def side_of(part: Part, tree: CallTree, row: int, atom: Ints, functions: Floats) -> Side:
    """Return the side `row` of `tree`, made from `part`. `functions`: groups (rows) by atom, whose spread determines
    the length of blocks."""
    profile, count = part.profile, functions.shape[1]
    samples = profile.samples.filter((pl.col("event") == part.event) & (pl.col("weight") > 0))
    if part.threads is not None:
        samples = samples.filter(pl.col("thread").is_in(list(part.threads)))
    event = profile.events.row(part.event, named=True)
    unit = event["unit"]
    here = np.nonzero(atom >= 0)[0]
    # scaled, so that squares do not overflow
    by = 1.0 if _SMALLEST < tree.sums[row] < 1 / _SMALLEST else min(1.0 / float(tree.sums[row]), 1e300)
    samples = samples.with_columns(pl.col("weight") * by)
    weights = _sums(atom[here], tree.own[row, here] * by, count)
    of_stack = stack_nodes(tree, profile, lines=False)
    timed = not samples.is_empty() and bool((samples["at_ns"] != NO_TIME).all())
    traced = timed and unit in DURATIONS and _lasting(samples)
    if not timed:
        loads: Floats = samples["weight"].to_numpy()
        one = one_sample(samples, unit, event["period"] * by)
        whole = not one and unit == "samples" and bool((loads == np.round(loads)).all())
        mean = one or (1.0 if whole else float((loads**2).sum() / max(loads.sum(), 1e-300)))
        number = round(float(loads.sum()) / mean) if one or whole else len(loads)
        return Side(weights, None, weights * mean, number, traced=False, known=one > 0, how="counts", whole=whole)
    at, span, weight, stack = _clipped(samples, part)
    where = atom[of_stack[stack]]
    counting = _sums(where, weight**2, count)
    steps = _recurring(at, span, stack) if traced and len(at) else np.empty(0)
    if len(steps):
        edges = np.append(steps, float((at + span).max()) + 1)
        blocks: Floats | None = _blocks(at, span, weight, where, count, edges)
        steady = True
    else:
        blocks, steady = _by_time(at, span, weight, where, count, functions)
    how = "steps" if len(steps) else "time"
    last = float((at + span).max(initial=1))
    free = np.inf if blocks is None else float(len(blocks) - 1)
    threads = _at_once(samples)
    known = blocks is not None
    return Side(weights, blocks, counting, len(at), traced, known, how, last, threads, steady, free=free)


def with_bursts(tree: CallTree, before: Side, after: Side) -> tuple[Side, Side, Bursts]:
    """Return the sides with the variance of counts without times as large as the profiles' own scatter shows.

    Whole numbers without a unit are samples if they scatter as samples do, in bursts of usual length.
    """
    sides = (before, after)
    if all(side.how != "counts" for side in sides):
        return before, after, Bursts(1.0)
    counted = all(side.known or side.whole for side in sides)
    bursts = bursts_between(tree, (before.samples, after.samples)) if counted else Bursts()
    if not bursts.functions and any(side.how == "time" and not side.traced for side in sides):
        bursts = Bursts(1.0)  # the times of one side show the bursts of both
    made = []
    for side in sides:
        if side.how == "counts":
            known = side.known or (side.whole and bursts.functions > 0 and bursts.factor <= UNKNOWN)
            counting = side.counting * bursts.factor
            side = replace(side, counting=counting, free=bursts.free, known=known, burst=bursts.factor)
        made.append(side)
    return made[0], made[1], bursts


def _sums(number: Ints, weight: Floats, count: int) -> Floats:
    return np.asarray(np.bincount(number, weight, count), np.float64)


def _at_once(samples: pl.DataFrame) -> float:
    share = samples["thread"].value_counts()["count"] / max(samples.height, 1)
    return 1 / max(float((share**2).sum()), 1e-9) if samples.height else 1.0


def _lasting(samples: pl.DataFrame) -> bool:
    """Return whether most of the weight is of events with a duration, not of samples at an instant."""
    long = pl.col("weight").filter(pl.col("span_ns") > 0)
    lasting, whole = samples.select(long.sum(), whole=pl.col("weight").sum()).row(0)
    return bool(lasting > 0.5 * whole)


def _clipped(samples: pl.DataFrame, part: Part) -> tuple[Floats, Floats, Floats, Ints]:
    """Return (start, length, weight, stack) within the part's time, shifted to begin at 0 without holes."""
    at = samples["at_ns"].to_numpy().astype(np.float64)
    span = samples["span_ns"].to_numpy().astype(np.float64)
    weight, stack = samples["weight"].to_numpy(), samples["stack"].to_numpy().astype(np.int64)
    if part.span_ns is None:
        return at - at.min(), span, weight, stack
    start, end = part.span_ns
    pieces = [(-np.inf, float(start)), (float(end), np.inf)] if part.outside else [(float(start), float(end))]
    base = min(float(at.min()), float(start))
    found: list[tuple[Floats, Floats, Floats, Ints]] = []
    for first, last in pieces:
        cut = np.maximum(np.minimum(at + span, last) - np.maximum(at, first), 0.0)
        inside = np.where(span > 0, cut > 0, (at >= first) & (at < last))
        share = np.where(span > 0, cut / np.where(span > 0, span, 1.0), 1.0)[inside]
        shift = max(first, base) if not part.outside or first == -np.inf else float(end - start) + base
        begins = np.maximum(at[inside], first) - shift
        found.append((begins, np.where(span > 0, cut, 0.0)[inside], weight[inside] * share, stack[inside]))
    begins, lengths, weights = (np.concatenate([one[at] for one in found]) for at in range(3))
    return begins, lengths, weights, np.concatenate([one[3] for one in found])


def _recurring(at: Floats, span: Floats, stack: Ints) -> Floats:
    """Return the start times of an event that recurs at even intervals, such as a training step; empty if none does.

    In a trace a stack that is entered once per step marks the steps; of several the one with the longest interval that
    leaves enough blocks.
    """
    order = np.lexsort((at, stack))
    starts, of = at[order], stack[order]
    _, first, counts = np.unique(of, return_index=True, return_counts=True)
    whole = float((at + span).max())
    found: dict[int, Floats] = {}
    for row in np.nonzero((counts >= _LEAST_STEPS) & (counts <= _MOST_STEPS))[0]:
        times = starts[first[row] : first[row] + counts[row]]
        gaps = np.diff(times)
        covers = (times[-1] - times[0] + gaps.mean()) >= _COVERED * whole
        if covers and float(gaps.std()) <= _EVEN * float(gaps.mean()):
            found.setdefault(len(times), times)
    enough = [count for count in found if count >= _BLOCKS[-1]]
    return found[min(enough) if enough else max(found)] if found else np.empty(0, np.float64)


def _by_time(
    at: Floats, span: Floats, weight: Floats, where: Ints, count: int, functions: Floats
) -> tuple[Floats | None, bool]:
    """Return blocks of equal time (None with too few samples), and whether longer ones give the same variance."""
    last = float((at + span).max()) + 1 if len(at) else 0.0
    most = [blocks for blocks in _BLOCKS if blocks * _LEAST_SAMPLES <= len(at)] or [_BLOCKS[-1]]
    if len(at) < 2 * _LEAST_SAMPLES:
        return None, False
    everything = np.ones(count)
    finest = _blocks(at, span, weight, where, count, np.linspace(0.0, last, most[0] + 1))
    before: float | None = None
    chosen = finest
    for blocks in (*most, most[-1] // 2):
        coarse = _together(finest, blocks)
        whole = float(coarse.sum())
        ratio = functions @ coarse.sum(axis=0) / whole
        variance = float(_spread(coarse, functions, everything, ratio, whole).sum())
        if before is not None and variance <= before * _STEADY:
            return chosen, True
        before, chosen = variance, coarse if blocks in most else chosen
    return chosen, False


def _blocks(at: Floats, span: Floats, weight: Floats, where: Ints, count: int, edges: Floats) -> Floats:
    """Return weights by block and atom. A span across an edge is divided in proportion; anything outside the edges
    belongs to the nearest block."""
    blocks = len(edges) - 1
    first = (np.searchsorted(edges, at, "right") - 1).clip(0, blocks - 1)
    last = (np.searchsorted(edges, at + span, "left") - 1).clip(0, blocks - 1)
    last = np.maximum(first, last)
    sizes = last - first + 1
    which = np.repeat(np.arange(len(at)), sizes)
    block = np.repeat(first - np.cumsum(sizes) + sizes, sizes) + np.arange(len(which))
    cut = np.minimum((at + span)[which], edges[block + 1]) - np.maximum(at[which], edges[block])
    whole = sizes[which] == 1
    share = np.where(whole, 1.0, cut.clip(min=0.0) / np.where(span[which] > 0, span[which], 1.0))
    return _sums(block * count + where[which], weight[which] * share, blocks * count).reshape((blocks, count))
