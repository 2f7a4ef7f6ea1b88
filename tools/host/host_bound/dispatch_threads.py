"""Find the threads that feed the accelerator: those that launch in the profile, or else by their behaviour.

Without a profile the signs are: waking at regular intervals for short work, most wakes or most CPU time, being the main
thread. Names are only a hint, since runtimes choose them freely; several threads may take part (the Python thread,
autograd's, the one that empties the task queue).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from whystall.tools.host.host_bound.host_info import Host

MOST = 4
"""Largest number of threads judged."""

# Names of framework threads that submit work: torch_npu (acl_thread, release_thread), autograd.
_NAMES = re.compile(r"acl_?thread|release_thread|pt_autograd|dispatch|launch", re.IGNORECASE)
# A thread with a smaller share of all launches (warm-up, logging) does not feed the device.
_LAUNCH_SHARE = 0.1
# A thread with less CPU time does nothing that a device could wait for.
_ACTIVE_PCT = 0.5
_ACTIVE_WAKES = 5.0
# Regular: the median deviation of the intervals between wakes is less than this share of their median.
_SPREAD = 0.25
_REGULAR_WAKES = 20
_POINTS = {"periodic": 2, "name": 2, "main_thread": 1, "busiest": 1, "most_woken": 1, "only_thread": 2}


@dataclass(frozen=True)
class Chosen:
    """A dispatch thread: `why` as codes (``asked``, ``launches``, or signs of behaviour), and `sure`: ``sure`` (a
    fact), ``likely``, ``guess``."""

    tid: int
    why: tuple[str, ...]
    sure: str


def choose(host: Host, launches: pl.DataFrame | None, target: Iterable[int], asked: int | None) -> list[Chosen]:
    """Return the dispatch threads, most certain first; empty without candidates.

    Args:
        launches: those of the profile (column ``tid``), None without one.
        target: pids; if empty, only `launches` and `asked` are used.
        asked: the only thread to judge.
    """
    if asked is not None:
        return [Chosen(asked, ("asked",), "sure")] if asked in _traced(host) else []
    pids = set(target)
    if launches is not None and launches.height:
        counts = launches.group_by("tid").len().sort("len", descending=True)
        own = counts.filter((pl.col("len") >= _LAUNCH_SHARE * launches.height) & pl.col("tid").is_in(_traced(host)))
        if found := [Chosen(tid, ("launches",), "sure") for tid in own["tid"].to_list()]:
            return found[:MOST]
    return _by_behaviour(host, pids) if pids else []


def _traced(host: Host) -> list[int]:
    return host.slices["tid"].unique().to_list()


def _by_behaviour(host: Host, pids: set[int]) -> list[Chosen]:
    own = [thread for thread in host.names.values() if thread.pid in pids or thread.tid in pids]
    patterns = _wake_patterns(host, [thread.tid for thread in own])
    seconds = max(host.end_ns / 1e9, 1e-9)
    active = patterns.filter(
        (pl.col("run_ns") >= host.end_ns * _ACTIVE_PCT / 100) | (pl.col("wakes") >= _ACTIVE_WAKES * seconds)
    )
    rows = {row["tid"]: row for row in active.iter_rows(named=True)}
    if not rows:
        return []
    busiest = max(rows, key=lambda tid: rows[tid]["run_ns"])
    woken = max(rows, key=lambda tid: rows[tid]["wakes"])
    found = []
    for tid, row in rows.items():
        why = []
        if len(rows) == 1:
            why.append("only_thread")
        if row["wakes"] >= _REGULAR_WAKES and row["spread"] is not None and row["spread"] < _SPREAD:
            why.append("periodic")
        if _NAMES.search(host.thread(tid).comm):
            why.append("name")
        if tid in pids:
            why.append("main_thread")
        why += ["busiest"] * (tid == busiest) + ["most_woken"] * (tid == woken)
        if why:
            found.append((sum(_POINTS[code] for code in why), row["run_ns"], tid, tuple(why)))
    found.sort(reverse=True)
    # Threads that are nearly as likely are judged as well.
    near = [entry for entry in found if 2 * entry[0] >= found[0][0]][:MOST]
    return [Chosen(tid, why, "likely" if points >= 3 else "guess") for points, _, tid, why in near]


def _wake_patterns(host: Host, tids: list[int]) -> pl.DataFrame:
    """Return per thread: time on a CPU, wakes, and `spread`: median deviation of the intervals between wakes over their
    median (null with fewer than two)."""
    own = host.slices.filter(pl.col("tid").is_in(tids)).sort("tid", "start_ns")
    ran = (
        own.filter(pl.col("state") == "running")
        .group_by("tid")
        .agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("run_ns"))
    )
    wakes = own.filter(pl.col("state").is_in(["sleeping", "uninterruptible"]) & ~pl.col("open_end"))
    gaps = wakes.with_columns(gap=pl.col("end_ns").diff().over("tid"))
    usual = pl.col("gap").median()
    spread = gaps.group_by("tid").agg(
        pl.len().alias("wakes"), ((pl.col("gap") - usual).abs().median() / usual).alias("spread")
    )
    return ran.join(spread, on="tid", how="full", coalesce=True).with_columns(pl.col("run_ns", "wakes").fill_null(0))
