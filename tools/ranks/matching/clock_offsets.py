"""Estimate the offsets of the ranks' clocks from operations that end for all of their ranks together.

Two ranks of a group: the median difference of their ends. Ranks of different groups are linked through shared ranks,
along the links with the smallest residual (a minimum spanning tree: a poor link is used only without a better one).
Pipeline stages share only messages: a message arrives after it was sent, and bounds in both directions enclose the
difference; half of the remaining interval is the residual. A clock that runs at another speed is corrected by a
straight line if that halves the residual; any other error is in the residual. Cost is linear in rows.
"""

from __future__ import annotations

import heapq
import statistics
from dataclasses import dataclass

import polars as pl

from whystall.tools.ranks.job import Clocks
from whystall.tools.timeline.collectives import SYNCHRONISING

_DRIFT_MATCHES, _DRIFT_GAIN = 12, 0.5
"""A straight line needs so many operations, and must leave at most this share of the residual."""


@dataclass(frozen=True)
class _Line:
    """The offset of the clock of `rank` from that of `to`, with its residual."""

    rank: int
    to: int
    offset: float
    drift: float
    origin: float
    residual: float

    def turned(self) -> _Line:
        """Return the same, from `to` to `rank`."""
        origin = self.origin - self.offset
        return _Line(self.to, self.rank, -self.offset, -self.drift, origin, self.residual)


def estimate(matched: pl.DataFrame) -> Clocks:
    """Return the clocks of the ranks in `matched` (`job.MATCHED`). Of parts that share no operation, the largest."""
    together = matched.filter(pl.col("op").is_in(SYNCHRONISING))
    lines = _of_groups(together) + _of_messages(matched.filter(pl.col("op").is_in(["send", "recv"])))
    tree = _spanned(lines)
    if not tree:
        return Clocks({}, {}, 0)
    middle = statistics.median_low([line.offset for line in tree.values()])
    clocks = Clocks(
        {rank: round(line.offset - middle) for rank, line in sorted(tree.items())},
        {},
        together["instance"].n_unique(),
        {rank: line.drift for rank, line in tree.items() if line.drift},
        {rank: round(line.origin) for rank, line in tree.items()},
    )
    left = (
        together.with_columns(at=clocks.common("end_ns"))
        .drop_nulls("at")
        .with_columns(rest=(pl.col("at") - pl.col("at").median().over("instance")).abs())
        .group_by("rank")
        .agg(pl.col("rest").median())
    )
    residuals = dict(left.iter_rows())
    residual = {rank: round(max(residuals.get(rank, 0.0), tree[rank].residual)) for rank in clocks.offset_ns}
    return Clocks(clocks.offset_ns, residual, clocks.matched, clocks.drift, clocks.origin_ns)


def _of_groups(together: pl.DataFrame) -> list[_Line]:
    """Return for each group pairs of every rank with the most frequent rank."""
    most = (
        together.group_by("group", "rank")
        .len()
        .sort("len", "rank", descending=[True, False])
        .group_by("group", maintain_order=True)
        .agg(to=pl.col("rank").first())
    )
    zero = together.join(most, on="group").filter(pl.col("rank") == pl.col("to"))
    pairs = together.join(zero.select("instance", "to", other="end_ns"), on="instance")
    pairs = pairs.filter(pl.col("rank") != pl.col("to")).select(
        "group", "rank", "to", "end_ns", apart=pl.col("end_ns") - pl.col("other")
    )
    return _lines(pairs, ["group", "rank", "to"])


