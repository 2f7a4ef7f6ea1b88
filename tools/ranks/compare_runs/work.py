"""Find operators and operations between ranks whose time changed from the run before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from whystall.tools.ranks.compare_runs.configuration import OTHERS
from whystall.tools.ranks.compare_runs.tables import CollectiveRow, OperatorRow
from whystall.tools.ranks.job import Job
from whystall.tools.ranks.statistics.probability import corrected, median
from whystall.tools.ranks.statistics.two_samples import rank_test
from whystall.tools.stacks.alignment import Aligned, align, renaming
from whystall.tools.timeline.rank_data.rank_list import rank_list

REST = "rest"
_HIDDEN = 0.1
"""A name that one run does not list may be among its merged others, which are shorter than all listed ones. It counts
as absent only if those are at most a tenth of the name's time in the other run."""
_LEAST_SAMPLES = 5
_MOST_SAMPLES = 5000
_HALF = 0.5


def aligned_operators(before: Job, after: Job) -> tuple[Job, Job, list[Aligned]]:
    """Return both jobs with aligned names of operators, and what was aligned: kernels of another compilation or of
    another vendor's runtime are neither new nor gone."""
    found = align(*(set(job.table("operators")["name"].to_list()) for job in (before, after)))
    name = pl.col("name").replace(renaming(found))
    one, other = (
        replace(job, tables={**job.tables, "operators": job.table("operators").with_columns(name)})
        for job in (before, after)
    )
    return one, other, found


def operators(
    before: Job, after: Job, ranks: Sequence[int], steps: tuple[int, int], work_ms: tuple[float, float]
) -> list[OperatorRow]:
    """Return work by name on average over `ranks`, per step; the largest change first, and last what makes up
    `work_ms`, the mean time in which any work ran. `steps`: the number of steps in each run's tables of operators."""
    one, other = (_by_name(job, ranks) for job in (before, after))
    one, other = _hide(one, other), _hide(other, one)
    on_ranks = rank_list(ranks)
    rows = []
    for kind, name in sorted(one.keys() | other.keys()):
        a, b = one.get((kind, name)), other.get((kind, name))
        if kind != "loader":  # no work: it is the loader's part
            rows.append(_operator(kind, name, on_ranks, a, b, steps, len(ranks)))
    rows.sort(key=lambda row: -abs(row.change_ms))
    sums = [sum(getattr(row, name) for row in rows) for name in ("before_ms", "after_ms")]
    rest = [work - listed for work, listed in zip(work_ms, sums, strict=True)]
    return [*rows, _rest(on_ranks, rest[0], rest[1])] if rows else []


@dataclass(frozen=True)
class _Work:
    total_ns: int
    count: int
    median_ns: float


def _by_name(job: Job, ranks: Sequence[int]) -> dict[tuple[str, str], _Work]:
    rows = job.table("operators").filter(pl.col("rank").is_in(list(ranks)))
    sums = rows.group_by("kind", "name").agg(pl.col("total_ns", "count").sum(), pl.col("median_ns").median())
    return {(kind, name): _Work(total, count, middle) for kind, name, total, count, middle in sums.iter_rows()}


def _hide(run: dict[tuple[str, str], _Work], other_run: dict[tuple[str, str], _Work]) -> dict[tuple[str, str], _Work]:
    """Return `run`, with names put to the others that `other_run` may have put there."""
    out = dict(run)
    for kind in {kind for kind, name in other_run if name == OTHERS}:
        least = min((work.total_ns for (k, name), work in other_run.items() if k == kind and name != OTHERS), default=0)
        for key, work in run.items():
            if key[0] == kind and key not in other_run and least > _HIDDEN * work.total_ns:
                rest = out.get((kind, OTHERS), _Work(0, 0, 0.0))
                out[kind, OTHERS] = _Work(rest.total_ns + work.total_ns, rest.count + work.count, 0.0)
                del out[key]
    return out


def _operator(
    kind: str, name: str, on_ranks: str, before: _Work | None, after: _Work | None, steps: tuple[int, int], ranks: int
) -> OperatorRow:
    none = _Work(0, 0, 0.0)
    shares = [1 / (max(count, 1) * ranks) for count in steps]
    (ms_a, n_a), (ms_b, n_b) = (
        (work.total_ns / 1e6 * share, work.count * share)
        for work, share in zip((before or none, after or none), shares, strict=True)
    )
    each = ms_a / n_a if n_a else ms_b / n_b if n_b else 0.0
    by_count = (n_b - n_a) * each
    several = name == OTHERS
    return OperatorRow(
        kind=kind,
        name=name,
        ranks=on_ranks,
        before_ms=ms_a,
        after_ms=ms_b,
        change_ms=ms_b - ms_a,
        count_before=n_a,
        count_after=n_b,
        median_before_us=before.median_ns / 1e3 if before and not several else None,
        median_after_us=after.median_ns / 1e3 if after and not several else None,
        by_count_ms=by_count,
        by_length_ms=ms_b - ms_a - by_count,
    )


