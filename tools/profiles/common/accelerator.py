"""Convert an accelerator's profile to stack samples: device work beneath the host stack that launched it.

Host spans become stacks by nesting (`nesting`). Device work goes beneath the stack of the launch with its correlation,
or of the operator that enqueued it where calls go through a queue and the profiler records the owner. Work without a
launch in the profile goes beneath a frame of its own.

There are two events, both in ns. ``device``: the time the device worked, summed over streams; with `idle` also its
gaps, each beneath the launch of the work that ended it. ``host``: the time of threads in a frame itself.

Work belongs to the step of its launch, a gap to the step of the work that ended it; host time is clipped to the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.profiles.common.device_frames import (
    IDLE,
    UNKNOWN_LAUNCH,
    Frame,
    device_frame,
    host_frame,
    prefix_of,
)
from whystall.tools.profiles.common.nesting import Calls, Ints, Nested, Stacks, nested
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.model import FRAMES, NO_STACK, SAMPLES, TABLES, StackProfile
from whystall.tools.timeline.profile import TABLES as OF_PROFILE
from whystall.tools.timeline.profile import Profile

DEVICE, HOST = "device", "host"
"""The events."""

_WORK = ("kernel", "memcpy", "memset", "collective")
_CALLS = ("launch", "sync")
# Nesting of equal spans: ranges contain Python, Python contains operators, operators contain calls.
_OUTER = {"annotation": 0, "python": 1, "operator": 2, "other": 3}
_INNERMOST = 4
_LISTED = 12
_SPAN = pl.Schema({"thread": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "stack": pl.Int64})


def stacks_of_profile(
    profile: Profile, *, event: str = "", step: int | None = None, idle: bool = False
) -> StackProfile:
    """Return the stack samples of an event of `profile`: ``device`` or ``host``; empty: the first that exists.

    `step`: only of that profiler step. `idle`: add the device's gaps as frames of kind ``idle``.

    Raises `ToolError`: bad_argument without that event or step, or for gaps without a device; bad_trace when the
    profile has only the communication of ranks.
    """
    activities = profile.activities
    if activities.is_empty():
        message = f"the profile has only the communication of ranks ({profile.source}), not what ran"
        raise ToolError(ErrorCode.BAD_TRACE, message, "give a profile of the operators and the device's work")
    worked = bool(activities["kind"].is_in(_WORK).any())
    event = event or (DEVICE if worked else HOST)
    _check(event, worked, idle)
    if step is not None:
        _check_step(profile, step)
    made = _Made(profile)
    if event == DEVICE:
        samples, unknown, total = made.device(step, idle=idle)
        notes = [("launch_unknown", f"{unknown} of {total}")] if unknown else []
    else:
        samples, notes = made.host(step), []
    if samples.is_empty():
        message = f"nothing of the {event} in step {step}" if step is not None else f"no time of the {event}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "choose another step, or another event")
    notes += [("odd_nesting", f"{made.calls.odd} of {made.host_rows.height}")] if made.calls.odd else []
    kept = [note for note in profile.notes if note[0] != "launch_unknown"]
    return made.profile(samples, event, (*kept, *notes))


def profile_in(recording: Recording) -> Profile:
    """Return the accelerator's profile in a recording; times since the recording's start."""
    tables = {name: recording.table(f"profile.{name}") for name in OF_PROFILE}
    entry = recording.manifest.collectors["profile"]
    return Profile(tables, "", entry.engine, notes=tuple((spot.code, spot.detail) for spot in entry.not_seen))


def _check(event: str, worked: bool, idle: bool) -> None:
    there = f"there is {'device (ns), ' if worked else ''}host (ns)"
    if event not in (DEVICE, HOST) or (event == DEVICE and not worked):
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"the profile has no event {event!r}", there)
    if idle and event == HOST:
        message = "gaps are those of a device" if worked else "the profile has no work of a device, so no gaps of one"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "leave idle out")


def _check_step(profile: Profile, step: int) -> None:
    steps = profile.steps["step"].unique().sort().to_list()
    if step not in steps:
        there = ", ".join(map(str, steps[:_LISTED])) + (f", ... {steps[-1]}" if len(steps) > _LISTED else "")
        remedy = f"there are: {there}" if steps else "it has no steps: leave step out"
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"the profile has no step {step}", remedy)


class _Frames(dict[Frame, int]):
    """Number of each frame, assigned at first use."""

    def __missing__(self, frame: Frame) -> int:
        number = self[frame] = len(self)
        return number

    def numbers(self, rows: pl.DataFrame, frames: Sequence[Frame], names: pl.DataFrame) -> Ints:
        """Return the frame number of each row; `frames` belong to the rows (kind, name) of `names`."""
        known = names.with_columns(frame=pl.Series([self[frame] for frame in frames], dtype=pl.Int64))
        return rows.join(known, on=["kind", "name"], how="left", maintain_order="left")["frame"].to_numpy()

    def table(self) -> pl.DataFrame:
        columns: Sequence[Sequence[object]] = list(zip(*self, strict=True)) or [()] * 4
        named = dict(zip(Frame._fields, columns, strict=True))
        return pl.DataFrame({"frame": range(len(self)), **named}, schema=FRAMES)


@dataclass(init=False)
class _Made:
    """Builds the stacks of one profile. `threads` has the number of each (pid, tid)."""

    host_rows: pl.DataFrame
    calls: Nested

    def __init__(self, profile: Profile) -> None:
        activities = profile.activities
        self._profile = profile
        self._prefix = prefix_of(profile.source)
        self._frames, self._stacks = _Frames(), Stacks()
        threads = activities.select("pid", "tid").unique(maintain_order=True)
        self.threads = threads.with_columns(thread=pl.int_range(pl.len(), dtype=pl.Int64))
        self._work = self._numbered(activities.filter(pl.col("kind").is_in(_WORK)))
        self.host_rows = self._numbered(activities.filter((pl.col("device") < 0) & ~pl.col("kind").is_in(_WORK)))
        self.calls = self._nested()

    def device(self, step: int | None, *, idle: bool) -> tuple[pl.DataFrame, int, int]:
        """Return the device's samples, the number of its activities without a launch, and of all its activities."""
        work = self._work.with_columns(above=self._launched_by())
        chosen = work if step is None else work.filter(pl.col("step") == step)
        samples = self._beneath(chosen, self._of_work(chosen))
        unknown = int((chosen["above"] == NO_STACK).sum())
        if idle:
            gaps = _gaps(work)
            gaps = gaps if step is None else gaps.filter(pl.col("step") == step)
            frame = self._frames[Frame(self._prefix + IDLE, "", 0, "idle")]
            samples = pl.concat([samples, self._beneath(gaps, np.full(gaps.height, frame))])
        return samples, unknown, chosen.height

    def host(self, step: int | None) -> pl.DataFrame:
        """Return the samples of the host's threads."""
        spans = self._spans()
        if step is not None:
            # several processes may report the same step: take the union of their windows
            reported = self._profile.steps.filter(pl.col("step") == step)
            windows = _merged(reported.select("start_ns", "end_ns"))
            spans = pl.concat([_clipped(spans, start, end) for start, end in windows.iter_rows()])
        return _samples(spans)

    def profile(self, samples: pl.DataFrame, event: str, notes: tuple[tuple[str, str], ...]) -> StackProfile:
        """Return a stack profile of `samples` with only the stacks that they use."""
        parent = np.array(self._stacks.parent, np.int64)
        used = np.zeros(len(parent), bool)
        found = np.unique(samples["stack"].to_numpy())
        while len(found):
            used[found] = True
            found = np.unique(parent[found])
            found = found[found != NO_STACK]
            found = found[~used[found]]
        number = np.cumsum(used) - 1
        above = parent[used]
        stacks = {
            "stack": np.arange(len(above)),
            "parent": np.where(above == NO_STACK, NO_STACK, number[above]),
            "frame": np.array(self._stacks.frame, np.int64)[used],
        }
        threads = self.threads.select("thread", "pid", "tid", comm=pl.lit(""))
        tables = {
            "samples": samples.with_columns(stack=pl.Series(number[samples["stack"].to_numpy()])),
            "threads": threads,
            "stacks": pl.DataFrame(stacks),
            "frames": self._frames.table(),
            "events": pl.DataFrame({"event": [0], "name": [event], "unit": ["ns"], "period": [0.0]}),
        }
        cast = {
            name: tables[name].select(pl.col(column).cast(dtype) for column, dtype in schema.items())
            for name, schema in TABLES.items()
        }
        return StackProfile(cast, self._profile.source, self._profile.clock, notes)

    def _numbered(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.join(self.threads, on=["pid", "tid"], how="left", maintain_order="left")

    def _nested(self) -> Nested:
        rows = self.host_rows
        names = rows.select("kind", "name").unique(maintain_order=True)
        frames = [host_frame(kind, name) for kind, name in names.iter_rows()]
        outer = rows["kind"].replace_strict(_OUTER, default=_INNERMOST, return_dtype=pl.Int64)
        calls = Calls(
            thread=rows["thread"].to_numpy(),
            start=rows["start_ns"].to_numpy(),
            end=rows["end_ns"].to_numpy(),
            frame=self._frames.numbers(rows, frames, names),
            leaf=rows["kind"].is_in(_CALLS).to_numpy(),
            loose=(rows["kind"] == "annotation").to_numpy(),
            outer=outer.to_numpy(),
        )
        return nested(calls, self._stacks)

    def _spans(self) -> pl.DataFrame:
        return pl.DataFrame(dict(zip(_SPAN, self.calls.spans, strict=True)), schema=_SPAN)

    def _launched_by(self) -> pl.Series:
        """Return the stack above each device activity: that of the owner that enqueued it, else of its launch."""
        calls = self.host_rows.select("kind", "correlation", stack=pl.Series(self.calls.node, dtype=pl.Int64))
        calls = calls.filter(pl.col("kind").is_in(_CALLS) & (pl.col("correlation") >= 0))
        calls = calls.unique("correlation", keep="first", maintain_order=True).select("correlation", called="stack")
        linked = self._work.select("correlation").join(calls, on="correlation", how="left", maintain_order="left")
        owned = linked.join(self._owners(), on="correlation", how="left", maintain_order="left")
        return owned.select(pl.coalesce("owner", "called", pl.lit(NO_STACK))).to_series()

    def _owners(self) -> pl.DataFrame:
        """Return, per correlation, the stack that the owner of the work was in when the work was enqueued."""
        owners = self._profile.owners.join(
            self.threads.with_columns(pl.col("pid", "tid").cast(pl.Int64)),
            left_on=["owner_pid", "owner_tid"],
            right_on=["pid", "tid"],
        ).sort("at_ns")
        spans = self._spans().sort("start_ns")
        found = owners.join_asof(spans, left_on="at_ns", right_on="start_ns", by="thread", check_sortedness=False)
        found = found.filter(pl.col("end_ns") > pl.col("at_ns"))
        return found.select("correlation", owner="stack")

    def _of_work(self, rows: pl.DataFrame) -> Ints:
        names = rows.select("kind", "name").unique(maintain_order=True)
        frames = [device_frame(kind, name, self._prefix) for kind, name in names.iter_rows()]
        return self._frames.numbers(rows, frames, names)

    def _beneath(self, rows: pl.DataFrame, frames: Ints) -> pl.DataFrame:
        """Return samples of `rows`, with each row's frame beneath its stack `above`."""
        pairs, place = np.unique(np.stack([rows["above"].to_numpy(), frames]), axis=1, return_inverse=True)
        call = self._stacks.call
        nodes = [call(above if above != NO_STACK else self._unknown(), frame) for above, frame in pairs.T.tolist()]
        stack = np.array(nodes, np.int64)[place.reshape(-1)] if nodes else np.empty(0, np.int64)
        return _samples(rows.select("thread", "start_ns", "end_ns", stack=pl.Series(stack)))

    def _unknown(self) -> int:
        return self._stacks.call(NO_STACK, self._frames[Frame(UNKNOWN_LAUNCH, "", 0, "other")])


def _samples(spans: pl.DataFrame) -> pl.DataFrame:
    length = pl.col("end_ns") - pl.col("start_ns")
    rows = spans.with_columns(at_ns="start_ns", span_ns=length, event=pl.lit(0), weight=length)
    return rows.select(SAMPLES.names())


def _gaps(work: pl.DataFrame) -> pl.DataFrame:
    """Return the intervals in which no stream of a device worked, each as a row of the work that ended it."""
    rows = work.sort("device", "start_ns", maintain_order=True)
    before = pl.col("end_ns").cum_max().shift(1).over("device")
    rows = rows.with_columns(idle_from=before).filter(pl.col("idle_from") < pl.col("start_ns"))
    return rows.with_columns(start_ns="idle_from", end_ns="start_ns").drop("idle_from")


def _merged(windows: pl.DataFrame) -> pl.DataFrame:
    """Return the union of the spans: those that overlap become one."""
    rows = windows.sort("start_ns")
    begins = (rows["start_ns"] > rows["end_ns"].cum_max().shift(1)).fill_null(True)
    grouped = rows.with_columns(part=begins.cum_sum()).group_by("part", maintain_order=True)
    return grouped.agg(pl.col("start_ns").min(), pl.col("end_ns").max()).drop("part")


def _clipped(spans: pl.DataFrame, start_ns: int, end_ns: int) -> pl.DataFrame:
    clipped = spans.with_columns(pl.col("start_ns", "end_ns").clip(start_ns, end_ns))
    return clipped.filter(pl.col("end_ns") > pl.col("start_ns"))
