"""Compare single calls of operators with stored runs, and with the other ranks of the same run.

Medians of blocks of calls are compared by Mann's and Whitney's test (`statistics.two_samples`), of all operators and
ranks together (`statistics.multiple`). A change counts if it also reaches a minimum, exceeds what stored runs differ by
among themselves, and matters to the rank's time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from whystall.tools.ranks.compare_runs.tables import LatencyRow, LatencyState
from whystall.tools.ranks.statistics.factor import Factor, factor
from whystall.tools.ranks.statistics.multiple import false_discovery
from whystall.tools.ranks.statistics.probability import corrected, median, student_tail
from whystall.tools.ranks.statistics.two_samples import rank_test

DISCOVERY = 0.05
"""Share of false ones among the claimed changes."""
LEAST_BLOCKS = 6
_MOST = 60
"""Blocks of stored runs, or of other ranks, that are compared: more add little to the certainty."""
_PRIOR = 4.0
"""Degrees of freedom of the usual difference between runs, beside those of one operator's runs."""
_COST = 0.01
"""Share of the rank's measured time that a change must cost or save."""
_MIX = 0.1
_LEAST_PEERS = 3

Key = tuple[int, str, str, str]
Row = dict[str, Any]


def compared(now: pl.DataFrame, stored: pl.DataFrame, labels: Sequence[str], min_pct: float) -> list[LatencyRow]:
    """Return all operators of both, the largest cost first.

    Args:
        now: `LATENCIES` of the run in question.
        stored: the same with ``run``, a place in `labels`.
        labels: names of the stored runs, the earliest first.
        min_pct: smallest change that counts, %; twice that with one stored run, and against other ranks.
    """
    earlier = _by_key(stored)
    present: dict[Key, Row] = {key: rows[0] for key, rows in _by_key(now).items()}
    totals: dict[int, int] = {}
    for key, row in present.items():
        totals[key[0]] = totals.get(key[0], 0) + row["total_ns"]
    usual = _usual_spread(earlier.values())
    ranks, names = {key[0] for key in earlier}, {key[:3] for key in earlier}
    rows, tests = [], []
    for key, row in present.items():
        runs = earlier.get(key)
        if runs is None:
            state: LatencyState = (
                "rank_not_stored" if key[0] not in ranks else "other_shape" if key[:3] in names else "only_after"
            )
            rows.append(_listed(key, state, None, row))
            continue
        rows.append(_listed(key, "too_few", runs, row))
        test = _tested(len(rows) - 1, runs, row, usual)
        if test is not None:
            tests.append(test)
    for test, q, of_blocks in _rated(tests):
        least = min_pct / 100 * (2 if len(labels) == 1 else 1)
        cost = _cost(test, totals)
        state = _state(test, q, of_blocks, cost, least)
        rows[test.place] = rows[test.place].model_copy(
            update={**_change(test.size), "q_value": q, "cost_pct": 100 * cost, "state": state}
            | ({"since": _since(test, labels)} if state in ("slower", "faster") else {})
        )
    rows = _beside_peers(rows, present, totals, min_pct, _spread_of(earlier, usual))
    rows += [_listed(key, "only_before", runs, None) for key, runs in earlier.items() if key not in present]
    return sorted(rows, key=_order)


@dataclass(frozen=True)
class _Test:
    """The operator of row `place`: in others (stored runs or other ranks) and in `row`. `p_blocks`: of the difference
    of their blocks, `p_value`: also of that of their medians; `onset`: the first block of `row` that differs."""

    place: int
    others: Sequence[Row]
    row: Row
    size: Factor
    p_blocks: float
    p_value: float
    onset: int

    @property
    def middle_ns(self) -> float:
        """The median of what differs."""
        return median(map(float, self.row["blocks"][self.onset :])) if self.onset else float(self.row["p50_ns"])


def _tested(place: int, others: Sequence[Row], row: Row, usual: float) -> _Test | None:
    """Compare `row` with `others`; None with too few blocks. `usual`: what medians of others usually differ by."""
    before, after = _blocks(others), [float(value) for value in row["blocks"]]
    if min(len(before), len(after)) < LEAST_BLOCKS:
        return None
    # a change within the run resembles a correlation of neighbours, which hides it; one of so many places was chosen
    onset = _onset(others, row)
    p_blocks = rank_test(before, after[onset:])[0]
    if onset:
        p_blocks = corrected(p_blocks, len(after))
    middle = median(after[onset:]) if onset else float(row["p50_ns"])
    p_value = max(p_blocks, _p_between(others, middle, usual))
    return _Test(place, others, row, factor(before, after[onset:]), p_blocks, p_value, onset)


