"""Write a trace as Perfetto's protobuf.

The scheduler's events are written as ftrace events (`writers.perfetto_ftrace`), not as slices: Perfetto makes its own
lanes per CPU and thread states from them, draws wakers, and answers SQL on `sched` and `thread_state`. Only where a
switch is missing one is inserted, out of an unknown state, and the CPU is marked as having lost events. Profiles and
holes, which ftrace does not have, are track events, host calls in the track of their thread. Field numbers: Perfetto's
public protos/perfetto/trace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import IO

import polars as pl

from whystall.tools.files.protobuf import fixed64, message, number, text
from whystall.tools.timeline.drawing import holes as drawing_holes
from whystall.tools.timeline.drawing import profile as drawing_profile
from whystall.tools.timeline.drawing.names import Names
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.sched import SchedTrace
from whystall.tools.timeline.writers import perfetto_ftrace as write_perfetto_ftrace

# Clock ids of perfetto/common/builtin_clock.proto, by the names of the table ``clocks``.
_CLOCKS = {"real": 1, "mono": 3, "mono_raw": 5, "boot": 6}
_FTRACE_MONO_RAW = 4
_SEQUENCE = 1
_BEGIN, _END = 1, 2
_GROUPS = 1 << 40
"""Uuids of groups of tracks; below are those of tracks: lane number plus one."""
_KERNEL = "4.14.0 (task states are encoded as this kernel has them)"
"""`Utsname.release`: Perfetto decodes `prev_state` by it. It is not the host's, which a trace does not hold."""


def write(
    trace: SchedTrace,
    out: IO[bytes],
    *,
    cpus: Collection[int] | None = None,
    profile: Profile | None = None,
    numbers: Mapping[int, int] | None = None,
) -> int:
    """Write `trace` and return the number of packets. Parameters as in `drawing.build.draw`, but threads keep the
    host's numbers, and those of a container are added."""
    inserted = write_perfetto_ftrace.missing_switches(trace)
    if cpus is not None:
        trace, inserted = _of_cpus(trace, set(cpus)), inserted.filter(pl.col("cpu").is_in(list(cpus)))
    clock = _Clock(trace)
    names = Names(trace, {})
    count = 0
    for packet in _packets(trace, inserted, clock, names, profile, numbers or {}):
        out.write(message(1, packet + number(10, _SEQUENCE)))
        count += 1
    return count


class _Clock:
    """The clock that instants are written on. ftrace bundles support boot (the default) and mono_raw; mono is boot
    without the time asleep, so it is moved there by the distance that the capture recorded. Without it instants stay as
    they are."""

    def __init__(self, trace: SchedTrace) -> None:
        self.points = trace.table("clocks").to_dicts()
        self.offset = 0
        self.id = self.ftrace = 0
        if self.points and trace.clock == "mono":
            self.offset = self.points[0]["boot"] - self.points[0]["mono"]
        elif self.points and trace.clock == "mono_raw":
            self.id, self.ftrace = _CLOCKS["mono_raw"], _FTRACE_MONO_RAW

    def snapshots(self) -> Iterator[bytes]:
        """Yield `ClockSnapshot` packets."""
        for point in self.points:
            clocks = (number(1, clock) + number(2, point[name]) for name, clock in _CLOCKS.items())
            content = b"".join(message(1, entry) for entry in clocks) + number(2, _CLOCKS["boot"])
            yield number(8, point["boot"]) + message(6, content)

    def stamp(self, instant: int) -> bytes:
        """Return `timestamp` and `timestamp_clock_id` of a packet."""
        return number(8, instant + self.offset) + (number(58, self.id) if self.id else b"")


def _packets(
    trace: SchedTrace,
    inserted: pl.DataFrame,
    clock: _Clock,
    names: Names,
    profile: Profile | None,
    numbers: Mapping[int, int],
) -> Iterator[bytes]:
    yield from clock.snapshots()
    yield message(45, message(1, text(1, "Linux") + text(3, _KERNEL)))
    yield message(2, _process_tree(names, numbers))
    bodies = write_perfetto_ftrace.Bodies()
    events = write_perfetto_ftrace.collect(trace, inserted, names, bodies)
    events = events.with_columns(pl.col("at_ns") + clock.offset)
    for bundle in write_perfetto_ftrace.bundles(events, bodies.known, _losses(trace, clock.offset), clock.ftrace):
        yield message(1, bundle)
    holes = trace.table("holes")
    yield from _tracks(drawing_holes.lanes(holes), None)
    yield from _slices(drawing_holes.slices(holes), {}, clock)
    if profile is not None:
        picture = drawing_profile.draw(profile, names)
        yield from _tracks(picture.lanes, picture.threads)
        yield from _slices(picture.slices, _ends_of_flows(picture.flows), clock)