def _lines(pairs: pl.DataFrame, by: list[str]) -> list[_Line]:
    """Return a line per `by` (with rank and to) through ``apart`` over ``end_ns``: medians of first and last third."""
    low, high = pl.col("end_ns").quantile(1 / 3).over(by), pl.col("end_ns").quantile(2 / 3).over(by)
    early, late = pl.col("end_ns") <= low, pl.col("end_ns") >= high
    # differences to the first value: a float would lose the nanoseconds of an offset of hours
    base = pl.col("apart").first().over(by)
    pairs = pairs.with_columns(base=base, rest=pl.col("apart") - base, early=early, late=late)
    fitted = pairs.group_by(by).agg(
        pl.col("base").first(),
        level=pl.col("rest").median(),
        origin=pl.col("end_ns").median(),
        count=pl.len(),
        rise=pl.col("rest").filter("late").median() - pl.col("rest").filter("early").median(),
        run=pl.col("end_ns").filter("late").median() - pl.col("end_ns").filter("early").median(),
    )
    slope = pl.when((pl.col("count") >= _DRIFT_MATCHES) & (pl.col("run") > 0)).then(pl.col("rise") / pl.col("run"))
    fitted = fitted.with_columns(slope=slope.otherwise(0.0))
    rests = pairs.drop("base").join(fitted.select(*by, "level", "origin", "slope"), on=by)
    flat = pl.col("rest") - pl.col("level")
    tilted = flat - pl.col("slope") * (pl.col("end_ns") - pl.col("origin"))
    rests = rests.with_columns(flat=flat, tilted=tilted).with_columns(shift=pl.col("tilted").median().over(by))
    left = rests.group_by(by).agg(
        pl.col("flat").abs().median(),
        pl.col("shift").first(),
        tilted=(pl.col("tilted") - pl.col("shift")).abs().median(),
    )
    lines = []
    for row in fitted.join(left, on=by).sort(by).iter_rows(named=True):
        tilts = row["slope"] != 0 and row["tilted"] <= _DRIFT_GAIN * row["flat"]
        level = row["base"] + row["level"] + (row["shift"] if tilts else 0.0)
        residual = row["tilted"] if tilts else row["flat"]
        lines.append(_Line(row["rank"], row["to"], level, row["slope"] if tilts else 0.0, row["origin"], residual))
    return lines


def _of_messages(pairs: pl.DataFrame) -> list[_Line]:
    """For ranks that send to each other in both directions, return the middle of what causality allows, or the ends of
    the operations if these agree better."""
    sent = pairs.filter(pl.col("op") == "send").select("instance", source="rank", sent="start_ns", sent_end="end_ns")
    got = pairs.filter(pl.col("op") == "recv").select("instance", target="rank", got="end_ns")
    ways = (
        sent.join(got, on="instance")
        .with_columns(ends=pl.col("got") - pl.col("sent_end"))
        .with_columns(rest=(pl.col("ends") - pl.col("ends").median().over("source", "target")).abs())
        .group_by("source", "target")
        .agg(
            bound=(pl.col("got") - pl.col("sent")).min(),
            ends=pl.col("ends").median(),
            rest=pl.col("rest").median(),
            origin=pl.col("got").median(),
        )
    )
    back = ways.rename({"source": "target", "target": "source"})
    lines = []
    for row in ways.join(back, on=["source", "target"], suffix="_back").sort("source", "target").iter_rows(named=True):
        if row["source"] > row["target"]:
            continue
        upper, lower = row["bound"], -row["bound_back"]
        if lower > upper:  # no constant difference explains it
            continue
        offset, residual = (upper + lower) / 2, (upper - lower) / 2
        ends, apart = (row["ends"] - row["ends_back"]) / 2, abs(row["ends"] + row["ends_back"]) / 2
        apart = max(apart, row["rest"], row["rest_back"])
        if lower <= ends <= upper and apart < residual:
            offset, residual = ends, apart
        lines.append(_Line(row["target"], row["source"], offset, 0.0, row["origin"], residual))
    return lines


def _spanned(lines: list[_Line]) -> dict[int, _Line]:
    """Return the ranks of the largest part that `lines` link, each with its line to one of them; best links first."""
    links: dict[int, list[_Line]] = {}
    for line in lines:
        links.setdefault(line.to, []).append(line)
        links.setdefault(line.rank, []).append(line.turned())
    best: dict[int, _Line] = {}
    visited: set[int] = set()
    for root in sorted(links):
        if root in visited:
            continue
        tree = {root: _Line(root, root, 0.0, 0.0, 0.0, 0.0)}
        heap = [(line.residual, line.rank, index) for index, line in enumerate(links[root])]
        edges = list(links[root])
        heapq.heapify(heap)
        while heap:
            _, rank, index = heapq.heappop(heap)
            if rank in tree:
                continue
            tree[rank] = _chained(edges[index], tree[edges[index].to])
            for line in links[rank]:
                if line.rank not in tree:
                    heapq.heappush(heap, (line.residual, line.rank, len(edges)))
                    edges.append(line)
        visited |= set(tree)
        if len(tree) > len(best):
            best = tree
    return best


def _chained(line: _Line, on: _Line) -> _Line:
    offset = line.offset + on.offset + on.drift * (line.origin - line.offset - on.origin)
    return _Line(line.rank, on.to, offset, line.drift + on.drift, line.origin, max(line.residual, on.residual))
