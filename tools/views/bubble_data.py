"""The input of the page of bubbles: the timeline, and which moments to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl


@dataclass(frozen=True)
class Part:
    """A share of a bubble: its label, its length, and the look (one of `LOOKS`) of its part of the bar."""

    label: str
    ns: int
    look: str


@dataclass(frozen=True)
class Bubble:
    """One moment to show.

    `title`: its attribution in words. `tids`: the dispatch thread first, then other relevant ones (those it waited
    for). `parts`: how its length divides.
    """

    start_ns: int
    end_ns: int
    title: str
    tids: tuple[int, ...]
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Timeline:
    """Lanes and profile, on one clock, of which the page shows the seconds.

    `threads`, `cpus`, `interrupts`: columns as ``THREAD_SLICES``, ``CPU_SLICES`` and ``INTERRUPT_SLICES`` of
    whystall.tools.timeline.lanes.build; `holes` as the table of sched.TABLES; `activities` as profile.ACTIVITIES. They
    may hold all threads and the whole span: what a bubble needs is selected. Missing ones are not shown. `names`: of
    threads.
    """

    threads: pl.DataFrame
    cpus: pl.DataFrame
    interrupts: pl.DataFrame | None = None
    holes: pl.DataFrame | None = None
    activities: pl.DataFrame | None = None
    names: Mapping[int, str] = field(default_factory=dict)