def _p_between(others: Sequence[Row], middle: float, usual: float) -> float:
    """Return the chance, two-sided, that one more of `others` has such a median: a t-test whose variance is that of
    `others` moderated by the usual one (G. K. Smyth 2004, "Linear models and empirical Bayes methods for assessing
    differential expression in microarray experiments"). 0 where nothing is known of it."""
    logs = [math.log(max(one["p50_ns"], 1)) for one in others]
    count, prior = len(logs), _PRIOR if usual > 0 else 0.0
    freedom = prior + count - 1
    if not freedom:
        return 0.0
    own = statistics.variance(logs) if count > 1 else 0.0
    variance = (prior * usual**2 + (count - 1) * own) / freedom
    far = abs(math.log(max(middle, 1.0)) - statistics.fmean(logs))
    if variance <= 0:
        return 0.0 if far else 1.0
    return min(1.0, 2 * student_tail(far / math.sqrt(variance * (1 + 1 / count)), freedom))


def _rated(tests: Sequence[_Test]) -> list[tuple[_Test, float, float]]:
    """Return each test with its false discovery rate, and that of its blocks alone."""
    q, of_blocks = (false_discovery([getattr(one, name) for one in tests]) for name in ("p_value", "p_blocks"))
    return list(zip(tests, q, of_blocks, strict=True))


def _cost(test: _Test, totals: Mapping[int, int]) -> float:
    """Return the share of the rank's measured time that the change costs (below 0: saves)."""
    calls = float(test.row["count"]) * (1 - test.onset / len(test.row["blocks"]))
    return (1 - 1 / test.size.value) * test.middle_ns * calls / max(totals[test.row["rank"]], 1)


def _order(row: LatencyRow) -> tuple[bool, float, int, str, str]:
    decided = row.state in ("slower", "faster") or row.peers_slower
    return not decided, -abs(row.cost_pct or 0.0), row.rank, row.name, row.shape


def _by_key(frame: pl.DataFrame) -> dict[Key, list[Row]]:
    found: dict[Key, list[Row]] = {}
    for row in frame.iter_rows(named=True):
        found.setdefault((row["rank"], row["kind"], row["name"], row["shape"]), []).append(row)
    return found