def _of_cpus(trace: SchedTrace, cpus: set[int]) -> SchedTrace:
    """Return the events on `cpus`, and those elsewhere of the threads that ran on them."""
    there = pl.col("cpu").is_in(list(cpus))
    switches = trace.table("switches").filter(there)
    threads = pl.concat([switches["prev_tid"], switches["next_tid"]]).unique().implode()
    of_threads = pl.col("tid").is_in(threads)
    kept = {"holes": there | (pl.col("cpu") < 0)}
    kept |= dict.fromkeys(("wakeups", "migrations", "tasks", "syscalls", "markers"), of_threads)
    kept |= dict.fromkeys(("switches", "interrupts", "power"), there)
    return replace(
        trace, tables={**trace.tables, **{name: trace.table(name).filter(rows) for name, rows in kept.items()}}
    )


def _process_tree(names: Names, numbers: Mapping[int, int]) -> bytes:
    content = b""
    for tid, comm, pid in names.all_threads().iter_rows():
        inner = number(6 if pid == tid else 4, numbers[tid]) if tid in numbers else b""
        if pid == tid:
            content += message(1, number(1, pid) + text(3, comm) + number(9, 1) + inner)
        elif pid > 0:
            content += message(2, number(1, tid) + text(2, comm) + number(3, pid) + inner)
    return content


def _losses(trace: SchedTrace, offset: int) -> dict[int, list[int]]:
    losses: dict[int, list[int]] = {cpu: [] for cpu in trace.cpus}
    for cpu, end in trace.table("holes").select("cpu", "end_ns").iter_rows():
        for one in (cpu,) if cpu >= 0 else trace.cpus:
            losses.setdefault(one, []).append(end + offset)
    return losses


def _tracks(lanes: pl.DataFrame, threads: pl.DataFrame | None) -> Iterator[bytes]:
    """Yield `TrackDescriptor` packets: a track for each lane below one for its group, or the thread's own."""
    owners = {} if threads is None else {lane: (pid, tid) for lane, pid, tid in threads.iter_rows()}
    groups: dict[str, int] = {}
    for lane, group, _, label in lanes.iter_rows():
        uuid = number(1, lane + 1)
        if lane in owners:
            pid, tid = owners[lane]
            yield message(60, uuid + message(4, number(1, pid) + number(2, tid)))
            continue
        if group not in groups:
            groups[group] = _GROUPS + lane
            yield message(60, number(1, groups[group]) + text(2, group))
        yield message(60, uuid + text(2, label) + number(5, groups[group]))


def _slices(slices: pl.DataFrame, flows: dict[tuple[int, int], bytes], clock: _Clock) -> Iterator[bytes]:
    """Yield `TrackEvent` packets: begin and end of each slice, in the order of its track. `flows`: fields to add to the
    first slice that begins in a lane at an instant."""
    ordered = slices.sort("lane", "start_ns", "end_ns", descending=[False, False, True], maintain_order=True)
    stack: list[int] = []
    current = -1
    for lane, start, end, name, cat, args in ordered.iter_rows():
        while stack and (lane != current or stack[-1] <= start):
            yield clock.stamp(stack.pop()) + message(11, number(9, _END) + number(11, current + 1))
        current = lane
        event = number(9, _BEGIN) + number(11, lane + 1) + text(22, cat) + text(23, name)
        event += message(4, text(10, "args") + text(9, args)) if args != "{}" else b""
        yield clock.stamp(start) + message(11, event + flows.pop((lane, start), b""))
        stack.append(end)
    while stack:
        yield clock.stamp(stack.pop()) + message(11, number(9, _END) + number(11, current + 1))


def _ends_of_flows(flows: pl.DataFrame) -> dict[tuple[int, int], bytes]:
    """Return `flow_ids` where an arrow begins and `terminating_flow_ids` where it ends."""
    ends: dict[tuple[int, int], bytes] = {}
    rows = flows.select("from_lane", "from_ns", "to_lane", "to_ns").iter_rows()
    for flow, (from_lane, from_ns, to_lane, to_ns) in enumerate(rows, 1):
        for key, field in (((from_lane, from_ns), 47), ((to_lane, to_ns), 48)):
            ends[key] = ends.get(key, b"") + fixed64(field, flow)
    return ends
