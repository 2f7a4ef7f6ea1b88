"""Find who enters operations last, and who has not returned from one. Pure.

A rank that enters last need not be slow itself: it may have waited in another group. `slow_node_check` decides that;
here is only measured when ranks entered. Calls of one round are not independent, so that each kind of operation (group,
operation, size) is judged by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from whystall.tools.ranks.collective_live.enqueued import enqueued
from whystall.tools.ranks.job import job_of
from whystall.tools.ranks.matching.operations import match
from whystall.tools.ranks.statistics import probability
from whystall.tools.ranks.traces.window import ENQUEUES, Window, with_ranks
from whystall.tools.recording.store import Recording

# A rank is late if it is last in most of so many calls of a kind, more often than chance makes any rank of any kind,
# and all others could have continued for this share of the window earlier.
_CALLS = 10
_MOST = 0.5
_UNLIKELY = 1e-4
_WORTH = 0.05

LATE, EVEN, WAITING, UNMATCHED, NO_CALLS, FEW = "late", "even", "waiting", "unmatched", "no_calls", "few"
"""Verdicts: some rank is usually last; none is; nothing but calls that did not return; calls of different ranks could
not be matched; no call was recorded; there were too few to tell."""


@dataclass(frozen=True)
class Kind:
    """Equal operations: of a group (its key, empty if not known), and of one size; -1 unknown."""

    library: str
    key: str
    op: str
    bytes: int


@dataclass(frozen=True)
class Lateness:
    """How a rank entered operations of a kind. `calls` of it, of which `open` had not returned; `compared`: matched on
    all ranks here; `last`: how often it was the last of them, by `margin_ns` (median, and 95 % bounds of it) behind the
    last but one, `cost_ns` in all; `after_ns`: median behind the first."""

    kind: Kind
    rank: int
    calls: int
    open: int
    compared: int
    last: int
    after_ns: float
    margin_ns: float
    low_ns: float
    high_ns: float
    cost_ns: float
    chance: float


@dataclass(frozen=True)
class OpenCall:
    """An operation that ranks are in at the end of the window. `outside`: ranks of the group here that have not entered
    it, if operations are numbered; `since_ns`: when the first entered."""

    kind: Kind
    seq: int
    inside: tuple[int, ...]
    outside: tuple[int, ...]
    since_ns: int


@dataclass(frozen=True)
class Found:
    """`verdict`: a constant above; `late`: of each late rank the kind in which it costs most; `matched`: calls."""

    verdict: str
    rows: list[Lateness]
    late: list[Lateness]
    open: list[OpenCall]
    matched: int


def lateness_of(recording: Recording, window: Window) -> Found:
    """Return who enters what last in `recording`, whose ranks are `window`."""
    calls = window.calls.with_columns(at=pl.when(pl.col("queued_ns") > 0).then("queued_ns").otherwise("start_ns"))
    entered = _matched(recording, calls, {key: len(group.members) for key, group in window.groups.items()})
    ranks = len(window.members)
    kinds = max(1, entered.select("library", "key", "op", "bytes").n_unique())
    rows = _rows(calls, entered, kinds * max(1, ranks))
    least = _WORTH * recording.manifest.window_ns
    late: dict[int, Lateness] = {}
    for row in sorted(rows, key=lambda row: -row.cost_ns):
        usual = row.compared >= _CALLS and row.last > _MOST * row.compared and row.chance < _UNLIKELY
        if usual and row.cost_ns >= least:
            late.setdefault(row.rank, row)
    open_calls = _open(calls, window)
    verdict = _verdict(calls, entered, bool(late), [row.compared for row in rows])
    return Found(verdict, rows, list(late.values()), open_calls, entered.height)


def _verdict(calls: pl.DataFrame, entered: pl.DataFrame, late: bool, compared: list[int]) -> str:
    if late:
        return LATE
    if calls.is_empty():
        return NO_CALLS
    if calls["open"].all():
        return WAITING
    if entered.is_empty():
        return UNMATCHED
    return EVEN if max(compared, default=0) >= _CALLS else FEW


def _matched(recording: Recording, calls: pl.DataFrame, here: Mapping[str, int]) -> pl.DataFrame:
    """Return calls that were found on all ranks of their group that are `here` (their number), with ``instance``."""
    wanted = ["instance", "rank", "at", "library", "key", "op", "bytes"]
    found = match(job_of(with_ranks(recording))).frame.rename({"group": "key"})
    # members that were inferred follow the name
    stated = {key: key if key in here else key.rpartition("|")[0] for key in found["key"].unique().to_list()}
    found = found.with_columns(pl.col("key").replace_strict(stated, return_dtype=pl.String))
    expected = pl.col("key").replace_strict(dict(here), default=pl.col("size"), return_dtype=pl.Int32)
    found = found.filter(pl.col("present") == expected)
    library = calls.select("rank", "key", "library").unique(["rank", "key"], keep="any")
    blocking = found.with_columns(at=pl.when(pl.col("launch_ns") > 0).then("launch_ns").otherwise("start_ns")).join(
        library, on=["rank", "key"], how="left"
    )
    parts = [blocking.with_columns(pl.col("library").fill_null(""), pl.col("rank").cast(pl.Int32)).select(wanted)]
    next_one = int(found["instance"].max() or 0) + 1 if found.height else 0  # type: ignore[arg-type]
    device = calls.filter(pl.col("library").is_in(sorted(ENQUEUES)) & (pl.col("key") != ""))
    for part in device.partition_by("key", maintain_order=True):
        rows = enqueued(part).with_columns(instance=pl.col("instance") + next_one + 64)
        next_one += part.height + 128
        parts.append(rows.select(wanted))
    return pl.concat(parts)


def _rows(calls: pl.DataFrame, entered: pl.DataFrame, tests: int) -> list[Lateness]:
    """Return a row per rank and kind, the costliest first."""
    of, by = ["library", "key", "op", "bytes"], "instance"
    at = pl.col("at")
    beside = entered.with_columns(
        count=pl.len().over(by),
        first=at.min().over(by),
        last=at.max().over(by),
        before=at.top_k(2).min().over(by),
    ).with_columns(is_last=at == pl.col("last"))
    many = calls.group_by("rank", *of).agg(calls=pl.len(), open=pl.col("open").sum())
    rows = []
    entries = beside.partition_by("rank", *of, as_dict=True)
    for row in many.sort("rank", *of).iter_rows(named=True):
        kind = Kind(*(row[name] for name in of))
        part = entries.get((row["rank"], *(row[name] for name in of)))
        if part is None and row["open"] == row["calls"]:
            continue  # not executed yet: of unknown size
        if part is None:
            rows.append(Lateness(kind, row["rank"], row["calls"], row["open"], 0, 0, 0, 0, 0, 0, 0, 1.0))
            continue
        last = part.filter("is_last")
        margins = (last["last"] - last["before"]).to_list()
        low, high = probability.median_bounds(margins)
        chance = probability.binomial_tail(last.height, part.height, 1 / int(part["count"].min()))  # type: ignore[arg-type]
        rows.append(
            Lateness(
                kind,
                row["rank"],
                row["calls"],
                row["open"],
                part.height,
                last.height,
                probability.median((part["at"] - part["first"]).to_list()),
                probability.median(margins),
                low,
                high,
                float(sum(margins)),
                probability.corrected(chance, tests),
            )
        )
    return sorted(rows, key=lambda row: (-row.cost_ns, row.rank))


def _open(calls: pl.DataFrame, window: Window) -> list[OpenCall]:
    """Return the operations in progress at the end, those that began first at first."""
    found = []
    rows = calls.filter("open")
    for (library, key, op, seq), part in rows.group_by("library", "key", "op", "seq", maintain_order=True):
        inside = tuple(sorted(part["rank"].unique().to_list()))
        outside: tuple[int, ...] = ()
        if key and seq >= 0:
            entered = calls.filter((pl.col("key") == key) & (pl.col("seq") >= seq))["rank"].unique().to_list()
            outside = tuple(rank for rank in window.groups[str(key)].members if rank not in entered)
        kind = Kind(str(library), str(key), str(op), int(part["bytes"].max()))  # type: ignore[arg-type]
        found.append(OpenCall(kind, int(str(seq)), inside, outside, int(part["at"].min())))  # type: ignore[arg-type]
    return sorted(found, key=lambda one: one.since_ns)
