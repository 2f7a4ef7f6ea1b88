"""Check whether two runs are of the same configuration: only then is their speed comparable."""

from __future__ import annotations

import polars as pl

from whystall.tools.ranks.compare_runs.tables import CheckRow, Effect
from whystall.tools.ranks.job import Job
from whystall.tools.timeline.rank_data.rank_list import rank_list

OTHERS = "(others)"
_REFUSED, _LIMITED = 0.5, 0.95
"""Runs that share less than half of their operators' time, or of their operations, run different programs; below 95 %
the difference is reported: a profiler's names vary a little from run to run."""
_MOST_NAMED = 200


def checks(before: Job, after: Job) -> list[CheckRow]:
    """Return all checks, the worst first.

    Runs of another number of ranks are comparable per rank and step if each rank does the same work (data parallel
    training with the same model): the same operators, and the same operations with the same payloads.
    """
    scaled = _world_size(before, after).effect != "same" and _same_work_per_rank(before, after)
    rows = [
        _world_size(before, after, "limited" if scaled else "refused"),
        _plain("backend", "other_backend", _words(before, "backend"), _words(after, "backend")),
        _plain("device", "other_device", _device(before), _device(after)),
        _groups(before, after, "said" if scaled else "refused"),
        _ranks(before, after),
        _plain("format", "other_format", _words(before, "source"), _words(after, "source"), effect="limited"),
        _collectives(before, after, with_size=not scaled),
        _operators(before, after),
        _plain("hosts", "hosts_differ", _hosts(before), _hosts(after), effect="said"),
    ]
    order: list[Effect] = ["refused", "limited", "said", "same"]
    return sorted(rows, key=lambda row: order.index(row.effect))


def common(before: Job, after: Job) -> tuple[int, ...]:
    """Return the ranks that are in both runs."""
    return tuple(sorted(set(before.present) & set(after.present)))


def _plain(what: str, code: str, before: str, after: str, effect: Effect = "refused") -> CheckRow:
    """Return a check that is the same unless both are known and differ."""
    same = before == after or not before or not after
    return CheckRow(what=what, before=before, after=after, effect="same" if same else effect, code="" if same else code)


def _one(number: int) -> str:
    return str(number) if number > 0 else ""


def _words(job: Job, column: str) -> str:
    return ", ".join(sorted(set(job.table("ranks")[column].to_list()) - {""}))[:_MOST_NAMED]


def _device(job: Job) -> str:
    devices = set(job.table("ranks")["device"].to_list())
    if job.table("steps").is_empty() or not devices:
        return ""
    return "device" if devices == {True} else "host" if devices == {False} else "both"


def _hosts(job: Job) -> str:
    known = job.table("ranks").filter(pl.col("host") != "").group_by("host").agg(pl.col("rank")).sort("host")
    return "; ".join(f"{host}: {rank_list(ranks)}" for host, ranks in known.iter_rows())[:_MOST_NAMED]


def _ranks(before: Job, after: Job) -> CheckRow:
    one, other = rank_list(before.present), rank_list(after.present)
    if not common(before, after):
        return CheckRow(what="ranks", before=one, after=other, effect="refused", code="no_common_ranks")
    return _plain("ranks", "ranks_differ", one, other, "limited")


def _world_size(before: Job, after: Job, effect: Effect = "refused") -> CheckRow:
    code = "other_world_size" if effect == "refused" else "world_sizes_differ"
    return _plain("world_size", code, _one(before.world_size), _one(after.world_size), effect)


def _same_work_per_rank(before: Job, after: Job) -> bool:
    """Return whether a rank of either run does the same in a step, as far as the traces show; False if they do not."""
    operators = _operators(before, after)
    known = not (before.table("operators").is_empty() or after.table("operators").is_empty())
    return known and operators.effect == "same" and _collectives(before, after, with_size=False).effect == "same"


def _operators(before: Job, after: Job) -> CheckRow:
    times = _times(before), _times(after)
    return _shared("operators", *times, "other_operators", "operators_differ", either=True)


