"""Propose the next tool call for a slow rank: compare its profile with that of the median of its peers, or diagnose
its process while it runs."""

from __future__ import annotations

import os
from collections.abc import Iterable

import polars as pl

from whystall.tools.ranks.analysis.analyse import JobAnalysis
from whystall.tools.ranks.slow_node_check.outcome import Accused
from whystall.tools.ranks.slow_node_check.tables import NextCall
from whystall.tools.ranks.statistics import probability
from whystall.tools.ranks.traces.thread_times import SOURCE
from whystall.tools.timeline.rank_data.tables import file_of
from whystall.tools.timeline.tables.mapping import sources

_DIFFERENCE = "flamegraph_diff"
# Causes on the rank itself: a slow transfer, or an operation not entered, is no difference of its functions.
_ITS_OWN = frozenset({"compute_slow", "host_slow", "loader_slow", "unattributed"})


def next_calls(analysis: JobAnalysis, accused: Iterable[Accused], traces: str | None) -> list[NextCall]:
    """Return, for each accused rank that is slow by itself, the comparison with the median of its peers; of a rank that
    was observed without traces the diagnosis of its process.

    `traces`: the directory of the run, None if only the recording is available: then the calls name the ranks alone.
    Ranks without work in their traces, and those without an innocent peer, have none.
    """
    rows = list(accused)
    guilty = {one.rank for one in rows}
    ran = set(analysis.job.table("operators").filter(pl.col("kind").is_in(["operator", "kernel"]))["rank"].to_list())
    # phases of a table are no functions to compare
    ran -= set(analysis.job.table("ranks").filter(pl.col("source").is_in(sources()))["rank"].to_list())
    running = analysis.job.table("ranks").filter((pl.col("source") == SOURCE) & (pl.col("pid") > 0))
    observed = dict(running.select("rank", "pid").iter_rows())
    calls = []
    for one in rows:
        if one.kind.slow_class in _ITS_OWN and one.rank in observed:
            calls.append(NextCall(tool="diagnose", rank=one.rank, arguments={"pid": observed[one.rank]}))
            continue
        peers = next((set(group.ranks) for group in analysis.peers if one.rank in group.ranks), set()) - guilty
        peer = _median(analysis, peers & ran)
        if one.kind.slow_class in _ITS_OWN and one.rank in ran and peer is not None:
            arguments = {**_side(analysis, "before", peer, traces), **_side(analysis, "after", one.rank, traces)}
            calls.append(NextCall(tool=_DIFFERENCE, rank=one.rank, peer=peer, arguments=arguments))
    return calls


def _median(analysis: JobAnalysis, ranks: set[int]) -> int | None:
    """Return the one of `ranks` with the median own time per step, of an even number the faster; None of none."""
    rows = analysis.own.filter(pl.col("rank").is_in(list(ranks)))
    took = {
        rank: probability.trimmed_mean(steps["own_ns"].to_list())
        for (rank,), steps in rows.partition_by("rank", as_dict=True).items()
    }
    ordered = sorted(took, key=lambda rank: (took[rank], rank))
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def _side(analysis: JobAnalysis, side: str, rank: int, traces: str | None) -> dict[str, str | int]:
    """Return the arguments for the profile of `rank`: its own file, or the place in it, else the directory and the
    rank."""
    if traces is None or "://" in traces:
        return {f"{side}_rank": rank}
    paths = dict(analysis.job.table("ranks").select("rank", "path").iter_rows())
    path = paths.get(rank, "")
    if path and list(paths.values()).count(path) == 1:
        file, number = file_of(path)
        # a run may be a single file, which then is the directory's only trace
        base = os.path.dirname(traces) if os.path.basename(traces) == file else traces
        place: dict[str, str | int] = {side: os.path.normpath(os.path.join(base, file))}
        return place if number is None else {**place, f"{side}_rank": number}
    return {side: traces, f"{side}_rank": rank}
