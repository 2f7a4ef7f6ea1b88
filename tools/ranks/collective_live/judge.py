"""Find who enters operations last, and who has not returned from one. Pure.

A rank that enters last need not be slow itself: it may have waited in another group. `slow_node_check` decides that;
here is only measured when ranks entered. Calls of one round are not independent, so that each kind of operation (group,
operation, size) is judged by itself.

Ranks on several hosts are compared on clocks that are estimated from when operations return (`host_clocks`); one that
is later by less than these are known counts as last of no call.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from whystall.tools.ranks.collective_live.enqueued import enqueued
from whystall.tools.ranks.job import Clocks
from whystall.tools.ranks.matching.host_clocks import host_clocks
from whystall.tools.ranks.matching.operations import match
from whystall.tools.ranks.statistics import probability
from whystall.tools.ranks.traces.hosts import Hosts
from whystall.tools.ranks.traces.window import ENQUEUES, Window, operations_of

# A rank is late if it is last in most of so many calls of a kind, more often than chance makes any rank of any kind,
# and all others could have continued for this share of the window earlier.
_CALLS = 10
_MOST = 0.5
_UNLIKELY = 1e-4
_WORTH = 0.05

LATE, EVEN, WAITING, UNMATCHED, NO_CALLS, FEW = "late", "even", "waiting", "unmatched", "no_calls", "few"
UNCLEAR = "unclear"
"""Verdicts: some rank is usually last; none is; nothing but calls that did not return; calls of different ranks could
not be matched; no call was recorded; there were too few to tell; one seems to be, by less than clocks are known."""


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
    last but one, `cost_ns` in all; `after_ns`: median behind the first. `seems`: it would be usually last, if clocks of
    hosts were exact."""

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
    seems: bool = False


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
    """`verdict`: a constant above; `late`: of each late rank the kind in which it costs most; `matched`: calls;
    `clocks`: of the ranks, alike for those of one host."""

    verdict: str
    rows: list[Lateness]
    late: list[Lateness]
    open: list[OpenCall]
    matched: int
    clocks: Clocks


def lateness_of(hosts: Hosts, window: Window) -> Found:
    """Return who enters what last on `hosts`, whose ranks are `window`."""
    calls = window.calls.with_columns(at=pl.when(pl.col("queued_ns") > 0).then("queued_ns").otherwise("start_ns"))
    entered, clocks = _matched(window, calls)
    kinds = max(1, entered.select("library", "key", "op", "bytes").n_unique())
    least = _WORTH * hosts.recording.manifest.window_ns
    rows = _rows(calls, entered, kinds * max(1, len(window.members)), least)
    late: dict[int, Lateness] = {}
    for row in rows:
        if _usual(row.last, row.compared, row.chance) and row.cost_ns >= least:
            late.setdefault(row.rank, row)
    verdict = _verdict(calls, entered, bool(late), rows)
    return Found(verdict, rows, list(late.values()), _open(calls, window, hosts), entered.height, clocks)


def _usual(last: int, compared: int, chance: float) -> bool:
    return compared >= _CALLS and last > _MOST * compared and chance < _UNLIKELY


def _verdict(calls: pl.DataFrame, entered: pl.DataFrame, late: bool, rows: list[Lateness]) -> str:
    if late:
        return LATE
    if calls.is_empty():
        return NO_CALLS
    if calls["open"].all():
        return WAITING
    if entered.is_empty():
        return UNMATCHED
    if any(row.seems for row in rows):
        return UNCLEAR
    return EVEN if max((row.compared for row in rows), default=0) >= _CALLS else FEW


def _matched(window: Window, calls: pl.DataFrame) -> tuple[pl.DataFrame, Clocks]:
    """Return calls that were found on all ranks of their group that are here, with ``instance``, on one clock, and the
    clocks."""
    here = {key: len(group.members) for key, group in window.groups.items()}
    host = {one.rank: one.host for one in window.members}
    wanted = ["instance", "rank", "at", "library", "key", "op", "bytes"]
    found = match(operations_of(window)).frame
    clocks = host_clocks(found, host)
    found = found.rename({"group": "key"})
    # members that were inferred follow the name
    stated = {key: key if key in here else key.rpartition("|")[0] for key in found["key"].unique().to_list()}
    found = found.with_columns(pl.col("key").replace_strict(stated, return_dtype=pl.String))
    expected = pl.col("key").replace_strict(here, default=pl.col("size"), return_dtype=pl.Int32)
    found = found.filter(pl.col("present") == expected)
    library = calls.select("rank", "key", "library").unique(["rank", "key"], keep="any")
    blocking = found.with_columns(at=pl.when(pl.col("launch_ns") > 0).then("launch_ns").otherwise("start_ns")).join(
        library, on=["rank", "key"], how="left"
    )
    blocking = blocking.with_columns(pl.col("library").fill_null(""), pl.col("rank").cast(pl.Int32))
    # instants of both kinds of calls on one clock; without that of a host, its ranks cannot be compared with others
    calls = calls.with_columns(
        clocks.common("at"), start_ns=clocks.common("start_ns"), unknown=clocks.common("at").is_null().any().over("key")
    ).filter(~pl.col("unknown"))
    blocking = blocking.with_columns(clocks.common("at")).filter(pl.col("at").is_not_null().all().over("instance"))
    parts = [blocking.select(wanted)]
    next_one = int(found["instance"].max() or 0) + 1 if found.height else 0  # type: ignore[arg-type]
    device = calls.filter(pl.col("library").is_in(sorted(ENQUEUES)) & (pl.col("key") != ""))
    for part in device.partition_by("key", maintain_order=True):
        rows = enqueued(part).with_columns(instance=pl.col("instance") + next_one + 64)
        next_one += part.height + 128
        parts.append(rows.select(wanted))
    known = {rank: float(residual) for rank, residual in clocks.residual_ns.items()}
    entered = pl.concat(parts).with_columns(
        host=pl.col("rank").replace_strict(host, return_dtype=pl.Int32),
        doubt=pl.col("rank").replace_strict(known, return_dtype=pl.Float64),
    )
    return _last(entered), clocks


