"""Attribute waits to the threads that end them: contended locks, and chains of waits."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import polars as pl

from whystall.tools.host.common.wait_syscalls import LOCK_SYSCALLS, RECEIVES, SENDS, blocked_in_operation

# A futex is a contended lock if at least this share of the waiting on it is ended by threads that also wait on it:
# a lock passes from holder to waiter, while an idle worker is woken by a producer, which does not wait there.
_MUTUAL = 0.5
# Calls whose waits other threads end, where what ended a wait was not recorded: not sleeps, and not packets.
_BY_THREADS = LOCK_SYSCALLS | {"wait4", "waitid", "read", "readv", "write", "writev"}


@dataclass
class Waking:
    """Waits of thread `tid` in `syscall` that thread `waker_tid` ended; see `offcputime.Waker`."""

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
    """Return the time per (thread, system call) spent waiting on contended futexes; empty without recorded wakers."""
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
    """Return every pair of waiting and waking thread, longest waiting first.

    A wait that a timer, a disk or a packet of another host ended has no waker: the one recorded is the thread on top of
    which the interrupt ran.
    """
    woken = segments.filter((pl.col("waker_tid") > 0) & _by_thread())
    blocked = _blocked_spans(segments) if woken.height else {}
    found: dict[tuple[int, str, int], Waking] = {}
    for r in woken.iter_rows(named=True):
        waking = found.setdefault(
            (r["tid"], r["syscall"], r["waker_tid"]),
            Waking(r["tid"], r["comm"], r["syscall"], r["waker_pid"], r["waker_tid"], r["waker_comm"]),
        )
        waking.count += 1
        waking.total_ms += _wall(r) / 1e6
        waking.waker_blocked_ms += _overlap(blocked.get(r["waker_tid"], []), r["start_ns"], r["end_ns"]) / 1e6
    return sorted(found.values(), key=lambda w: -w.total_ms)


def _by_thread() -> pl.Expr:
    """Return which waits a thread ended. A packet from this host is delivered inside the sender's call, and the
    acknowledgement that makes room for a sender inside the receiver's."""
    context, syscall, waker_syscall, state = map(pl.col, ("context", "syscall", "waker_syscall", "state"))
    packet = context.is_in(["network", "interrupt"]) & ~syscall.is_in(["nanosleep", "clock_nanosleep"])
    sent = waker_syscall.is_in(list(SENDS)) | (syscall.is_in(list(SENDS)) & waker_syscall.is_in(list(RECEIVES)))
    no_operation = (state != "D") & ((pl.col("file") < 0) | syscall.is_in(list(LOCK_SYSCALLS)))
    unknown = (context == "") & syscall.is_in(list(_BY_THREADS)) & no_operation
    return context.is_in(["task", "signal"]) | (packet & sent) | unknown


def _wall(row: dict[str, Any]) -> int:
    return int(row["end_ns"] - row["start_ns"])


def _blocked_spans(segments: pl.DataFrame) -> dict[int, list[tuple[int, int]]]:
    """Return per thread, in order, when it was blocked in an operation; the spans of one thread do not overlap."""
    spans: dict[int, list[tuple[int, int]]] = {}
    rows = segments.sort("start_ns").select("tid", "start_ns", "end_ns", "state", "syscall", "file")
    for tid, start, end, state, syscall, file in rows.iter_rows():
        if blocked_in_operation(state, syscall, file >= 0):
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
