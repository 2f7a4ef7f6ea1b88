"""Build a `Profile` from a profiler's rows: names once, kinds of calls, device work with its launch and step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from whystall.tools.contract.text import clean
from whystall.tools.files.input import bad
from whystall.tools.timeline.profile import ACTIVITIES, KINDS, OWNERS, STEPS, ClockBridge, Profile
from whystall.tools.timeline.profile_reading.numbers import small

RAW = pl.Schema(
    {
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        # key into `Found.names`
        "what": pl.UInt32,
        "pid": pl.Int64,
        "tid": pl.Int64,
        # -1 on the host
        "device": pl.Int64,
        "stream": pl.Int64,
        "correlation": pl.Int64,
    }
)
"""Rows of a reader, in any order."""

NAME_LIMIT = 1024
"""Characters of an activity's name: names of kernels hold template arguments, often their only difference."""

_STEP = re.compile(r"ProfilerStep#([0-9]{1,9})")
_COLLECTIVE = re.compile(r"nccl|rccl|hccl|hcom_", re.IGNORECASE)
# Waits for the device: by name of the CUDA, HIP, XPU or CANN call. A copy that is not Async returns when it is done.
_SYNC = re.compile(r"Synchronize|QueueFinish|^(?:cuda|cu|hip|aclrt)Memcpy(?!\w*Async)")
_LAUNCH = re.compile(r"Launch|Enqueue|(?:Memcpy|Memset)\w*Async|^(?:cuda|cu|hip)Memset")
_EPOCH_NS = (10**18, 4 * 10**18)  # 2001 to 2096
# Kinds as indexes of `KINDS`: the first four run on the device.
_DEVICE = 4
_LAUNCHES, _SYNCS, _RANGES, _OTHERS = (KINDS.index(kind) for kind in ("launch", "sync", "annotation", "other"))
_DROPPED = len(KINDS)
_SHAPE = "shape"


class Names(dict[tuple[str, str], int]):
    """Pairs of label and name, numbered in order of first use. A label is what decides the kind beside the name."""

    def __missing__(self, pair: tuple[str, str]) -> int:
        number = self[pair] = len(self)
        return number


@dataclass
class Found:
    """Rows of a reader. `owners` (`OWNERS`): the operator of device work, if the profiler records it: its step counts,
    which differs from the launch's own where launches go through a queue; `notes` as in `Profile`."""

    rows: list[pl.DataFrame] = field(default_factory=list)
    names: Names = field(default_factory=Names)
    owners: pl.DataFrame = field(default_factory=OWNERS.to_frame)
    odd: int = 0
    shapes: list[str] = field(default_factory=list)

    def add(self, rows: pl.DataFrame) -> None:
        """Add the rows whose times could be read. An optional column ``shape`` has indexes of `shapes`, -1 unknown."""
        readable = rows.drop_nulls("end_ns")
        self.odd += rows.height - readable.height
        shape = pl.col(_SHAPE).cast(pl.Int32) if _SHAPE in rows.columns else pl.lit(-1, pl.Int32)
        self.rows.append(readable.select(*RAW.names(), shape.alias(_SHAPE)))


def call_kind(name: str) -> str:
    """Return the kind of a call into the device's runtime or driver: sync, launch or other."""
    if _SYNC.search(name):
        return "sync"
    return "launch" if _LAUNCH.search(name) else "other"


def is_collective(name: str) -> bool:
    """Return whether a kernel is one of a communication library (NCCL, RCCL, HCCL)."""
    return _COLLECTIVE.search(name) is not None


def is_step(name: str) -> bool:
    """Return whether a range is a step of the profiler."""
    return _STEP.fullmatch(name) is not None


def finished(
    path: Path,
    found: Found,
    kind_of: Callable[[str, str], str],
    *,
    source: str,
    rank: int,
    bridges: Iterable[ClockBridge] = (),
) -> Profile:
    """Return the profile; `found.rows` is consumed. `kind_of`: from label and name to one of `profile.KINDS`, or empty:
    left out.

    Raises `ToolError` (bad_trace) when nothing is left.
    """
    rows = pl.concat(found.rows) if found.rows else pl.Schema([*RAW.items(), (_SHAPE, pl.Int32)]).to_frame()
    found.rows.clear()
    names = pl.Series("name", [clean(name, NAME_LIMIT) for _, name in found.names], dtype=pl.String)
    rows = _with_kinds(rows, [kind_of(label, name) for label, name in found.names])
    if rows.is_empty():
        raise bad(path, "no activity in it" if not found.odd else f"none of its {found.odd} events could be read")
    owners = found.owners.unique("correlation", keep="first", maintain_order=True)
    rows, unlinked = _linked(rows, owners)
    steps = _steps(rows, names)
    rows = (
        rows.with_columns(step_at(rows["owner_ns"], steps).alias("step"))
        .drop("owner_ns")
        .sort("start_ns", maintain_order=True)
    )
    device = int((rows["kind"] < _DEVICE).sum())
    notes = [("odd_events", str(found.odd))] if found.odd else []
    notes += [("no_device_work", "")] if not device else []
    notes += [("launch_unknown", f"{unlinked} of {device}")] if unlinked else []
    activities = rows.select(
        "start_ns",
        "end_ns",
        # Few texts for many rows: gathered, they share them.
        pl.Series("kind", KINDS, dtype=pl.String).gather(rows["kind"]),
        names.gather(rows["what"]),
        *(small(rows[column]) for column in ("pid", "tid", "device")),
        "stream",
        "correlation",
        small(rows["step"]),
    )
    first = activities["start_ns"][0]
    shapes = pl.Series([*found.shapes, ""], dtype=pl.String)
    place = pl.when(pl.col(_SHAPE) < 0).then(len(found.shapes)).otherwise(_SHAPE)
    return Profile(
        tables={"activities": activities.select(ACTIVITIES.names()), "steps": steps},
        clock="real" if _EPOCH_NS[0] <= first < _EPOCH_NS[1] else "",
        source=source,
        rank=rank,
        bridges=tuple(bridges),
        notes=tuple(notes),
        owners=owners,
        shapes=shapes.gather(rows.select(place).to_series()) if found.shapes else pl.Series(dtype=pl.String),
    )


