"""Matching by time: the same operation ends at the same instant, on clocks laid over each other.

Used for what neither a sequence number nor a step tells. Ranks whose clock is not known yet get theirs from a vote
(`clock_votes`). Operations of one kind that end together are one operation, where equal ones are far enough apart for
that; ranks that end together again and again are a group, where the traces do not name it.
"""

from __future__ import annotations

import polars as pl

from whystall.tools.ranks.clock_votes import laid
from whystall.tools.ranks.job import Clocks
from whystall.tools.timeline.collectives import SYNCHRONISING, group_key

_WITHIN, _FLOOR_NS, _SPACING = 6.0, 30_000, 1 / 3
"""Ends that belong together: within so many residuals or ns, and this share of the distance of equal operations."""
_SPACING_QUANTILE = 0.05
_MOST = 0.5
"""Operations of a group are matched by time when most are: single ones coincide by chance."""
_SEEN, _OFTEN = 5, 0.1
"""Ranks that end together are a group when seen so often, and in such a share of the operations of each of them."""

LINKS = pl.Schema({"row": pl.UInt32, "key": pl.String, "how": pl.String, "group": pl.String, "size": pl.Int32})
"""A row of the job's operations belongs to the instance `key`; its group (as inferred, where it was) and the group's
size."""


def by_time(rows: pl.DataFrame, left: pl.DataFrame, clocks: Clocks) -> tuple[pl.DataFrame, pl.Series]:
    """Match the rows `left` of all `rows` (prepared as in `matching`), with the `clocks` known so far.

    Returns links (`LINKS`) and the rows for which there was more than one answer.
    """
    numbered = pl.when("pair").then(-1).otherwise("seq")
    rows = rows.filter(pl.col("op").is_in(SYNCHRONISING) | pl.col("pair")).with_columns(
        token=pl.format("{}\x1f{}\x1f{}", "channel", "token", numbered)
    )
    shared = rows.group_by("token").agg(pl.col("rank").n_unique()).filter(pl.col("rank") > 1)
    rows = rows.join(shared, on="token", how="semi")
    left = rows.join(left, on="row", how="semi")
    if left.is_empty():
        return LINKS.to_frame(), left["row"]
    clusters = _clustered(left.join(laid(rows, left["rank"].unique().to_list(), clocks), on="row"))
    links = pl.concat([_of_known(clusters), _of_unknown(clusters)])
    sure = clusters.filter(pl.col("told") & (pl.col("ranks") == 1))
    doubt = left.join(links, on="row", how="anti").join(sure, on="row", how="anti")
    return links, doubt["row"]


def _clustered(rows: pl.DataFrame) -> pl.DataFrame:
    """`rows` (with ``at`` and ``residual``) with the cluster of equal operations they end in: ``cluster``, its
    number of ``ranks``, and whether it can be one operation (``told``)."""
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
        told=pl.col("clear") & (pl.len().over("cluster") == pl.col("ranks")) & (width <= 2 * pl.col("within"))
    )


def _of_known(clusters: pl.DataFrame) -> pl.DataFrame:
    """Clusters within groups whose ranks are known, where most operations of the common time found theirs."""
    rows = clusters.filter("trusted")
    ends = rows.group_by("channel", "rank").agg(first=pl.col("at").min(), last=pl.col("at").max())
    common = ends.group_by("channel").agg(pl.col("first").max(), pl.col("last").min())
    good = pl.col("told") & (pl.col("ranks") > 1)
    inside = rows.join(common, on="channel").filter(pl.col("at").is_between("first", "last"))
    channels = inside.group_by("channel").agg(share=good.mean()).filter(pl.col("share") >= _MOST)
    return (
        rows.filter(good)
        .join(channels, on="channel", how="semi")
        .select("row", key=pl.format("t\x1f{}", "cluster"), how=pl.lit("time"), group="group", size="size")
    )


def _of_unknown(clusters: pl.DataFrame) -> pl.DataFrame:
    """Clusters in groups that nobody names the ranks of: groups are the sets of ranks that end together often."""
    rows = clusters.filter(~pl.col("trusted"))
    per_rank = {(token, rank): n for token, rank, n in rows.group_by("group", "rank").len().iter_rows()}
    sets = rows.filter(pl.col("told") & (pl.col("ranks") > 1))
    sets = sets.group_by("group", "cluster").agg(pl.col("rank").sort())
    often = sets.group_by("group", "rank").len().sort("len", "rank", descending=[True, False])
    accepted: dict[str, list[frozenset[int]]] = {}
    for group, ranks, count in often.iter_rows():
        known, new = accepted.setdefault(group, []), frozenset(ranks)
        rare = count < max(_SEEN, _OFTEN * min(per_rank[group, rank] for rank in ranks))
        if not rare and not any(new < other or other < new for other in known):
            known.append(new)
    named: dict[str, list[object]] = {"group": [], "rank": [], "name": [], "size": []}
    for group, ranks, _ in often.iter_rows():
        mine = frozenset(ranks)
        fitting = [other for other in accepted[group] if mine <= other]
        if len(fitting) == 1 and not any(other < mine for other in accepted[group]):
            named["group"].append(group)
            named["rank"].append(ranks)
            named["name"].append(group_key(group, tuple(fitting[0])))
            named["size"].append(len(fitting[0]))
    schema = {"group": pl.String, "rank": pl.List(pl.Int32), "name": pl.String, "size": pl.Int32}
    found = sets.join(pl.DataFrame(named, schema=schema), on=["group", "rank"]).select("cluster", "name", "size")
    return (
        rows.drop("size")
        .join(found, on="cluster")
        .select("row", key=pl.format("t\x1f{}", "cluster"), how=pl.lit("time"), group="name", size="size")
    )
