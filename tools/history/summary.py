"""A span of the history in few rows: where threads waited and ran most, when, and what has changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np

from whystall.tools.collect.slice_history import RUNNING
from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.history.change_tests import LEVEL, Compared, compare, search
from whystall.tools.history.data import Direction, HistoryData, HistoryPlace, WaitChange
from whystall.tools.history.grid import Floats, Grid, RowKey, aligned

PARTS = 12
"""Parts of a span in which the waiting of each row is given by default."""
_MOST_TESTED = 100
# Chosen by the time of both spans together, which does not depend on what is tested.
_LEAST_TESTED = 0.002
_LEAST_CHANGE = 0.01
"""Seconds per second: a change of less than 1 % of one thread's time is not reported."""
_GONE = 0.02  # of the other rate: then it has appeared or vanished
_MOST_PIDS = 8


@dataclass(frozen=True)
class Spans:
    """The span, and the baseline if there is one. `sampled`: CPU time is known in both."""

    now: Grid
    before: Grid | None = None
    sampled: bool = True


def summarise(spans: Spans, top: int, parts: int = PARTS) -> HistoryData:
    """Return the `top` waits of the span in at most `parts` parts, those of idle threads last, as many rows of CPU
    time, and the `top` changes."""
    now, before = spans.now, spans.before
    parts = min(parts, len(now.recorded))
    totals, idle, runs = now.totals, now.idle, now.running
    order = sorted(range(len(now.keys)), key=lambda at: (bool(idle[at]), -float(totals[at])))
    waits, running = ([at for at in order if bool(runs[at]) is of] for of in (False, True))
    changes, tested = _changes(spans)
    both = now.recorded.sum(), before.recorded.sum() if before is not None else 0.0
    return HistoryData(
        since=at_text(now.start_ns),
        until=at_text(now.start_ns + len(now.recorded) * now.column_ns),
        baseline_since=at_text(before.start_ns) if before is not None else "",
        baseline_until=at_text(before.start_ns + len(before.recorded) * before.column_ns) if before is not None else "",
        minutes=round(float(both[0]) / 60, 2),
        minutes_before=round(float(both[1]) / 60, 2),
        waited_s=round(float(totals[~idle & ~runs].sum()), 3),
        idle_s=round(float(totals[idle].sum()), 3),
        jobs=sorted({key.job for key in now.keys if key.job}),
        recorded_s=_parts(now.recorded, parts),
        rows=[_row(now, at, bool(idle[at]), before, parts) for at in waits[:top]],
        left_out=max(0, len(waits) - top) + now.left_out,
        ran_s=round(float(totals[runs].sum()), 3) if spans.sampled else None,
        running=[_row(now, at, False, before, parts) for at in running[:top]],
        running_left_out=max(0, len(running) - top),
        changes=changes[:top],
        changes_left_out=max(0, len(changes) - top),
        tested=tested,
    )


def _parts(seconds: Floats, count: int) -> list[float]:
    return [round(float(part.sum()), 3) for part in np.array_split(seconds, count)]


def _row(now: Grid, at: int, idle: bool, before: Grid | None, parts: int) -> HistoryPlace:
    key = now.keys[at]
    earlier = None
    if before is not None and before.recorded.sum() > 0:
        place = {one: number for number, one in enumerate(before.keys)}.get(key)
        seconds = float(before.totals[place]) if place is not None else 0.0
        earlier = round(seconds * float(now.recorded.sum() / before.recorded.sum()), 3)
    return HistoryPlace(
        **_place(key, now.enders[at]),
        waited_s=round(float(now.totals[at]), 3),
        count=now.count[at],
        longest_ms=round(now.longest_ns[at] / 1e6, 3),
        parts_s=_parts(now.waited[at], parts),
        before_s=earlier,
        pids=list(now.pids[at][:_MOST_PIDS]),
        idle=idle,
    )


