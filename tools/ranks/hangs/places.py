"""Where each rank is, by its Flight Recorder dump: the last operation that it entered in each of its groups."""

from __future__ import annotations

import polars as pl

from whystall.tools.ranks.hangs.progress import Progress, progress_of
from whystall.tools.ranks.job import Job

PLACES = pl.Schema(
    {
        "rank": pl.Int32,
        # what the program calls the group; groups of one description share no rank
        "column": pl.String,
        "group": pl.String,
        # number of the operation in the group, -1: point-to-point
        "seq": pl.Int64,
        "op": pl.String,
        # waits: in this operation, which it has entered; behind: others of the group have entered a later one; done: it
        # has finished the last that any entered; unknown: its dump has nothing of the group
        "state": pl.String,
    }
)


def places(job: Job) -> pl.DataFrame:
    """Return `PLACES` of the ranks of `job` with a dump, by rank; empty without dumps."""
    progress = progress_of(job)
    operations = {
        (group, rank, seq): op
        for group, rank, seq, op in progress.collectives.select("group", "rank", "seq", "op").iter_rows()
    }
    names = _columns(progress)
    rows = []
    for key, group in progress.groups.items():
        of = progress.of.get(key, {})
        latest = max((state.last_entered for state in of.values()), default=0)
        for rank in set(group.members) & set(progress.ranks):
            state = of.get(rank)
            if state is None:
                rows.append((rank, names[key], group.label, -1, "", "unknown"))
                continue
            seq = state.first_open or state.last_entered
            where = "waits" if state.opened else "behind" if state.last_entered < latest else "done"
            rows.append((rank, names[key], group.label, seq, operations.get((key, rank, seq), ""), where))
    for rank, peer, op in sorted(progress.p2p_open):
        rows.append((rank, op, op, -1, f"{op} {peer}", "waits"))
    frame = pl.DataFrame(rows, schema=PLACES, orient="row").sort("rank", "column", maintain_order=True)
    return frame.unique(["rank", "column"], keep="first", maintain_order=True)


def _columns(progress: Progress) -> dict[str, str]:
    """Return a column for each group: groups of one description share a column unless they share a rank."""
    taken: dict[str, set[int]] = {}
    columns: dict[str, str] = {}
    for key, group in sorted(progress.groups.items(), key=lambda item: (-len(item[1].members), item[1].label)):
        described, _, _ = group.label.rpartition(" (")
        name = base = described or group.label
        number = 1
        while taken.get(name, set()) & set(group.members):
            number += 1
            name = f"{base} {number}"
        taken.setdefault(name, set()).update(group.members)
        columns[key] = name
    return columns
