"""Progress of each rank in each of its groups, from the content of its dump.

A ring buffer drops its oldest entries, and a dump may hold open ones only, so a missing entry is no evidence. A rank
has not reached number N of a group only if the library's own count says so, or if the newest entry of that group is
older than N: rings drop from the other end, and the operations of a group are executed in order.

A dump without entries and counters is evidence only if it lists its groups (a recorder that is switched off lists
none), and if counters can be missing: not where other dumps have them, unless the group is in its first operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from whystall.tools.ranks.job import Job
from whystall.tools.timeline.collectives import POINT_TO_POINT, SYNCHRONISING
from whystall.tools.timeline.nccl.flight_recorder import LONGEST_TIMEOUT_NS

DUMP = "flight_recorder"
"""The source whose ranks record unfinished operations; all other formats have finished ones only."""


@dataclass(frozen=True)
class Group:
    """A group of ranks. `members`: global ranks, from the dumps, or (`inferred`) those that used it."""

    key: str
    label: str
    members: tuple[int, ...]
    inferred: bool = False


@dataclass(frozen=True)
class GroupProgress:
    """Progress of one rank in one group. Numbers are those of collectives, from 1.

    `last_entered`; `done`: the last it is known to have finished, -1 unknown; `joined`: the last finished
    one that none finishes before all have entered; `first_open`: the first it has entered and not finished, 0 none;
    `opened`: all such, with the instant it entered.
    """

    last_entered: int
    done: int
    joined: int = -1
    first_open: int = 0
    opened: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """Progress of all ranks. `ranks`: those with a dump; `collectives`: their operations that are not point-to-point
    and have a number; `p2p_open`: (rank, peer, op) and how many are open; `oldest_ns`: by rank, the first operation of
    any kind its dump still holds; `latest_ns`: the last instant in any dump; `comparable`: whether the clocks can be
    those of one run; `listed`: by group, the ranks whose dumps list it; `counted`: whether any dump has counters."""

    ranks: tuple[int, ...]
    groups: Mapping[str, Group]
    of: Mapping[str, Mapping[int, GroupProgress]]
    collectives: pl.DataFrame
    p2p_open: Mapping[tuple[int, int, str], int]
    p2p_rows: pl.DataFrame
    oldest_ns: Mapping[int, int]
    latest_ns: int
    comparable: bool
    listed: Mapping[str, frozenset[int]]
    counted: bool

    def is_blank(self, rank: int) -> bool:
        """Return whether a rank's dump has neither entries nor counters."""
        return rank not in self.oldest_ns and not any(rank in of for of in self.of.values())

    def says_nothing(self, rank: int, key: str, seq: int) -> bool:
        """Return whether a rank's dump is no evidence about operation `seq` of the group `key`: blank, where a dump of
        a rank that has not entered it would not be (see above)."""
        lost = rank not in self.listed.get(key, ()) or (seq > 1 and self.counted)
        return self.is_blank(rank) and lost


def progress_of(job: Job) -> Progress:
    """Return the progress of the ranks of `job` with a Flight Recorder dump."""
    ranks = tuple(sorted(job.table("ranks").filter(pl.col("source") == DUMP)["rank"].to_list()))
    dumped = pl.col("rank").is_in(ranks)
    rows = job.table("collectives").filter(dumped & (pl.col("group") != "") & (pl.col("seq") >= 0))
    p2p = pl.col("op").is_in(list(POINT_TO_POINT))
    collectives, to_peer = rows.filter(~p2p), rows.filter(p2p)
    progress = job.table("progress").filter(dumped)
    # Where a group is also used point-to-point, the library's count may be of that.
    mixed = to_peer["group"].unique().implode()
    found = _by_group(collectives, progress.filter(~pl.col("group").is_in(mixed)))
    open_p2p = to_peer.filter((pl.col("state") != "completed") & (pl.col("peer") >= 0))
    counts = open_p2p.group_by("rank", "peer", "op").len().rows()
    spans = rows.group_by("rank").agg(
        first=pl.max_horizontal("launch_ns", "start_ns").min(),
        last=pl.max_horizontal("start_ns", "end_ns", "launch_ns").max(),
    )
    gaps = spans.sort("first").select(pl.col("first") - pl.col("last").cum_max().shift(1)).to_series()
    return Progress(
        ranks=ranks,
        groups=_groups(job, ranks, found),
        of=found,
        collectives=collectives,
        p2p_open={(rank, peer, op): number for rank, peer, op, number in counts},
        p2p_rows=open_p2p,
        oldest_ns=dict(spans.select("rank", "first").iter_rows()),
        latest_ns=max(spans["last"].to_list(), default=0),
        comparable=not (gaps > LONGEST_TIMEOUT_NS).any(),
        listed={
            key: frozenset(members)
            for key, members in job.table("groups").filter(dumped).group_by("group").agg("rank").iter_rows()
        },
        counted=progress.height > 0,
    )


def _by_group(collectives: pl.DataFrame, progress: pl.DataFrame) -> dict[str, dict[int, GroupProgress]]:
    counted_by_library = {(group, rank): (last_entered, done) for rank, group, last_entered, done in progress.rows()}
    is_open = pl.col("state") != "completed"
    # Over without an instant of its end: it may have failed, so it proves nothing.
    proven = (pl.col("state") == "completed") & (pl.col("end_ns") > 0)
    recorded = collectives.group_by("group", "rank").agg(
        pl.col("seq").max().alias("last_entered"),
        pl.col("seq").filter(proven).max().fill_null(-1).alias("done"),
        pl.col("seq").filter(proven & pl.col("op").is_in(list(SYNCHRONISING))).max().fill_null(-1).alias("joined"),
        pl.col("seq").filter(is_open).alias("open"),
        pl.max_horizontal("launch_ns", "start_ns").filter(is_open).alias("at"),
    )
    rows = {(row["group"], row["rank"]): row for row in recorded.iter_rows(named=True)}
    found: dict[str, dict[int, GroupProgress]] = {}
    for group, rank in {*counted_by_library, *rows}:
        row = rows.get((group, rank), {"last_entered": -1, "done": -1, "joined": -1, "open": [], "at": []})
        counted, finished = counted_by_library.get((group, rank), (-1, -1))
        opened = dict(zip(row["open"], row["at"], strict=True))
        state = GroupProgress(
            last_entered=max(row["last_entered"], counted),
            done=max(row["done"], finished),
            joined=row["joined"],
            first_open=min(opened, default=0),
            opened=opened,
        )
        if state.last_entered >= 0:
            found.setdefault(group, {})[rank] = state
    return found


def _groups(job: Job, ranks: tuple[int, ...], found: Mapping[str, Mapping[int, GroupProgress]]) -> dict[str, Group]:
    counted_by_library = (
        job.table("groups")
        .filter(pl.col("rank").is_in(ranks))
        .group_by("group", maintain_order=True)
        .agg(pl.col("name").first(), pl.col("description").max(), pl.col("ranks").first())
    )
    groups: dict[str, Group] = {}
    for key, name, description, members in counted_by_library.rows():
        label = f"{description} ({name})" if description not in ("", "undefined") else name
        if members:
            groups[key] = Group(key, label, tuple(sorted(members)))
        else:
            # the default group holds all ranks; of others only those that used it are known
            everybody = range(job.world_size) if description == "default_pg" else found.get(key, {})
            groups[key] = Group(key, label, tuple(sorted(everybody)), inferred=True)
    for key in found.keys() - groups.keys():
        groups[key] = Group(key, key, tuple(sorted(found[key])), inferred=True)
    return groups
