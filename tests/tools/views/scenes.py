"""A timeline made by hand, with two bubbles, for tests of the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from whystall.prompts.render import words
from whystall.tools.timeline.lanes.build import CPU_SLICES, INTERRUPT_SLICES, THREAD_SLICES
from whystall.tools.timeline.profile import ACTIVITIES
from whystall.tools.timeline.sched import TABLES
from whystall.tools.views.bubble_data import Bubble, Part, Timeline

MS = 1_000_000
HOSTILE = '</script><img src=x onerror="window.executed=1"><!-- \u2028 ${1} \\'
TID, NEIGHBOUR, STRANGER, WAKER = 10, 20, 30, 40
START = 10**15 + 7
Row = dict[str, Any]
_ABSENT = {"waker_tid": -1, "preemptor_tid": -1, "from_cpu": -1, "device": -1, "stream": -1, "correlation": -1}


def table(schema: Mapping[str, Any], rows: list[Row]) -> pl.DataFrame:
    """Rows with what they leave out filled in; `start` and `end` in ms after `START`."""
    empty = {pl.String: "", pl.Boolean: False}
    filled = [
        {
            **{name: empty.get(kind, 0) for name, kind in schema.items()},
            **{name: value for name, value in _ABSENT.items() if name in schema},
            **{name: value for name, value in row.items() if name not in ("start", "end")},
            "start_ns": START + round(row["start"] * MS),
            "end_ns": START + round(row["end"] * MS),
        }
        for row in rows
    ]
    return pl.DataFrame(filled, schema=pl.Schema(schema)) if filled else pl.Schema(schema).to_frame()


def threads(rows: list[Row]) -> pl.DataFrame:
    """As lanes.thread_slices."""
    return table(THREAD_SLICES, [{"tid": TID, "cpu": 1, **row} for row in rows])


def timeline(*, device: bool = True, more_threads: list[Row] | None = None) -> Timeline:
    """0 to 20 ms: the device runs dry from 2 to 8 ms because a neighbour has the CPU of the dispatch thread."""
    states: list[Row] = [
        {"start": 0, "end": 2, "state": "sleeping", "open_start": True},
        {"start": 2, "end": 5, "state": "runnable", "woken_ns": START + 2 * MS, "waker_tid": WAKER},
        {"start": 5, "end": 5.5, "state": "running"},
        {"start": 5.5, "end": 7, "state": "runnable", "preempted": True, "preemptor_tid": STRANGER},
        {"start": 7, "end": 7.5, "state": "running", "cpu": 0, "from_cpu": 1},
        {"start": 7.5, "end": 12, "state": "uninterruptible", "cpu": 0, "woken_ns": 1, "waker_context": "hardirq"},
        {"start": 12, "end": 13, "state": "unknown", "cpu": -1, "inexact": True},
        {"start": 13, "end": 20, "state": "sleeping", "open_end": True},
        {"start": 0, "end": 20, "state": "running", "tid": NEIGHBOUR, "cpu": 5, "from_cpu": 5},
    ]
    holders: list[Row] = [
        {"start": 0, "end": 5, "cpu": 1, "tid": NEIGHBOUR},
        {"start": 5, "end": 5.5, "cpu": 1, "tid": TID},
        {"start": 5.5, "end": 9, "cpu": 1, "tid": STRANGER},
        {"start": 9, "end": 20, "cpu": 1, "tid": 0},
        {"start": 0, "end": 3, "cpu": 0, "tid": WAKER},
        {"start": 3, "end": 7, "cpu": 0, "tid": -1},
        {"start": 7, "end": 7.5, "cpu": 0, "tid": TID},
        {"start": 0, "end": 20, "cpu": 5, "tid": NEIGHBOUR},
    ]
    interrupts: list[Row] = [
        {"start": 3, "end": 4, "cpu": 1, "tid": NEIGHBOUR, "soft": True, "vector": 3, "name": "NET_RX", "self_ns": 1},
        {"start": 3.2, "end": 3.4, "cpu": 1, "tid": NEIGHBOUR, "vector": 31, "name": HOSTILE, "depth": 1},
    ]
    work: list[Row] = [
        {"start": 0, "end": 2, "kind": "kernel", "name": HOSTILE, "device": 0, "stream": 7},
        {"start": 7.4, "end": 7.45, "kind": "launch", "name": "cudaLaunchKernel", "tid": TID, "correlation": 5},
        {"start": 7.4, "end": 7.45, "kind": "launch", "name": "another thread's", "tid": WAKER, "correlation": 6},
        {"start": 8, "end": 12, "kind": "kernel", "name": "gemm", "device": 0, "stream": 7, "correlation": 5},
        {"start": 8, "end": 9, "kind": "memcpy", "name": "copy", "device": 0, "stream": 9},
    ]
    return Timeline(
        threads([*states, *(more_threads or [])]),
        table(CPU_SLICES, holders),
        table(INTERRUPT_SLICES, interrupts),
        table(TABLES["holes"], [{"start": 4, "end": 4.5, "cpu": 1, "lost": 12, "why": "lost"}]),
        table(ACTIVITIES, work) if device else None,
        {TID: "dispatch", NEIGHBOUR: "greedy-neighbor", STRANGER: HOSTILE, WAKER: "python3"},
    )


def bubble(start: float = 2, end: float = 8, title: str = HOSTILE, tids: tuple[int, ...] = (TID,)) -> Bubble:
    """A moment from `start` to `end` ms."""
    parts = (Part("ready " + HOSTILE, 3 * MS, "runnable"), Part("ran", 1 * MS, "running"))
    return Bubble(START + round(start * MS), START + round(end * MS), title, tids, parts)


def page_words(lang: str = "en") -> Mapping[str, str]:
    """The words of the page."""
    found: Mapping[str, str] = words(lang)["bubbles_page"]
    return found
