"""What was busy when, made by hand: intervals in seconds, and samples or recordings of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.profiles.heat_map.activity import Activity, activity_of
from whystall.tools.recording.manifest import CollectorManifest
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import StackProfile

Spells = Sequence[tuple[float, float]]
RECORDED = Path(__file__).parent / "recorded"
STALL_S = 1.336
"""Of the recorded checkpoints: the median of the distances of the five stalls that are whole."""


def rest_of(spells: Spells, window: float) -> list[tuple[float, float]]:
    """What `spells` leave free of the window."""
    free, at = [], 0.0
    for start, end in sorted(spells):
        if start > at:
            free.append((at, start))
        at = max(at, end)
    return [*free, (at, window)] if at < window else free


def every(period: float, length: float, window: float, seed: int, jitter: float = 0.02) -> list[tuple[float, float]]:
    """Spells that recur, with a little scatter."""
    rng = np.random.default_rng(seed)
    out, at = [], float(rng.uniform(0, period))
    while at < window:
        out.append((at, min(at + length * (1 + jitter * rng.normal()), window)))
        at += period * (1 + jitter * rng.normal())
    return out


def at_random(period: float, length: float, window: float, seed: int, *, uniform: bool) -> list[tuple[float, float]]:
    """As many spells as with a period, at random instants."""
    rng = np.random.default_rng(seed)
    out, at, gap = [], 0.0, period - length
    while at < window:
        at += float(rng.uniform(0, 2 * gap) if uniform else rng.exponential(gap))
        out.append((at, min(at + length, window)))
        at += length
    return [one for one in out if one[0] < window]


def ticks(busy: Spells, window: float, hz: float, seed: int = 0) -> NDArray[np.int64]:
    """When a timer with `hz` finds something running, ns."""
    rng = np.random.default_rng(seed)
    at = np.arange(rng.uniform(0, 1 / hz), window, 1 / hz)
    at = np.sort(at + rng.normal(0, 0.01 / hz, len(at)))
    if not busy:
        return np.zeros(0, dtype=np.int64)
    starts, ends = np.array(busy).T
    place = np.searchsorted(starts, at, side="right") - 1
    return (at[(place >= 0) & (at < ends[np.maximum(place, 0)])] * 1e9).astype(np.int64)


def sampled(busy: Spells, window: float, hz: float, seed: int = 0) -> Activity:
    """The activity that samples of `busy` show."""
    at = ticks(busy, window, hz, seed)
    return activity_of(at, np.zeros_like(at), 0, int(window * 1e9), interval=int(1e9 / hz))


def told(busy: Spells, window: float) -> Activity:
    """The activity that spans tell exactly."""
    starts, ends = (np.array(busy).T * 1e9).astype(np.int64)
    return activity_of(starts, ends - starts, 0, int(window * 1e9), interval=0)


def profile_of(busy: Spells, window: float, hz: float = 99.0, *, name: str = "step") -> StackProfile:
    """One thread, two functions, samples in no order."""
    made = Builder()
    event = made.event("cpu-clock", "ns", 1e9 / hz)
    frames = [made.frame("main", "train.py", 3, "python"), made.frame(name, "train.py", 9, "python")]
    stack, thread = made.stack(frames), made.thread(100, 100, "train")
    at = ticks(busy, window, hz)
    for one in np.random.default_rng(1).permutation(at).tolist():
        made.sample(stack, event, 1e9 / hz, at_ns=one, thread=thread)
    return made.profile("ebpf")


def recorded_with_samples(case: str, hz: float = 99.0, *, switches: bool = True) -> Recording:
    """A real recording of a process, with the samples a timer would have taken of its main thread: where its switches
    say that it ran. `switches`: whether they stay in it.
    """
    real = Recording.open(RECORDED / case, COLLECTORS)
    pid = real.manifest.target.sole_pid
    assert pid is not None
    window = real.manifest.window_ns / 1e9
    off = real.table("switches.segments").filter(pl.col("tid") == pid).sort("start_ns")
    waits = [(a / 1e9, b / 1e9) for a, b in off.select("start_ns", "end_ns").iter_rows()]
    made = Builder()
    event, thread = made.event("cpu-clock", "ns", int(1e9 / hz)), made.thread(pid, pid, "python")
    stack = made.stack([made.frame("run", "train.py", 7, "python")])
    for at in ticks(rest_of(waits, window), window, hz).tolist():
        made.sample(stack, event, int(1e9 / hz), at_ns=at, thread=thread)
    manifest = real.manifest.model_copy(deep=True)
    manifest.collectors["samples"] = CollectorManifest(
        engine="ebpf", proven=True, options={"period_ns": int(1e9 / hz)}, seen=1, kept=1
    )
    tables = {**real.tables(), **{f"samples.{name}": table for name, table in made.profile("ebpf").tables.items()}}
    if not switches:
        manifest.collectors.pop("switches")
        tables = {name: table for name, table in tables.items() if not name.startswith("switches.")}
    return Recording.in_memory(manifest, tables)
