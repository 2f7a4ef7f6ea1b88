"""Build the `World` of a recording: its threads with their waits, its objects and its processes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import polars as pl

from whystall.tools.host.common.missing_frames import complete_places
from whystall.tools.host.common.objects import lock_words, objects_of
from whystall.tools.host.common.timelines import (
    NO_WAKER,
    ShortWaits,
    Timeline,
    Wait,
    add_ended_processes,
    add_still_threads,
    complete_descriptors,
    timelines,
)
from whystall.tools.host.critical_path.awaited_cpus import bounds_of, throttled_processes
from whystall.tools.host.critical_path.world import World
from whystall.tools.recording.store import Recording


def world_of(recording: Recording, min_ns: int = 0, wake_min_ns: int = 0) -> World:
    """Return the world of `recording`. `min_ns`: waits shorter than this count as those too short to be recorded;
    `wake_min_ns`: of shorter ones who ended them counts as not recorded."""
    lines = timelines(recording)
    complete_places(lines.values())
    add_still_threads(recording, lines)
    complete_descriptors(recording, lines)
    add_ended_processes(recording, lines)
    if min_ns:
        lines = {tid: _coarser(line, min_ns, wake_min_ns) for tid, line in lines.items()}
    children = _children(recording)
    world = World(
        lines,
        objects_of(recording),
        max(recording.manifest.window_ns, 1),
        _target_pids(recording, lines, children),
        lock_words(recording, lines.values()),
        children,
        resident=_resident(recording),
        used_ns=_used_ns(recording),
    )
    world.throttled = throttled_processes(recording, world, bounds_of(recording))
    return world


def _coarser(line: Timeline, min_ns: int, wake_min_ns: int) -> Timeline:
    """Return `line` as a recording with these thresholds has it."""
    kept: list[Wait] = []
    short: dict[tuple[object, ...], list[Wait]] = defaultdict(list)
    for wait in line.waits:
        length = wait.end_ns - wait.start_ns
        if wait.open or length >= min_ns:
            kept.append(wait if wait.open or length >= wake_min_ns else wait._replace(**NO_WAKER))
        else:
            short[wait.state, wait.syscall, wait.path, wait.object, wait.place].append(wait)
    sums = [(waits[0], [wait.end_ns - wait.start_ns for wait in waits]) for waits in short.values()]
    more = [ShortWaits(wait, len(took), sum(took), max(took)) for wait, took in sums]
    return replace(line, waits=kept, short=[*line.short, *more])


def _target_pids(recording: Recording, lines: dict[int, Timeline], children: dict[int, list[int]]) -> frozenset[int]:
    """Return the target's processes: those of the manifest, those whose threads were counted, and their children."""
    target = recording.manifest.target
    if target.everything:
        return frozenset(line.pid for line in lines.values())
    pids = set(target.pids)
    if recording.has("proc"):
        pids |= set(recording.table("proc.threads")["pid"].unique().to_list())
    new = set(pids)
    while new:
        new = {child for pid in new for child in children.get(pid, ())} - pids
        pids |= new
    return frozenset(pids)


def _children(recording: Recording) -> dict[int, list[int]]:
    """Return the child processes of each process, in order of pid."""
    found: dict[int, list[int]] = {}
    if recording.has("proc"):
        rows = recording.table("proc.processes").select("ppid", "pid").unique().sort("pid")
        for parent, pid in rows.iter_rows():
            found.setdefault(parent, []).append(pid)
    return found


def _resident(recording: Recording) -> frozenset[int]:
    """Return the processes of the first and the last look at all processes; empty without two looks."""
    rows = recording.table("proc.processes") if recording.has("proc") else None
    if rows is None or rows.height == 0 or rows["at_ns"].max() == rows["at_ns"].min():
        return frozenset()
    return frozenset(rows["pid"].to_list())


def _used_ns(recording: Recording) -> dict[int, int]:
    """Return the CPU time of each process since it started, by pid."""
    rows = recording.table("proc.processes") if recording.has("proc") else None
    if rows is None:
        return {}
    used = rows.group_by("pid").agg((pl.col("user_ns") + pl.col("system_ns")).max().alias("used"))
    return dict(used.iter_rows())
