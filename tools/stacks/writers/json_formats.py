"""Write stack samples as JSON: for speedscope, and as Chrome's trace events (Perfetto opens them too)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import polars as pl

from whystall.tools.stacks.model import NO_TIME, StackProfile
from whystall.tools.stacks.names import written
from whystall.tools.stacks.writers.paths import Stacks

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_UNITS = {
    "ns": "nanoseconds",
    "us": "microseconds",
    "ms": "milliseconds",
    "s": "seconds",
    "bytes": "bytes",
}
_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}


def speedscope(profile: StackProfile, event: int, path: Path) -> int:
    """Write a sampled profile per thread and return the number of samples. They follow one another, ordered by instant
    if there are any: the format has no gaps."""
    stacks, profiles, count = Stacks(profile), list[dict[str, Any]](), 0
    unit = _UNITS.get(cast("str", profile.events["unit"][event]), "none")
    for thread, samples in _by_thread(profile, event):
        weights = samples["weight"].to_list()
        count += len(weights)
        profiles.append(
            {
                "type": "sampled",
                "name": stacks.threads[thread].title,
                "unit": unit,
                "startValue": 0,
                "endValue": sum(weights),
                "samples": [stacks.frames(stack)[::-1] for stack in samples["stack"].to_list()],
                "weights": weights,
            }
        )
    frames = [
        {"name": name} | ({"file": file} if file else {}) | ({"line": line} if line else {})
        for name, file, line in profile.frames.select("name", "file", "line").iter_rows()
    ]
    path.write_bytes(
        msgspec.json.encode(
            {"$schema": _SCHEMA, "shared": {"frames": frames}, "profiles": profiles, "exporter": "whystall"}
        )
    )
    return count


def chrome(profile: StackProfile, event: int, path: Path) -> int:
    """Write complete events and return their number. If every sample has an instant and a duration and those of a
    thread do not overlap, they are at their times; else one after another, as long as their weights (1 microsecond for
    1, if the unit is not of time). A call continues through adjacent samples that share it."""
    stacks, events = Stacks(profile), list[dict[str, Any]]()
    names = [written(*row) for row in profile.frames.select("name", "file", "line", "kind").iter_rows()]
    scale = _US.get(cast("str", profile.events["unit"][event]), 1.0)
    for thread, samples in _by_thread(profile, event):
        sampled = stacks.threads[thread]
        ids = {"pid": max(sampled.pid, 0), "tid": sampled.tid if sampled.tid >= 0 else thread + 1}
        if sampled.comm:
            events.append({"ph": "M", "name": "thread_name", **ids, "args": {"name": sampled.comm}})
        open_: list[tuple[int, dict[str, Any]]] = []
        last = 0.0
        for start, end, stack in _placed(samples, scale):
            frames = stacks.frames(stack)[::-1]
            shared = 0
            while start <= last and shared < min(len(open_), len(frames)) and open_[shared][0] == frames[shared]:
                shared += 1
            del open_[shared:]
            for frame in frames[shared:]:
                open_.append((frame, {"ph": "X", "name": names[frame], **ids, "ts": start, "dur": 0.0}))
                events.append(open_[-1][1])
            for _, one in open_:
                one["dur"] = end - one["ts"]
            last = end
    path.write_bytes(msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ns"}))
    return len(events)


def _by_thread(profile: StackProfile, event: int) -> Iterator[tuple[int, pl.DataFrame]]:
    chosen = profile.samples.filter(pl.col("event") == event).sort("thread", "at_ns", maintain_order=True)
    for (thread,), samples in chosen.group_by("thread", maintain_order=True):
        yield cast("int", thread), samples


def _placed(samples: pl.DataFrame, scale: float) -> Iterator[tuple[float, float, int]]:
    """Return (start, end, stack) in microseconds."""
    at, end = pl.col("at_ns"), pl.col("at_ns") + pl.col("span_ns")
    weighs = (pl.col("span_ns") - pl.col("weight") * scale * 1e3).abs() < 1e-3
    real = samples.select(((at != NO_TIME) & weighs).all() & (end.shift(1, fill_value=0) <= at).all()).item()
    if real:
        for start, length, stack in samples.select("at_ns", "span_ns", "stack").iter_rows():
            yield start / 1e3, (start + length) / 1e3, stack
        return
    now = 0.0
    for weight, stack in samples.select("weight", "stack").iter_rows():
        yield now, now + weight * scale, stack
        now += weight * scale