def _changes(spans: Spans) -> tuple[list[WaitChange], int | None]:
    """Return what changed, the largest change first, and how many rows were tested; None: too little is recorded."""
    now, before = spans.now, spans.before
    if before is None:
        chosen = _tested(now.rates())
        found = search(now.rates()[chosen], now.recorded)
        if found is None:
            return [], None
        keys = [now.keys[at] for at in chosen]
        times = [(now.start_ns + int(a) * now.column_ns, now.start_ns + int(b) * now.column_ns) for a, b in
                 zip(found.first, found.last, strict=True)]  # fmt: skip
        compared = found.compared
    else:
        every, old, new = aligned(before, now)
        chosen = _tested(np.concatenate([old, new], axis=1))
        result = compare(old[chosen], new[chosen], (before.recorded, now.recorded))
        if result is None:
            return [], None
        keys, compared = [every[at] for at in chosen], result
        times = [(now.start_ns, now.start_ns + len(now.recorded) * now.column_ns)] * len(keys)
    grids = [grid for grid in (before, now) if grid is not None]
    pids = {key: of for grid in grids for key, of in zip(grid.keys, grid.pids, strict=True)}
    enders = {key: who for grid in grids for key, who in zip(grid.keys, grid.enders, strict=True)}
    made = list(_changed(keys, times, compared, pids, enders))
    return sorted(made, key=lambda one: -abs(one.after - one.before)), len(keys)


def _tested(rates: Floats) -> list[int]:
    """Return the rows that are tested for a change."""
    mean = rates.mean(axis=1)
    order = np.argsort(-mean, kind="stable")[:_MOST_TESTED]
    return [int(at) for at in order if mean[at] >= _LEAST_TESTED]


def _changed(
    keys: Sequence[RowKey],
    times: Sequence[tuple[int, int]],
    compared: Compared,
    pids: dict[RowKey, tuple[int, ...]],
    enders: dict[RowKey, str],
) -> Iterator[WaitChange]:
    for at, key in enumerate(keys):
        old, new = float(compared.before[at]), float(compared.after[at])
        if compared.q[at] <= LEVEL and abs(new - old) >= _LEAST_CHANGE:
            yield WaitChange(
                **_place(key, enders.get(key, "")),
                direction=direction(old, new),
                since=at_text(times[at][0]),
                until=at_text(times[at][1]),
                before=round(old, 4),
                after=round(new, 4),
                low=round(float(compared.low[at]), 4),
                high=round(float(compared.high[at]), 4),
                p_value=float(compared.p[at]),
                q_value=float(compared.q[at]),
                pids=list(pids[key][:_MOST_PIDS]),
            )


def direction(old: float, new: float) -> Direction:
    """Return how a rate changed from `old` to `new`."""
    if new > old:
        return "appeared" if old <= _GONE * new else "grew"
    return "vanished" if new <= _GONE * old else "shrank"


def findings_of(data: HistoryData) -> list[Finding]:
    """Return a finding per change. Longer waits, and more CPU time, are abnormal beside the other time, and no fault by
    themselves."""
    whole = max(0, ns_of(data.until) - ns_of(data.since))
    found = []
    for number, one in enumerate(data.changes, 1):
        start = min(max(0, ns_of(one.since) - ns_of(data.since)), whole)
        more = one.after > one.before
        found.append(
            Finding(
                id=f"history.{number}",
                kind="running.change" if one.state == RUNNING else "wait.change",
                subject=Subject(type="thread", pid=one.pids[0] if len(one.pids) == 1 else None, comm=one.comm or None),
                interval=Interval(start_ns=start, end_ns=max(start, min(ns_of(one.until) - ns_of(data.since), whole))),
                metrics={
                    "before_ratio": one.before,
                    "after_ratio": one.after,
                    "low_ratio": one.low,
                    "high_ratio": one.high,
                    "p_value": one.p_value,
                    "q_value": one.q_value,
                },
                attributes={
                    name: text
                    for name, text in {
                        "state": one.state if one.state != RUNNING else "",
                        "syscall": one.call,
                        "code": one.line,
                        "object": one.object,
                        "ended_by": one.ended_by,
                        "direction": one.direction,
                        "job": one.job,
                    }.items()
                    if text
                },
                severity=Severity.MINOR if more else Severity.INFO,
                polarity=Polarity.ABNORMAL if more else Polarity.NORMAL,
            )
        )
    return found


def _place(key: RowKey, ended_by: str) -> dict[str, Any]:
    return {"job": key.job, **key.place._asdict(), "ended_by": ended_by}


def at_text(at_ns: int) -> str:
    """Return an instant (CLOCK_REALTIME) as text: ``2026-11-29T20:40:30Z``."""
    found = datetime.fromtimestamp(at_ns / 1e9, timezone.utc)
    return found.isoformat(timespec="seconds").replace("+00:00", "Z")


def ns_of(text: str) -> int:
    """Return the instant that `at_text` wrote, ns."""
    return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()) * 1_000_000_000