def _last(entered: pl.DataFrame) -> pl.DataFrame:
    """Return `entered` with ``last``, whether a call is the last of its operation as far as clocks are known, and
    ``seems``, whether it is if they are exact."""
    by, at = "instance", pl.col("at")
    hosts = (
        entered.group_by(by, "host")
        .agg(on_host=pl.when(pl.len() > 1).then(at.top_k(2).min()), latest=at.max() + pl.col("doubt").first())
        .with_columns(
            first=pl.col("latest").max().over(by),
            second=pl.when(pl.len().over(by) > 1).then(pl.col("latest").top_k(2).min().over(by)),
        )
    )
    others = pl.when(pl.col("latest") < pl.col("first")).then("first").otherwise("second")
    hosts = hosts.select(by, "host", "on_host", others=others)
    beside = entered.join(hosts, on=[by, "host"], how="left").with_columns(
        count=pl.len().over(by),
        first=at.min().over(by),
        before=at.top_k(2).min().over(by),
        seems=at == at.max().over(by),
    )
    ahead = pl.max_horizontal("on_host", pl.col("others") + pl.col("doubt"))
    return beside.with_columns(last=pl.col("seems") & (at > ahead).fill_null(value=False))


def _rows(calls: pl.DataFrame, beside: pl.DataFrame, tests: int, least_ns: float) -> list[Lateness]:
    """Return a row per rank and kind, the costliest first."""
    of = ["library", "key", "op", "bytes"]
    many = calls.group_by("rank", *of).agg(calls=pl.len(), open=pl.col("open").sum())
    rows = []
    entries = beside.with_columns(margin=pl.col("at") - pl.col("before")).partition_by("rank", *of, as_dict=True)
    for row in many.sort("rank", *of).iter_rows(named=True):
        kind = Kind(*(row[name] for name in of))
        part = entries.get((row["rank"], *(row[name] for name in of)))
        if part is None and row["open"] == row["calls"]:
            continue  # not executed yet: of unknown size
        if part is None:
            rows.append(Lateness(kind, row["rank"], row["calls"], row["open"], 0, 0, 0, 0, 0, 0, 0, 1.0))
            continue
        margins = part.filter("last")["margin"].to_list()
        low, high = probability.median_bounds(margins)
        seeming, fair = part.filter("seems"), 1 / int(part["count"].min())  # type: ignore[arg-type]
        chances = [probability.binomial_tail(times, part.height, fair) for times in (len(margins), seeming.height)]
        sure, seems = (probability.corrected(chance, tests) for chance in chances)
        seems_last = _usual(seeming.height, part.height, seems) and seeming["margin"].sum() >= least_ns
        rows.append(
            Lateness(
                kind,
                row["rank"],
                row["calls"],
                row["open"],
                part.height,
                len(margins),
                probability.median((part["at"] - part["first"]).to_list()),
                probability.median(margins),
                low,
                high,
                float(sum(margins)),
                sure,
                seems_last,
            )
        )
    return sorted(rows, key=lambda row: (-row.cost_ns, row.rank))


def _open(calls: pl.DataFrame, window: Window, hosts: Hosts) -> list[OpenCall]:
    """Return the operations in progress at the end, those that began first at first. Windows of hosts do not end
    together: ranks of another host are outside only of one that began so much earlier."""
    host = {one.rank: one.host for one in window.members}
    sure_ns = hosts.recording.manifest.window_ns - hosts.apart_ns
    found = []
    rows = calls.filter("open")
    for (library, key, op, seq), part in rows.group_by("library", "key", "op", "seq", maintain_order=True):
        inside = tuple(sorted(part["rank"].unique().to_list()))
        outside: tuple[int, ...] = ()
        if key and seq >= 0:
            entered = calls.filter((pl.col("key") == key) & (pl.col("seq") >= seq))["rank"].unique().to_list()
            rest = [rank for rank in window.groups[str(key)].members if rank not in entered]
            before, beside = int(part["at"].min()) < sure_ns, {host[rank] for rank in inside}  # type: ignore[arg-type]
            outside = tuple(rank for rank in rest if before or beside == {host[rank]})
        kind = Kind(str(library), str(key), str(op), int(part["bytes"].max()))  # type: ignore[arg-type]
        found.append(OpenCall(kind, int(str(seq)), inside, outside, int(part["at"].min())))  # type: ignore[arg-type]
    return sorted(found, key=lambda one: one.since_ns)