def _collectives(before: Job, after: Job, *, with_size: bool) -> CheckRow:
    found = _operations(before, with_size=with_size), _operations(after, with_size=with_size)
    return _shared("collectives", *found, "other_collectives", "collectives_differ")


def _groups(before: Job, after: Job, effect: Effect) -> CheckRow:
    """Compare groups by members where both know them, else by size; groups are named anew in every run."""
    known = all(job.table("groups")["ranks"].list.len().min() not in (None, 0) for job in (before, after))
    column = "ranks" if known else "size"
    one, other = (_members(job, column) for job in (before, after))
    return _plain("groups", "other_groups" if effect == "refused" else "groups_differ", one, other, effect)


def _members(job: Job, column: str) -> str:
    groups = job.table("groups").filter(pl.col("size") > 1).unique(["group"])
    if column == "ranks":
        texts = sorted({rank_list(ranks) for ranks in groups["ranks"].to_list()})
    else:
        texts = [f"{count} of {size}" for size, count in groups.group_by("size").len().sort("size").iter_rows()]
    return "; ".join(texts)


def _operations(job: Job, *, with_size: bool) -> dict[str, float]:
    """Return operations per step and rank, by kind, payload and, if `with_size`, group size; the usual count of a step,
    so that lost or truncated parts of a trace do not matter. With group sizes it is the sum over ranks, else the
    mean."""
    rows = job.table("collectives")
    sizes = job.table("groups").unique(["group"]).select("group", "size")
    rows = rows.join(sizes, on="group", how="left").with_columns(pl.col("size").fill_null(-1))
    each = rows.group_by("rank", "step", "op", "bytes", "size").len()
    usual = each.group_by("op", "bytes", "size", "rank").agg(pl.col("len").median(), steps=pl.len())
    if rows["step"].max() != -1:  # an operation of few steps (a checkpoint's) does not belong to the step
        most = usual["steps"].max() or 0
        usual = usual.filter(pl.col("steps") * 2 >= most)
        count = pl.col("len").sum()
    else:  # without steps: shares
        count = pl.col("len").sum() / max(rows.height, 1)
    if with_size:
        found = usual.group_by("op", "bytes", "size").agg(count)
        return {f"{op} {size} B x{members}": value for op, size, members, value in found.iter_rows()}
    ranks = max(usual["rank"].n_unique(), 1)
    found = usual.group_by("op", "bytes").agg(count / ranks)
    return {f"{op} {size} B": value for op, size, value in found.iter_rows()}


def _times(job: Job) -> dict[str, float]:
    """Return the share of the work by name, without the merged rest."""
    rows = job.table("operators").filter((pl.col("name") != OTHERS) & (pl.col("kind") != "loader"))
    total = max(rows["total_ns"].sum(), 1)
    sums = rows.group_by("kind", "name").agg(pl.col("total_ns").sum() / total)
    return {f"{kind} {name}": share for kind, name, share in sums.iter_rows()}


def _shared(
    what: str,
    before: dict[str, float],
    after: dict[str, float],
    refused: str,
    limited: str,
    *,
    either: bool = False,
) -> CheckRow:
    """Return how much of either run is of keys that both have. The row has the number of keys of each, ``(+2)`` of
    which the other lacks.

    `either`: it is enough that most of one run is in the other. Operators that were added, or removed by a fix, may be
    the very difference in question.
    """
    texts = [
        f"{len(run)} (+{only})" if (only := len(run.keys() - other_run.keys())) else str(len(run))
        for run, other_run in ((before, after), (after, before))
    ]
    row = CheckRow(what=what, before=texts[0], after=texts[1], effect="same")
    if not before or not after:
        return row
    kept, known = (
        sum(value for key, value in run.items() if key in other_run) / max(sum(run.values()), 1e-12)
        for run, other_run in ((before, after), (after, before))
    )
    if (max(kept, known) if either else min(kept, known)) < _REFUSED:
        return row.model_copy(update={"effect": "refused", "code": refused})
    if min(kept, known) < _LIMITED:
        return row.model_copy(update={"effect": "limited", "code": limited})
    return row
