"""Match operations by time: the same operation ends at the same instant, on aligned clocks.

Used where there is neither a sequence number nor a step. Ranks whose clock is not known yet get theirs from a vote
(`clock_votes`). Operations of one kind that end together are one operation, if equal ones are far enough apart for
that; ranks that repeatedly end together are a group, if the traces do not name it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import polars as pl

from whystall.tools.ranks.job import Clocks
from whystall.tools.ranks.matching.clock_votes import ClockSource, laid
from whystall.tools.timeline.collectives import SYNCHRONISING, group_key

_WITHIN, _FLOOR_NS, _SPACING = 6.0, 30_000, 1 / 3
"""Ends that belong together: within so many residuals or ns, and this share of the distance of equal operations."""
_SPACING_QUANTILE = 0.05
_MOST = 0.5
"""Operations of a group are matched by time if most are: single ones coincide by chance."""
_LEAST_TIMES, _OFTEN = 5, 0.1
"""Ranks that end together are a group if they do so often, and in such a share of the operations of each of them."""
_UNKNOWN_NS = 60_000
"""Groups of unknown ranks are distinguished by ends only if these agree so well."""
_PARTS, _FEW, _APART = 1.2, 2, 0.01
"""Ranks are several groups when there are so many times more parts than operations, or two parts apart in more than so
many or this share of them."""

LINKS = pl.Schema(
    {"row": pl.get_index_type(), "key": pl.String, "how": pl.String, "group": pl.String, "size": pl.Int32}
)
"""A row of the job's operations belongs to the instance `key`; its group (possibly inferred) and the group's size."""

_RANKS = ("rank", pl.List(pl.Int32))
_NAMED = pl.Schema([("group", pl.String), ("kind", pl.String), _RANKS, ("name", pl.String), ("size", pl.Int32)])


def by_time(
    rows: pl.DataFrame,
    left: pl.DataFrame,
    clocks: Clocks,
    source: ClockSource,
    groups: Iterable[tuple[int, ...]] = (),
) -> tuple[pl.DataFrame, pl.Series]:
    """Match the rows `left` of all `rows` (prepared as in `matching.operations`), with the `clocks` known so far
    and where they are from. `groups`: the ranks of those that the traces name.

    Returns links (`LINKS`) and the rows with more than one possible match.
    """
    numbered = pl.when("numbered").then("seq").otherwise(-1)
    rows = rows.filter(pl.col("op").is_in(SYNCHRONISING) | pl.col("pair")).with_columns(
        kind="token", token=pl.format("{}\x1f{}\x1f{}", "channel", "token", numbered)
    )
    shared = rows.group_by("token").agg(pl.col("rank").n_unique()).filter(pl.col("rank") > 1)
    rows = rows.join(shared, on="token", how="semi")
    left = rows.join(left, on="row", how="semi")
    if left.is_empty():
        return LINKS.to_frame(), left["row"]
    clusters = _clustered(left.join(laid(rows, left["rank"].unique().to_list(), clocks, source), on="row"))
    links = pl.concat([_of_known(clusters), _of_unknown(clusters, rows, groups)])
    sure = clusters.filter(pl.col("distinct") & (pl.col("ranks") == 1))
    doubt = left.join(links, on="row", how="anti").join(sure, on="row", how="anti")
    return links, doubt["row"]


def _clustered(rows: pl.DataFrame) -> pl.DataFrame:
    """Return `rows` (with ``at`` and ``residual``) with the cluster of equal operations they end in: ``cluster``, its
    number of ``ranks``, and whether it can be one operation (``distinct``)."""
    distance = (
        pl.col("at").diff().over("token", "rank", order_by="at").quantile(_SPACING_QUANTILE).over("token", "rank")
    )
    rows = rows.with_columns(spacing=distance.fill_null(float("inf")))
    room = pl.col("spacing").min().over("token") * _SPACING
    need = pl.col("residual").max().over("token") * _WITHIN
    within = pl.min_horizontal(pl.max_horizontal(need, pl.lit(float(_FLOOR_NS))), room)
    rows = rows.with_columns(within=within, clear=need <= room).sort("token", "at", "row")
    first = (pl.col("token") != pl.col("token").shift()) | (pl.col("at") - pl.col("at").shift() > pl.col("within"))
    rows = rows.with_columns(cluster=first.fill_null(value=True).cum_sum())
    width = pl.col("at").max().over("cluster") - pl.col("at").min().over("cluster")
    return rows.with_columns(ranks=pl.col("rank").n_unique().over("cluster")).with_columns(
        distinct=pl.col("clear") & (pl.len().over("cluster") == pl.col("ranks")) & (width <= 2 * pl.col("within"))
    )


def _of_known(clusters: pl.DataFrame) -> pl.DataFrame:
    """Return clusters within groups whose ranks are known, where most operations of the common time found theirs."""
    rows = clusters.filter("trusted")
    ends = rows.group_by("channel", "rank").agg(first=pl.col("at").min(), last=pl.col("at").max())
    common = ends.group_by("channel").agg(pl.col("first").max(), pl.col("last").min())
    good = pl.col("distinct") & (pl.col("ranks") > 1)
    inside = rows.join(common, on="channel").filter(pl.col("at").is_between("first", "last"))
    channels = inside.group_by("channel").agg(share=good.mean()).filter(pl.col("share") >= _MOST)
    return (
        rows.filter(good)
        .join(channels, on="channel", how="semi")
        .select("row", key=pl.format("t\x1f{}", "cluster"), how=pl.lit("time"), group="group", size="size")
    )


def _of_unknown(clusters: pl.DataFrame, every: pl.DataFrame, groups: Iterable[tuple[int, ...]]) -> pl.DataFrame:
    """Return clusters in groups whose ranks are not listed: groups are the sets of ranks that often end together.

    Not where a rank that has such operations (in `every`) could not be placed: it may belong to any of them. Nor where
    the set holds a smaller group, observed or among `groups`: ranks that have just left that one together arrive
    together at whatever is next, and several groups look like one.
    """
    doing = every.group_by("group", "kind").agg(ranks=pl.col("rank").n_unique())
    rows = clusters.filter(~pl.col("trusted") & (pl.col("within") <= _UNKNOWN_NS)).drop("ranks")
    rows = rows.join(doing, on=["group", "kind"]).filter(
        pl.col("rank").n_unique().over("group", "kind") == pl.col("ranks")
    )
    sets = rows.filter("distinct").group_by("group", "kind", "cluster").agg(pl.col("rank").sort())
    counted = sets.group_by("group", "kind", "rank").len().sort("len", "rank", descending=[True, False])
    observed = {
        (str(group), str(kind)): {frozenset(ranks): count for ranks, count in part.select("rank", "len").iter_rows()}
        for (group, kind), part in counted.group_by("group", "kind", maintain_order=True)
    }
    accepted = {of: _sets(counts) for of, counts in observed.items()}
    smaller = {*(frozenset(ranks) for ranks in groups if len(ranks) > 1), *chain.from_iterable(accepted.values())}
    named = []
    for (group, kind), counts in observed.items():
        sure = [ranks for ranks in accepted[group, kind] if not any(other < ranks for other in smaller)]
        for ranks in counts:
            fitting = [other for other in sure if ranks <= other]
            if len(ranks) > 1 and len(fitting) == 1 and not any(other < ranks for other in smaller):
                named.append((group, kind, sorted(ranks), group_key(group, tuple(fitting[0])), len(fitting[0])))
    found = sets.join(pl.DataFrame(named, schema=_NAMED, orient="row"), on=["group", "kind", "rank"]).select(
        "cluster", "name", "size"
    )
    return (
        rows.drop("size")
        .join(found, on="cluster")
        .select("row", key=pl.format("t\x1f{}", "cluster"), how=pl.lit("time"), group="name", size="size")
    )


def _sets(observed: dict[frozenset[int], int]) -> list[frozenset[int]]:
    """Return the groups among the sets of ranks that were `observed` to end together, and how often."""
    per_rank: dict[int, int] = {}
    for ranks, count in observed.items():
        for rank in ranks:
            per_rank[rank] = per_rank.get(rank, 0) + count
    accepted: list[frozenset[int]] = []
    for ranks, count in sorted(observed.items(), key=lambda item: (-item[1], sorted(item[0]))):
        often = count >= max(_LEAST_TIMES, _OFTEN * min(per_rank[rank] for rank in ranks))
        related = any(ranks < other or other < ranks for other in accepted)
        if len(ranks) > 1 and often and not related and not _union(ranks, observed):
            accepted.append(ranks)
    return accepted


def _union(ranks: frozenset[int], observed: dict[frozenset[int], int]) -> bool:
    """Return whether `ranks` are several groups that end together by chance: then their parts are also observed apart.

    Where operations were lost, the ranks that are missing from one are nowhere else: there are about as many parts as
    its most frequent rank has operations, and no two parts that have no rank in common.
    """
    parts = {part: count for part, count in observed.items() if part <= ranks}
    most = max(sum(count for part, count in parts.items() if rank in part) for rank in ranks)
    if sum(parts.values()) > _PARTS * most + _FEW:
        return True
    large = [part for part, count in parts.items() if len(part) > 1 and count > max(_FEW, _APART * most)]
    return any(not one & other for index, one in enumerate(large) for other in large[:index])
