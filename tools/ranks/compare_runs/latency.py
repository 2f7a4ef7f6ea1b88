"""Compare single calls of operators with stored runs, and with the other ranks of the same run.

Medians of blocks of calls are compared by Mann's and Whitney's test (`statistics.two_samples`), of all operators and
ranks together (`statistics.multiple`). A change counts if it also reaches a minimum, exceeds what stored runs differ by
among themselves, and matters to the rank's time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from whystall.tools.ranks.compare_runs.tables import LatencyRow, LatencyState
from whystall.tools.ranks.statistics.factor import Factor, factor
from whystall.tools.ranks.statistics.multiple import false_discovery
from whystall.tools.ranks.statistics.probability import median
from whystall.tools.ranks.statistics.two_samples import rank_test

DISCOVERY = 0.05
"""Share of false ones among the claimed changes."""
LEAST_BLOCKS = 6
_MOST = 60
"""Blocks of stored runs, or of other ranks, that are compared: more add little to the certainty."""
_APART = 3.0
"""A change must exceed so many standard deviations of the medians of stored runs, or of other ranks."""
_COST = 0.005
"""Share of the rank's measured time that a change must cost or save."""
_MIX = 0.1

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
    usual = _run_spread(earlier)
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
        before, after = _blocks(runs), [float(value) for value in row["blocks"]]
        listed = _listed(key, "too_few", runs, row)
        rows.append(listed)
        if min(len(before), len(after)) >= LEAST_BLOCKS:
            tests.append((len(rows) - 1, rank_test(before, after)[0], factor(before, after), key, runs, row))
    for q, (place, _, size, key, runs, row) in zip(false_discovery([one[1] for one in tests]), tests, strict=True):
        least = min_pct / 100 * (2 if len(labels) == 1 else 1)
        cost = (size.value - 1) * row["p50_ns"] / size.value * row["count"] / max(totals[key[0]], 1)
        state = _state(size, q, cost, least, max(usual, _spread(runs)), runs, row)
        rows[place] = rows[place].model_copy(
            update={**_change(size), "q_value": q, "cost_pct": 100 * cost, "state": state}
            | ({"since": _since(runs, row, labels)} if state in ("slower", "faster") else {})
        )
    rows = _beside_peers(rows, present, totals, min_pct)
    rows += [_listed(key, "only_before", runs, None) for key, runs in earlier.items() if key not in present]
    return sorted(rows, key=_order)


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


def _spread(rows: Sequence[Row]) -> float:
    """Return the standard deviation of the logarithms of the rows' medians; 0 of one."""
    return statistics.stdev(math.log(max(row["p50_ns"], 1)) for row in rows) if len(rows) > 1 else 0.0


def _run_spread(earlier: Mapping[Key, Sequence[Row]]) -> float:
    """Return what the medians of stored runs usually differ by: two or three of one operator say too little."""
    return median(_spread(rows) for rows in earlier.values() if len(rows) > 1)


def _state(
    size: Factor, q: float, cost: float, least: float, spread: float, runs: Sequence[Row], row: Row
) -> LatencyState:
    up = size.value > 1
    change = max(size.value, 1 / size.value) - 1
    if q >= DISCOVERY or change < least or abs(cost) < _COST or size.low <= 1 <= size.high:
        return "same"
    middles = [one["p50_ns"] for one in runs]
    apart = row["p50_ns"] / max(middles) if up else min(middles) / max(row["p50_ns"], 1)
    if math.log1p(change) < _APART * spread or apart < 1 + least / 2:
        return "noisy"
    if not row["shape"] and not _shifted(runs, row, up=up, least=least / 2):
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


def _since(runs: Sequence[Row], row: Row, labels: Sequence[str]) -> str:
    """Return the label of the first of the last stored runs that are as slow as this one (as fast, if it is faster), or
    the step of this run with which the change began; empty if all of this run differs."""
    usual = median(one["p50_ns"] for one in runs)
    middle = math.sqrt(max(usual, 1) * max(row["p50_ns"], 1))
    beyond = row["p50_ns"] > usual
    alike = [(one["p50_ns"] > middle) == beyond for one in runs]
    first = len(alike)
    while first and alike[first - 1]:
        first -= 1
    if first < len(alike):
        return labels[runs[first]["run"]]
    blocks = [(value > middle) == beyond for value in row["blocks"]]
    at = next((place for place in range(len(blocks)) if sum(blocks[place:]) >= _ALL * (len(blocks) - place)), 0)
    usual_first = at >= LEAST_BLOCKS // 2 and sum(blocks[:at]) <= (1 - _ALL) * at
    return f"#{row['block_steps'][at]}" if usual_first and row["block_steps"][at] >= 0 else ""


_ALL = 0.9
"""Share of the blocks from a step on that must differ."""


def _beside_peers(
    rows: Sequence[LatencyRow], present: Mapping[Key, Row], totals: Mapping[int, int], min_pct: float
) -> list[LatencyRow]:
    """Return `rows` with what the other ranks take for the same operator and shape."""
    of_name: dict[tuple[str, str, str], list[Row]] = {}
    for key, row in present.items():
        of_name.setdefault(key[1:], []).append(row)
    found, tests = list(rows), []
    for place, listed in enumerate(rows):
        own = present[listed.rank, listed.kind, listed.name, listed.shape]
        others = [row for row in of_name[listed.kind, listed.name, listed.shape] if row["rank"] != listed.rank]
        if not others:
            continue
        middle = median(row["p50_ns"] for row in others)
        found[place] = listed.model_copy(update={"peers_us": middle / 1e3})
        blocks, beside = [float(value) for value in own["blocks"]], _blocks(others)
        if min(len(blocks), len(beside)) >= LEAST_BLOCKS:
            tests.append((place, rank_test(beside, blocks)[0], factor(beside, blocks), own, others))
    for q, (place, _, size, own, others) in zip(false_discovery([one[1] for one in tests]), tests, strict=True):
        cost = (1 - 1 / size.value) * own["p50_ns"] * own["count"] / max(totals[own["rank"]], 1)
        state = _state(size, q, cost, 2 * min_pct / 100, _spread(others), others, own)
        update = {**_change(size, "peers_"), "peers_q_value": q, "peers_slower": state == "slower"}
        found[place] = found[place].model_copy(update=update)
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