def process_of(profile: Profile) -> int:
    """Return the profiled process: that of the steps, else the one with most activities on the host; -1 unknown."""
    frame = profile.steps if profile.steps.height else profile.activities.filter(pl.col("device") < 0)
    found = frame.filter(pl.col("pid") > 0)["pid"].mode().sort()
    return int(found[0]) if len(found) else -1


def _with_kinds(rows: pl.DataFrame, kinds: list[str]) -> pl.DataFrame:
    places = pl.Series([KINDS.index(kind) if kind else _DROPPED for kind in kinds], dtype=pl.UInt8)
    rows = rows.with_columns(
        places.gather(rows["what"]).alias("kind"), pl.max_horizontal("start_ns", "end_ns").alias("end_ns")
    )
    host = (pl.col("kind") >= _DEVICE) & (pl.col("device") < 0)
    # A host thread 0 does not exist: the profiler did not know it.
    unknown = [pl.when(host & (pl.col(c) == 0)).then(-1).otherwise(pl.col(c)).alias(c) for c in ("pid", "tid")]
    rows = rows.with_columns(unknown)
    return rows.filter(pl.col("kind") < _DROPPED) if _DROPPED in places else rows


def _linked(rows: pl.DataFrame, owners: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return device work with the process and thread that launched it, `owner_ns`: the instant that decides the step;
    and how much device work has no launch in the profile."""
    work = pl.col("kind") < _DEVICE
    on_device = work | (pl.col("device") >= 0)
    device, host = rows.filter(on_device), rows.filter(~on_device)
    enqueued = device.filter(work & (pl.col("correlation") >= 0))["correlation"].unique()
    # A call that enqueued work was a launch, whatever its name.
    caller = (pl.col("kind") == _OTHERS) & pl.col("correlation").is_in(enqueued.implode())
    host = host.with_columns(
        pl.when(caller).then(pl.lit(_LAUNCHES, pl.UInt8)).otherwise("kind").alias("kind"), owner_ns=pl.col("start_ns")
    )
    calls = (
        host.filter(pl.col("kind").is_in([_LAUNCHES, _SYNCS]) & (pl.col("correlation") >= 0))
        .unique("correlation", keep="first", maintain_order=True)
        .select("correlation", by_pid="pid", by_tid="tid", call_ns="start_ns")
    )
    device = device.join(calls, on="correlation", how="left", maintain_order="left").join(
        owners, on="correlation", how="left", maintain_order="left"
    )
    # by the launch, else by the operator
    by_tid = pl.coalesce("by_tid", "owner_tid")
    unlinked = int(device.select((work & by_tid.is_null()).sum()).item())
    device = device.with_columns(
        pl.coalesce("by_pid", "owner_pid", -1).alias("pid"),
        by_tid.fill_null(-1).alias("tid"),
        pl.coalesce("at_ns", "call_ns").alias("owner_ns"),
    )
    return pl.concat([host, device.select(host.columns)]), unlinked


def _steps(rows: pl.DataFrame, names: pl.Series) -> pl.DataFrame:
    numbers = {i: int(match.group(1)) for i, name in enumerate(names) if (match := _STEP.fullmatch(name))}
    frame = rows.filter((pl.col("kind") == _RANGES) & (pl.col("device") < 0) & pl.col("what").is_in(list(numbers)))
    step = pl.Series("step", [numbers[what] for what in frame["what"].to_list()], dtype=pl.Int64)
    frame = frame.with_columns(small(step), small(frame["pid"]), small(frame["tid"]))
    return frame.select(STEPS.names()).sort("start_ns")


def step_at(instants: pl.Series, steps: pl.DataFrame) -> pl.Series:
    """Return the step (of a profile's steps) of each instant, -1 outside of all."""
    if steps.is_empty():
        return pl.select(pl.repeat(-1, len(instants), dtype=pl.Int64)).to_series()
    at = instants.fill_null(-1)
    place = steps["start_ns"].search_sorted(at, side="right").cast(pl.Int64) - 1
    index = place.clip(0)
    inside = (place >= 0) & (at < steps["end_ns"].gather(index))
    return pl.select(pl.when(inside).then(steps["step"].gather(index).cast(pl.Int64)).otherwise(-1)).to_series()
