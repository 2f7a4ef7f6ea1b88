"""Who ends whose waits: from off-CPU segments with their wakers to locks that threads contend for, and to chains."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import polars as pl

from whystall.tools.host.common.file_operations import ON_FILES
from whystall.tools.host.common.wait_syscalls import LOCK_SYSCALLS

# A futex is a contended lock when at least this share of the waiting on it is ended by threads that wait on it too:
# a lock is handed from holder to waiter. An idle worker is woken by whoever brings work, who does not wait there.
_MUTUAL = 0.5


@dataclass
class Waking:
    """Waits of thread `tid` in `syscall` that thread `waker_tid` ended: see `offcputime.Waker`."""

    tid: int
    comm: str
    syscall: str
    waker_pid: int
    waker_tid: int
    waker_comm: str
    count: int = 0
    total_ms: float = 0.0
    waker_blocked_ms: float = 0.0


def contended_ns(segments: pl.DataFrame) -> dict[tuple[int, str], int]:
    """Time per (thread, system call) spent waiting on contended futexes; empty where wakers were not recorded."""
    waits: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for r in segments.filter(pl.col("syscall").is_in(list(LOCK_SYSCALLS)) & (pl.col("lock") != 0)).iter_rows(
        named=True
    ):
        waits.setdefault((r["pid"], r["lock"]), []).append(r)
    found: dict[tuple[int, str], int] = {}
    for group in waits.values():
        waiters = {r["tid"] for r in group}
        ended = [r for r in group if not r["open"]]
        mutual = sum(_wall(r) for r in ended if r["waker_tid"] in waiters - {r["tid"]})
        if mutual and mutual >= _MUTUAL * sum(map(_wall, ended)):
            for r in group:
                key = (r["tid"], r["syscall"])
                found[key] = found.get(key, 0) + _wall(r)
    return found


def wakers_of(segments: pl.DataFrame) -> list[Waking]:
    """Every pair of a waiting thread and who ended its waits, the most waiting first."""
    held = _held_up(segments)
    found: dict[tuple[int, str, int], Waking] = {}
    for r in segments.filter(pl.col("waker_tid") > 0).iter_rows(named=True):
        waking = found.setdefault(
            (r["tid"], r["syscall"], r["waker_tid"]),
            Waking(r["tid"], r["comm"], r["syscall"], r["waker_pid"], r["waker_tid"], r["waker_comm"]),
        )
        waking.count += 1
        waking.total_ms += _wall(r) / 1e6
        waking.waker_blocked_ms += _overlap(held.get(r["waker_tid"], []), r["start_ns"], r["end_ns"]) / 1e6
    return sorted(found.values(), key=lambda w: -w.total_ms)


def _wall(row: dict[str, Any]) -> int:
    return int(row["end_ns"] - row["start_ns"])


def _held_up(segments: pl.DataFrame) -> dict[int, list[tuple[int, int]]]:
    """When each thread was blocked in an operation (state D, or on a file), in order; a thread's do not overlap."""
    on_file = (pl.col("file") >= 0) | pl.col("syscall").is_in(list(ON_FILES))
    rows = segments.filter((pl.col("state") == "D") | ((pl.col("state") != "R") & on_file))
    spans: dict[int, list[tuple[int, int]]] = {}
    for tid, start, end in rows.sort("start_ns").select("tid", "start_ns", "end_ns").iter_rows():
        spans.setdefault(tid, []).append((start, end))
    return spans


def _overlap(spans: list[tuple[int, int]], start: int, end: int) -> int:
    first = max(bisect_left(spans, (start, start)) - 1, 0)
    shared = 0
    for begin, stop in spans[first:]:
        if begin >= end:
            break
        shared += max(0, min(stop, end) - max(begin, start))
    return shared
