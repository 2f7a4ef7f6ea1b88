"""The accelerator profile: what a process requested and what its device did, from any profiler, in columns.

Conventions as in `whystall.tools.timeline.sched`: integer nanoseconds, no nulls, 0 for an unknown instant, -1 for
another unknown number, empty for an unknown text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from whystall.tools.timeline.collectives import COLLECTIVES, GROUPS, LINKS, PROGRESS

_I, _N, _S = pl.Int64, pl.Int32, pl.String

KINDS = ("kernel", "memcpy", "memset", "collective", "operator", "launch", "sync", "annotation", "python", "other")
"""What an activity is. The first four run on the device; `launch` and `sync` are host calls that enqueue work on it or
wait for it; `operator` is a framework operator, `annotation` a range named by the user."""

ACTIVITIES = pl.Schema(
    {
        "start_ns": _I,
        "end_ns": _I,
        "kind": _S,
        "name": _S,
        # the host's process and thread; for device work those that launched it, if known
        "pid": _N,
        "tid": _N,
        # where it ran on the device; -1 for host work
        "device": _N,
        "stream": _I,
        # the same number on a launch and on the device work it enqueued
        "correlation": _I,
        # the profiler step of its launch (or of itself, on the host)
        "step": _N,
    }
)
STEPS = pl.Schema({"start_ns": _I, "end_ns": _I, "step": _N, "pid": _N, "tid": _N})
# The operator (its start and thread) that device work belongs to, where the profiler records it: a call that goes
# through a queue is launched by another thread.
OWNERS = pl.Schema({"correlation": _I, "at_ns": _I, "owner_pid": _I, "owner_tid": _I})
SUMS = pl.Schema(
    {
        "start_ns": _I,
        "end_ns": _I,
        "step": _N,
        "compute_ns": _I,
        "comm_ns": _I,
        "exposed_comm_ns": _I,
        "gap_ns": _I,
        "loader_ns": _I,
    }
)
"""Sums of each step where a source has nothing but them; columns as in `rank_data.tables.STEPS`. Of such a step only
the length is measured; the instants merely put it behind the one before."""
SUMS_ONLY = "_sums"
"""Suffix of sources that know of communication nothing but its sum in each step."""
TABLES: dict[str, pl.Schema] = {"activities": ACTIVITIES, "steps": STEPS}
"""The tables of a profile, and of the collector ``profile`` in a recording."""


@dataclass(frozen=True)
class ClockBridge:
    """The same instant on the profile's clock and on one of the host's (`host_clock`: mono, mono_raw, boot, real)."""

    profile_ns: int
    host_clock: str
    host_ns: int


@dataclass(frozen=True)
class Run:
    """The job of a profile, as far as its files say. `world_size` -1 unknown; `host`: its name; `backend`: nccl, gloo,
    hccl ...; `pid` -1 unknown. `environment`: hardware and versions, as (what, value)."""

    world_size: int = -1
    backend: str = ""
    host: str = ""
    pid: int = -1
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Profile:
    """One rank's profile, both tables sorted by start.

    `clock`: ``real`` (the epoch), ``mono``, ``mono_raw``, ``boot``, or empty if unknown. `bridges`: pairs of readings
    that the profiler recorded. `rank` -1 when unknown. `source`: the format (``kineto``, ``ascend_text``,
    ``ascend_db``, ``msprof``, ``flight_recorder``, ``nsys``, ``nccl_inspector``, or one of
    ``tables/mappings.yaml``). `notes`: (blind spot code, detail).
    `collectives`, `groups`, `links`, `progress`: communication with other ranks, see
    `whystall.tools.timeline.collectives`. Sources of collectives only have no activities. `owners`: the operator of
    device work (`OWNERS`, a correlation at most once); most sources have none. `sums` (`SUMS`): of tables that hold the
    time of each step by its parts, instead of steps and activities. `shapes`: what each activity was given - types and
    dimensions of an operator's tensors, grid and block of a kernel - empty where it is unknown; no members at all if
    the profiler recorded none.
    """

    tables: Mapping[str, pl.DataFrame]
    clock: str
    source: str
    rank: int = -1
    bridges: tuple[ClockBridge, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    collectives: pl.DataFrame = field(default_factory=COLLECTIVES.to_frame)
    groups: pl.DataFrame = field(default_factory=GROUPS.to_frame)
    links: pl.DataFrame = field(default_factory=LINKS.to_frame)
    progress: pl.DataFrame = field(default_factory=PROGRESS.to_frame)
    run: Run = Run()
    owners: pl.DataFrame = field(default_factory=OWNERS.to_frame)
    sums: pl.DataFrame = field(default_factory=SUMS.to_frame)
    shapes: pl.Series = field(default_factory=lambda: pl.Series(dtype=pl.String))

    def __post_init__(self) -> None:
        for name, schema in TABLES.items():
            if self.tables[name].schema != schema:
                raise ValueError(f"table {name} does not have its columns")
        if self.owners.schema != OWNERS:
            raise ValueError("the table of owners does not have its columns")
        if self.sums.schema != SUMS:
            raise ValueError("the table of sums does not have its columns")
        communication = {"collectives": COLLECTIVES, "groups": GROUPS, "links": LINKS, "progress": PROGRESS}
        for name, schema in communication.items():
            if getattr(self, name).schema != schema:
                raise ValueError("a table of communication does not have its columns")

    @property
    def activities(self) -> pl.DataFrame:
        """Return all activities."""
        return self.tables["activities"]

    @property
    def steps(self) -> pl.DataFrame:
        """Return the profiler's steps."""
        return self.tables["steps"]