def _rest(on_ranks: str, before: float, after: float) -> OperatorRow:
    return OperatorRow(
        kind=REST,
        name="",
        ranks=on_ranks,
        before_ms=before,
        after_ms=after,
        change_ms=after - before,
        count_before=0,
        count_after=0,
        median_before_us=None,
        median_after_us=None,
        by_count_ms=0,
        by_length_ms=after - before,
    )


def collectives(
    before: tuple[pl.DataFrame, pl.DataFrame], after: tuple[pl.DataFrame, pl.DataFrame], steps: tuple[int, int]
) -> list[CollectiveRow]:
    """Return operations between ranks by kind, payload and group size; the largest change per step and rank first.

    Each run: the frames `job.WAITS` and `job.MATCHED`. `steps` of each run.
    """
    one, other = (_transfers(*run) for run in (before, after))
    keys = sorted(set(_keys(one)) | set(_keys(other)))
    rows = [_collective(key, one, other, steps, len(keys)) for key in keys]
    return sorted(rows, key=lambda row: -abs(row.change_ms))


_KEY = ["op", "bytes", "size"]


def _transfers(waits: pl.DataFrame, matched: pl.DataFrame) -> pl.DataFrame:
    """Return one row per operation: its key, its ranks, and the shortest stay of any."""
    shape = matched.group_by("instance").agg(pl.col("bytes").max(), pl.col("size").max())
    return (
        waits.join(shape, on="instance")
        .group_by("instance", maintain_order=True)
        .agg(pl.col(*_KEY).first(), pl.col("transfer_ns").first(), ranks=pl.col("rank").sort())
    )


def _keys(rows: pl.DataFrame) -> list[tuple[str, int, int]]:
    return list(rows.select(_KEY).unique().iter_rows())


def _collective(
    key: tuple[str, int, int], before: pl.DataFrame, after: pl.DataFrame, steps: tuple[int, int], keys: int
) -> CollectiveRow:
    op, size, members = key
    same = (pl.col("op") == op) & (pl.col("bytes") == size) & (pl.col("size") == members)
    both = [rows.filter(same) for rows in (before, after)]
    times = [rows["transfer_ns"].cast(pl.Float64).to_list() for rows in both]
    # per step and rank, of all the ranks of the job: most operations are of some of them only
    shares = [
        1 / (max(count, 1) * max(rows["ranks"].explode().n_unique(), 1))
        for rows, count in zip((before, after), steps, strict=True)
    ]
    joined = [int(rows["ranks"].list.len().sum()) * share for rows, share in zip(both, shares, strict=True)]
    sums = [
        int((rows["transfer_ns"] * rows["ranks"].list.len()).sum()) / 1e6 * share
        for rows, share in zip(both, shares, strict=True)
    ]
    middle = [median(one) / 1e6 if one else None for one in times]
    enough = min(map(len, times)) >= _LEAST_SAMPLES
    p_value = corrected(rank_test(_spread(times[0]), _spread(times[1]))[0], keys) if enough else None
    return CollectiveRow(
        op=op,
        bytes=size,
        size=members,
        count_before=joined[0],
        count_after=joined[1],
        transfer_before_ms=middle[0],
        transfer_after_ms=middle[1],
        change_ms=sums[1] - sums[0],
        gb_per_s_before=_speed(size, middle[0]),
        gb_per_s_after=_speed(size, middle[1]),
        p_value=p_value,
        ranks=_changed(*both),
    )


def _spread(values: list[float]) -> list[float]:
    """Return at most `_MOST_SAMPLES` of `values`, from all of their time."""
    return values[:: -(-len(values) // _MOST_SAMPLES)] if len(values) > _MOST_SAMPLES else values


def _changed(before: pl.DataFrame, after: pl.DataFrame) -> str:
    """Return the ranks of the groups whose transfers changed most, and those that changed at least half as much; groups
    may have new names in each run, so they are compared by their ranks."""
    on_ranks = pl.col("ranks").cast(pl.List(pl.String)).list.join(",")
    middles = [
        {key: float(ns) for key, ns in rows.group_by(on_ranks).agg(pl.col("transfer_ns").median()).iter_rows()}
        for rows in (before, after)
    ]
    changes = {key: abs(middles[1][key] - middles[0][key]) for key in middles[0].keys() & middles[1].keys()}
    most = max(changes.values(), default=0.0)
    named = {key for key, change in changes.items() if change >= _HALF * most} or middles[1].keys()
    return rank_list({int(rank) for key in named for rank in key.split(",")})


def _speed(size: int, ms: float | None) -> float | None:
    return size / ms / 1e6 if ms and size > 0 else None