def _blocks(runs: Sequence[Row]) -> list[float]:
    """Return the blocks of `runs` in order, evenly thinned."""
    values = [float(value) for row in runs for value in row["blocks"]]
    step = -(-len(values) // _MOST) or 1
    return values[::step]


def _usual_spread(groups: Iterable[Sequence[Row]]) -> float:
    """Return the standard deviation of the logarithms of medians of stored runs, or of ranks, of the operator in the
    middle of all time: two or three medians of one operator say too little, and short operators vary more."""
    found = []
    for rows in groups:
        if len(rows) > 1:
            freedom = len(rows) - 1
            # the median of chi-square (E. B. Wilson and M. M. Hilferty 1931): a small sample's is mostly too small
            usual = freedom * (1 - 2 / (9 * freedom)) ** 3
            found.append((_variance(rows) * freedom / usual, sum(row["total_ns"] for row in rows)))
    found.sort()
    half, reached = sum(weight for _, weight in found) / 2, 0.0
    for variance, weight in found:
        reached += weight
        if reached >= half:
            return math.sqrt(variance)
    return 0.0


def _variance(rows: Sequence[Row]) -> float:
    """Return the variance of the logarithms of the rows' medians."""
    return statistics.variance(math.log(max(row["p50_ns"], 1)) for row in rows)


def _spread_of(earlier: Mapping[Key, Sequence[Row]], usual: float) -> dict[tuple[str, str, str], float]:
    """Return by kind, name and shape what stored runs differ by, at least `usual`."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for key, rows in earlier.items():
        if len(rows) > 1:
            found.setdefault(key[1:], []).append(_variance(rows))
    return {key: max(math.sqrt(statistics.fmean(values)), usual) for key, values in found.items()}


def _state(test: _Test, q: float, of_blocks: float, cost: float, least: float) -> LatencyState:
    size = test.size
    up = size.value > 1
    change = max(size.value, 1 / size.value) - 1
    if of_blocks >= DISCOVERY or change < least or abs(cost) < _COST or size.low <= 1 <= size.high:
        return "same"
    middles = [one["p50_ns"] for one in test.others]
    apart = test.middle_ns / max(middles) if up else min(middles) / max(test.middle_ns, 1)
    if q >= DISCOVERY or apart < 1 + least / 2:
        return "noisy"
    if not test.row["shape"] and not _shifted(test.others, test.row, up=up, least=least / 2):
        return "mix_unknown"
    return "slower" if up else "faster"


def _shifted(runs: Sequence[Row], row: Row, *, up: bool, least: float) -> bool:
    """Return whether as many calls as before have all their quantiles moved in one direction."""
    calls = median(one["per_step"] for one in runs)
    if calls > 0 and row["per_step"] > 0 and abs(row["per_step"] / calls - 1) > _MIX:
        return False
    for name in ("p10_ns", "p50_ns", "p90_ns"):
        quotient = max(row[name], 1) / max(median(one[name] for one in runs), 1)
        if (quotient if up else 1 / quotient) < 1 + least:
            return False
    return True


def _change(size: Factor, prefix: str = "") -> dict[str, float]:
    values = {"change_pct": size.value, "low_pct": size.low, "high_pct": size.high}
    return {prefix + name: 100 * (value - 1) for name, value in values.items()}


def _since(test: _Test, labels: Sequence[str]) -> str:
    """Return the label of the first of the last stored runs that are as slow as this one (as fast, if it is faster), or
    the step of this run with which the change began; empty if all of this run differs."""
    if test.onset:
        step = test.row["block_steps"][test.onset]
        return f"#{step}" if step >= 0 else ""
    middle, beyond = _between(test.others, test.middle_ns)
    alike = [(one["p50_ns"] > middle) == beyond for one in test.others]
    first = len(alike)
    while first and alike[first - 1]:
        first -= 1
    return labels[test.others[first]["run"]] if first < len(alike) else ""


def _onset(others: Sequence[Row], row: Row) -> int:
    """Return the block from which on `row` differs, while the blocks ahead are as usual; 0 if there is none."""
    blocks = row["blocks"]
    upper = sorted(blocks, key=lambda value: abs(math.log(max(value, 1)) - math.log(_usual_ns(others))))
    middle, beyond = _between(others, median(upper[len(upper) // 2 :]))
    far = [(value > middle) == beyond for value in blocks]
    for at in range(_BEGUN, len(blocks) - LEAST_BLOCKS + 1):
        ahead, behind = sum(far[:at]), sum(far[at:])
        if far[at] and ahead <= (1 - _ALL) * at and behind >= _ALL * (len(blocks) - at):
            return at
    return 0


def _usual_ns(others: Sequence[Row]) -> float:
    return max(median(one["p50_ns"] for one in others), 1.0)


def _between(others: Sequence[Row], reached_ns: float) -> tuple[float, bool]:
    """Return the middle between the usual median and the one `reached_ns`, and whether that is longer."""
    usual = _usual_ns(others)
    return math.sqrt(usual * max(reached_ns, 1.0)), reached_ns > usual


_BEGUN = 3
"""Blocks that must be as usual before a change within a run."""
_ALL = 0.9
"""Share of the blocks from a step on that must differ."""


def _beside_peers(
    rows: Sequence[LatencyRow],
    present: Mapping[Key, Row],
    totals: Mapping[int, int],
    min_pct: float,
    spreads: Mapping[tuple[str, str, str], float],
) -> list[LatencyRow]:
    """Return `rows` with what the other ranks take for the same operator and shape. A difference counts only where
    it is known what is usual: from three other ranks on, or from two stored runs (`spreads`)."""
    of_name: dict[tuple[str, str, str], list[Row]] = {}
    for key, row in present.items():
        of_name.setdefault(key[1:], []).append(row)
    found, tests = list(rows), []
    among = _usual_spread(group for group in of_name.values() if len(group) > _LEAST_PEERS)
    for place, listed in enumerate(rows):
        own = present[listed.rank, listed.kind, listed.name, listed.shape]
        others = [row for row in of_name[listed.kind, listed.name, listed.shape] if row["rank"] != listed.rank]
        if not others:
            continue
        middle = median(row["p50_ns"] for row in others)
        found[place] = listed.model_copy(update={"peers_us": middle / 1e3})
        spread = max(spreads.get((listed.kind, listed.name, listed.shape), 0.0), among)
        test = _tested(place, others, own, spread)
        if test is not None and (spread > 0 or len(others) >= _LEAST_PEERS):
            tests.append(test)
    for test, q, of_blocks in _rated(tests):
        state = _state(test, q, of_blocks, _cost(test, totals), 2 * min_pct / 100)
        update = {**_change(test.size, "peers_"), "peers_q_value": q, "peers_slower": state == "slower"}
        found[test.place] = found[test.place].model_copy(update=update)
    return found


def _listed(key: Key, state: LatencyState, runs: Sequence[Row] | None, row: Row | None) -> LatencyRow:
    rank, kind, name, shape = key
    known: dict[str, Any] = {}
    if runs is not None:
        known["count_before"] = sum(one["count"] for one in runs)
        for field, column in (("before_us", "p50_ns"), ("p90_before_us", "p90_ns"), ("p99_before_us", "p99_ns")):
            known[field] = median(one[column] for one in runs) / 1e3
    if row is not None:
        known["count_after"] = row["count"]
        for field, column in (("after_us", "p50_ns"), ("p90_after_us", "p90_ns"), ("p99_after_us", "p99_ns")):
            known[field] = row[column] / 1e3
    return LatencyRow(state=state, rank=rank, kind=kind, name=name, shape=shape, **known)
