"""Choose the worst moments to draw: gaps of the device, or without a device the longest waits for a CPU."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from whystall.tools.host.host_bound.activity import READY
from whystall.tools.host.host_bound.gaps import OFF_HOST
from whystall.tools.host.host_bound.tool import Facts
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.sched import TABLES
from whystall.tools.views.bubble_data import Timeline

_LENGTH = pl.col("end_ns") - pl.col("start_ns")


@dataclass(frozen=True)
class Share:
    """A part of a moment: reason (a code as in the result tables), cause (may be empty), and duration."""

    reason: str
    who: str
    ns: int


@dataclass(frozen=True)
class Moment:
    """Bounds; the dispatch thread, then the threads that had its CPU; the parts, longest first. `device` -1: a
    wait of a thread, not a gap."""

    start_ns: int
    end_ns: int
    device: int
    tids: tuple[int, ...]
    shares: tuple[Share, ...]


def moments(facts: Facts, most: int = 10) -> list[Moment]:
    """Return the `most` longest moments, longest first; only gaps that the host caused."""
    return _gaps(facts, most) if facts.bubbles is not None else _waits(facts, most)


def timeline(recording: Recording, facts: Facts) -> Timeline:
    """Return the data that the page of `whystall.tools.views.bubbles` draws."""
    holes = recording.tables().get("ftrace.holes")
    return Timeline(
        threads=facts.host.slices,
        cpus=facts.host.tenures,
        interrupts=facts.host.interrupts.drop("label"),
        holes=holes if holes is not None else TABLES["holes"].to_frame(),
        activities=facts.bubbles.activities if facts.bubbles is not None else None,
        names={tid: thread.comm for tid, thread in facts.host.names.items()},
    )


def _gaps(facts: Facts, most: int) -> list[Moment]:
    found = facts.bubbles
    if found is None:
        return []
    parts = found.parts.with_columns(ns=_LENGTH)
    caused = parts.filter(~pl.col("reason").is_in(OFF_HOST)).group_by("gap").agg(host_ns=pl.col("ns").sum())
    worst = found.gaps.join(caused, on="gap").sort("host_ns", "gap", descending=[True, False]).head(most)
    return [
        _moment(gap["start_ns"], gap["end_ns"], gap["device"], gap["tid"], parts.filter(pl.col("gap") == gap["gap"]))
        for gap in worst.iter_rows(named=True)
    ]


def _waits(facts: Facts, most: int) -> list[Moment]:
    waits = []
    for a in facts.accounts:
        lost = a.history.filter((pl.col("wait") >= 0) & pl.col("what").is_in([*READY, "interrupt"]))
        spans = lost.group_by("wait").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        for wait, start, end in spans.sort(_LENGTH, "wait", descending=[True, False]).head(most).iter_rows():
            parts = lost.filter(pl.col("wait") == wait).rename({"what": "reason"}).with_columns(ns=_LENGTH)
            waits.append(_moment(start, end, -1, a.thread.tid, parts))
    return sorted(waits, key=lambda moment: moment.start_ns - moment.end_ns)[:most]


def _moment(start_ns: int, end_ns: int, device: int, tid: int, parts: pl.DataFrame) -> Moment:
    shares = parts.group_by("reason", "by", "by_tid").agg(pl.col("ns").sum()).sort("ns", "reason", "by")[::-1]
    others = [other for other in shares["by_tid"].to_list() if other > 0 and other != tid]
    return Moment(
        start_ns=start_ns,
        end_ns=end_ns,
        device=device,
        tids=(tid, *dict.fromkeys(others)),
        shares=tuple(Share(reason, who, ns) for reason, who, _, ns in shares.iter_rows()),
    )
