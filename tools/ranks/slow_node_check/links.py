"""Find transfers that take longer than equal ones elsewhere: a slow link, network card or switch.

The shortest duration of an operation is its transfer time, whichever rank came late; it is compared between groups that
run the same operations with the same bytes and the same number of ranks, and between pairs that send the same bytes.
Groups vote like ranks (`votes`): one vote per step, exact. The ranks that all slow groups and pairs share are the
suspects. Their common cost decides whether it matters.

With one group there is nothing to compare with, and a link that is slow for all looks normal: blind spot no_baseline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import polars as pl

from whystall.tools.ranks.job import Job
from whystall.tools.ranks.slow_node_check import votes
from whystall.tools.ranks.slow_node_check.grid import Grid
from whystall.tools.ranks.statistics import probability

# Transfers that differ by less are equal: the smallest floor (slow-node check: 0.10 warn, 0.20 critical).
_RATIO = 1.1
# Links that cost at least this part of the costliest one locate the fault: others are noise.
_WEIGHS = 0.1
_PAIR = ("send", "recv", "send_recv")


@dataclass(frozen=True)
class Transfers:
    """The transfers of one group or directed pair compared with equal ones. `transfer_ns`: median of one of them,
    `peers_ns`: that of the others; `cost_ns`: how much longer they take together, per step; `bytes`: of the most
    frequent size; `source`: the sender of a pair, -1 unknown."""

    group: str
    description: str
    op: str
    ranks: tuple[int, ...]
    source: int
    bytes: int
    count: int
    transfer_ns: float
    peers_ns: float
    gb_per_s: float | None
    slow: bool = False
    cost_ns: float = 0.0
    votes: int = 0
    steps: int = 0
    p_value: float = 1.0
    began: int = -1

    @property
    def ratio(self) -> float:
        """Ratio to the duration of equal ones."""
        return self.transfer_ns / self.peers_ns if self.peers_ns > 0 else 0.0


@dataclass(frozen=True)
class Links:
    """`rows`: all compared transfers, slow ones first. `suspects`: the ranks that all slow groups share; empty if
    nothing is slow. `cost_ns`: per step, the costliest of each family together. `compared`: there was something to
    compare with."""

    rows: list[Transfers]
    suspects: tuple[int, ...]
    cost_ns: float
    compared: bool

    @property
    def slow(self) -> list[Transfers]:
        """The slow ones, the costliest first."""
        return [row for row in self.rows if row.slow]


def links(job: Job, matched: pl.DataFrame, waits: pl.DataFrame, step_ns: float) -> Links:
    """Compare the transfers of `job`, whose median step takes `step_ns`."""
    every = pl.concat([_between_groups(matched, waits, _descriptions(job)), _measured(job.table("links"))])
    rows: list[Transfers] = []
    compared, cost = False, 0.0
    families = every.partition_by("family", as_dict=True)
    for _, family in sorted(families.items()):
        found = _family(family, step_ns, len(families))
        compared |= len(found) > 1
        rows += found
        cost += max((row.cost_ns for row in found), default=0.0)
    dearest = max((row.cost_ns for row in rows), default=0.0)
    rows = [row if row.cost_ns >= _WEIGHS * dearest else replace(row, slow=False) for row in rows]
    rows.sort(key=lambda row: (not row.slow, -row.cost_ns, -row.ratio, row.ranks))
    return Links(rows, _suspects(rows), cost, compared)


_COLUMNS = {
    # family: what may be compared with each other
    "family": pl.String,
    # the group, or the pair
    "key": pl.String,
    "group": pl.String,
    "description": pl.String,
    "op": pl.String,
    "ranks": pl.List(pl.Int32),
    # the sender of a pair; -1: unknown, or no pair
    "source": pl.Int32,
    # operations of one slot are equal: same operation and size
    "slot": pl.String,
    "step": pl.Int32,
    "bytes": pl.Int64,
    "transfer_ns": pl.Float64,
}


def _descriptions(job: Job) -> dict[str, str]:
    """Return the program's name of a group, by its ranks: an operation's group may have been inferred from its ranks
    alone. Ranks that are in several groups together are ambiguous."""
    table = job.table("groups").filter(pl.col("ranks").list.len() > 1)
    named = table.with_columns(members=pl.col("ranks").list.sort().cast(pl.List(pl.String)).list.join(","))
    alone = named.group_by("members").agg(pl.col("description").first(), kinds=pl.col("description").n_unique())
    return dict(alone.filter(pl.col("kinds") == 1).select("members", "description").iter_rows())


def _between_groups(matched: pl.DataFrame, waits: pl.DataFrame, kinds: Mapping[str, str]) -> pl.DataFrame:
    """Return one row per operation, with the group or pair it belongs to."""
    once = waits.group_by("instance").agg(pl.col("transfer_ns").first())
    # if a rank is absent the shortest duration may include waiting for it; of unknown size, transfers are not equal
    measured = (
        matched.filter((pl.col("present") == pl.col("size")) & (pl.col("bytes") >= 0))
        .group_by("instance")
        .agg(
            pl.col("group", "step", "size").first(),
            op=pl.col("op").sort().first(),
            ranks=pl.col("rank").unique().sort(),
            sender=pl.col("rank").filter(pl.col("op") == "send").first(),
            bytes=pl.col("bytes").max(),
        )
    )
    pair = pl.col("op").is_in(_PAIR)
    # sizes are binned by half a doubling
    bucket = (pl.col("bytes").clip(1).log(2) * 2).round().cast(pl.Int64)
    members = pl.col("ranks").cast(pl.List(pl.String)).list.join(",")
    kind = members.replace_strict(kinds, default="", return_dtype=pl.String)
    return (
        measured.join(once, on="instance")
        .filter((pl.col("step") >= 0) | (pl.col("step").max() < 0))
        .with_columns(op=pl.when(pair).then(pl.lit("send")).otherwise("op"), description=kind)
        .select(
            family=pl.when(pair)
            .then(pl.format("pairs {}", bucket))
            .otherwise(pl.format("groups {} {}", "description", "size")),
            key=pl.when(pair).then(pl.format("{}>{}", pl.col("sender").fill_null(-1), members)).otherwise("group"),
            group=pl.col("group"),
            description=pl.col("description"),
            op=pl.col("op"),
            ranks=pl.col("ranks"),
            source=pl.when(pair).then(pl.col("sender").fill_null(-1)).otherwise(-1),
            slot=pl.format("{} {}", "op", bucket),
            step=pl.col("step"),
            bytes=pl.col("bytes"),
            transfer_ns=pl.col("transfer_ns").cast(pl.Float64),
        )
        .cast(_COLUMNS)  # type: ignore[arg-type]
    )


def _measured(rows: pl.DataFrame) -> pl.DataFrame:
    """Return what a profiler measured per pair and transport, per step; times for the median number of bytes."""
    usual = pl.col("bytes").median().over("transport")
    ranks = pl.concat_list(pl.min_horizontal("source", "target"), pl.max_horizontal("source", "target"))
    # every rank of a pair may report it
    once = rows.filter((pl.col("bytes") > 0) & (pl.col("transit_ns") > 0) & (pl.col("source") != pl.col("target")))
    return (
        once.group_by("step", "source", "target", "transport")
        .agg(pl.col("bytes").max(), pl.col("transit_ns").max())
        .select(
            family=pl.format("links {}", "transport"),
            key=pl.format("{}>{}", "source", "target"),
            group=pl.col("transport"),
            description=pl.col("transport"),
            op=pl.lit("link"),
            ranks=ranks,
            source=pl.col("source"),
            slot=pl.col("transport"),
            step=pl.col("step"),
            bytes=pl.col("bytes"),
            transfer_ns=pl.col("transit_ns") / pl.col("bytes") * usual,
        )
        .cast(_COLUMNS)  # type: ignore[arg-type]
    )


def _family(rows: pl.DataFrame, step_ns: float, tests: int) -> list[Transfers]:
    """Compare the groups of one family, over the operations that all of them have."""
    keys = rows["key"].unique().sort().to_list()
    slots = rows.group_by("slot").agg(held=pl.col("key").n_unique()).filter(pl.col("held") == len(keys))
    rows = rows.join(slots, on="slot", how="semi")
    if rows.is_empty():
        return []
    board = _board(rows, keys, step_ns)
    slow: dict[int, votes.Late] = {}
    if len(keys) > 1 and len(board.steps) >= votes.enough_steps(board):
        slow = {one.rank: one for one in votes.late(board, votes.NOISE * step_ns, tests)}
    return [_transfers(rows, key, slow.get(index), board) for index, key in enumerate(keys)]


def _board(rows: pl.DataFrame, keys: list[str], step_ns: float) -> Grid:
    """Return groups as a `Grid`: per step the time of all transfers, as if each slot had its usual number of
    operations.

    A step that lost an operation would appear fast: slots count by their median.
    """
    often = rows.group_by("slot", "key", "step").len().group_by("slot").agg(often=pl.col("len").median())
    each = rows.group_by("slot", "key", "step").agg(pl.col("transfer_ns").median()).join(often, on="slot")
    whole = each.group_by("step").agg(held=pl.len()).filter(pl.col("held") == each.select("slot", "key").n_unique())
    sums = (
        each.join(whole, on="step", how="semi")
        .group_by("step", "key")
        .agg(ns=(pl.col("transfer_ns") * pl.col("often")).sum())
        .sort("step")
    )
    columns = {str(index): sums.filter(pl.col("key") == key)["ns"].cast(pl.Float64) for index, key in enumerate(keys)}
    own = pl.DataFrame(columns)
    steps = tuple(sums["step"].unique().sort().to_list())
    return Grid(tuple(range(len(keys))), steps, own, own.select(-pl.all()), None, step_ns)


def _transfers(rows: pl.DataFrame, key: str, late: votes.Late | None, board: Grid) -> Transfers:
    of_key, others = rows.filter(pl.col("key") == key), rows.filter(pl.col("key") != key)
    # of the size that takes most of the time
    slot = (
        of_key.group_by("slot").agg(pl.col("transfer_ns").sum()).sort("transfer_ns", "slot", descending=True)["slot"][0]
    )
    of_slot, equal = of_key.filter(pl.col("slot") == slot), others.filter(pl.col("slot") == slot)
    took = probability.median(of_slot["transfer_ns"].to_list())
    usual = probability.median(equal.group_by("key").agg(pl.col("transfer_ns").median())["transfer_ns"].to_list())
    size = int(of_slot["bytes"].median() or -1)  # type: ignore[arg-type]
    if late is not None and took < _RATIO * usual:
        late = None
    first = of_slot.row(0, named=True)
    return Transfers(
        group=first["group"],
        description=first["description"],
        op=first["op"],
        ranks=tuple(sorted(of_key["ranks"].explode().unique().to_list())),
        source=first["source"],
        bytes=size,
        count=of_key.height,
        transfer_ns=took,
        peers_ns=usual,
        gb_per_s=size / took if size > 0 and took > 0 else None,
        slow=late is not None,
        cost_ns=late.lost_ns if late else 0.0,
        votes=late.votes if late else 0,
        steps=late.steps if late else len(board.steps),
        p_value=late.p_value if late else 1.0,
        began=board.steps[late.began] if late and late.began >= 0 else -1,
    )


def _suspects(rows: Iterable[Transfers]) -> tuple[int, ...]:
    """Return the ranks that all slow groups and pairs share; else, of several slow links, all ranks."""
    slow = [set(row.ranks) for row in rows if row.slow]
    if not slow:
        return ()
    return tuple(sorted(set.intersection(*slow) or set.union(*slow)))
