"""Read PyTorch Kineto traces: JSON, plain or gzip, of any version.

Format: libkineto/src/output_json.cpp. Since 2024 ``ts`` counts from ``baseTimeNanoseconds``; before, it was the epoch
in microseconds. Categories and argument names changed in 2021 (``Kernel`` to ``kernel`` and so on). One event:

    {"ph": "X", "cat": "kernel", "name": "void gemm<128>(float*)", "pid": 0, "tid": 7, "ts": 5621134.137, "dur": 4.608,
     "args": {"External id": 513, "device": 0, "stream": 7, "correlation": 1027}}
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import msgspec
import polars as pl

from whystall.tools.files.formats import Head, Match
from whystall.tools.timeline.kineto.collectives import NO_PART, CollectiveEvents, part_of, with_collectives
from whystall.tools.timeline.kineto.event_args import CollectiveArgs
from whystall.tools.timeline.kineto.groups import Groups
from whystall.tools.timeline.kineto.shapes import Shapes
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.profile_reading.build import Found, call_kind, finished, is_collective, is_step
from whystall.tools.timeline.profile_reading.format import ProfileFormat, rank_in_name
from whystall.tools.timeline.profile_reading.numbers import nanoseconds, whole
from whystall.tools.timeline.profile_reading.trace_events import Event, EventFile, content_before_events

_KINDS = {
    "kernel": "kernel",
    "concurrent_kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cpu_op": "operator",
    "operator": "operator",
    "user_annotation": "annotation",
    "python_function": "python",
    # spans of the profiler itself, and its samples
    "trace": "",
    "ac2g": "",
}
_DEVICE = frozenset({"kernel", "memcpy", "memset", "collective"})
# Rows on a device's lane that are no work of it: ranges projected onto it, and waits for it.
_ON_DEVICE = frozenset({"gpu_user_annotation", "cuda_sync"})
# What only Kineto writes: names at the top of the file, categories of events.
_HEAD = re.compile(rb'"(?:schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds)"\s*:')
CATEGORY = re.compile(
    rb'"cat"\s*:\s*"(?:cpu_op|gpu_mem(?:cpy|set)|(?:cuda|hip|xpu|mtia|privateuse1)_(?:runtime|driver)'
    rb'|user_annotation|python_function|Operator|Runtime)"'
)
_TIMELINE = re.compile(r"(?:rank[_-]?[0-9]{1,6}(?![0-9]).*|\.pt\.trace)\.json(?:\.gz)?\Z", re.IGNORECASE)
_PICKLE = b"\x80"
_COLLECTIVE = "collective of "
_BASE_LIMIT_NS = 4 * 10**18
_EPOCH_NS = 10**18
_NOTHING = msgspec.Raw()
_DEVICES, _VERSION_LIMIT = 16, 64


class _Args(CollectiveArgs, gc=False):
    correlation: int | str | None = -1
    device: int | str | None = None
    stream: int | str | None = None
    grid: msgspec.Raw = _NOTHING
    block: msgspec.Raw = _NOTHING


class _Event(Event, gc=False):
    args: _Args | None = None


_NONE = _Args()


def detect(head: Head) -> Match:
    """Return how well a file fits: what only Kineto writes, any JSON object, or the name of a rank's timeline."""
    if head.json == b"{":
        if b'"traceEvents"' in head.data and (_HEAD.search(head.data) or CATEGORY.search(head.data)):
            return Match.CERTAIN
        return Match.POSSIBLE
    named = _TIMELINE.search(head.name) and not head.json and not head.database and head.begin[:1] != _PICKLE
    return Match.POSSIBLE if named else Match.NO  # reading it reports what is wrong


def _listed(head: Head) -> bool:
    if head.json:
        named = head.name.endswith((".json", ".json.gz"))
        return named and head.json == b"{" and content_before_events(head.data) is not None
    return _TIMELINE.search(head.name) is not None


def _rank(head: Head) -> int:
    rank = rank_of(content_before_events(head.data) or {}) if head.json else -1
    return rank if rank >= 0 else rank_in_name(head.name)


def read(path: Path) -> Profile:
    """Return the profile in a Kineto file. Raises `ToolError` (bad_trace, io_error)."""
    file, found, collectives, labels = EventFile(path, _Event), Found(), CollectiveEvents(), _Labels()
    shapes = Shapes(found.shapes)
    for events in file.pieces():
        _take([event for event in events if event.ph == "X"], found, collectives, labels, shapes)
    on_host, groups = collectives.of_host(), Groups(file.top.get("distributedInfo"))
    found.odd += file.odd + collectives.odd + groups.odd
    shift = _shift(found, file.top.get("baseTimeNanoseconds"))
    profile = finished(path, found, _kind, source="kineto", rank=rank_of(file.top))
    profile = with_collectives(profile, collectives, on_host, groups, file.top.get("host_name"), shift)
    return replace(profile, run=replace(profile.run, environment=environment_of(file.top)))


def environment_of(top: dict[str, object]) -> tuple[tuple[str, str], ...]:
    """Return the devices and versions in the head of a file.

    "cuda_runtime_version": 12080, "deviceProperties": [{"id": 0, "name": "NVIDIA H200", ...}]
    """
    devices = top.get("deviceProperties")
    names = [one.get("name") for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
    kept = sorted({name for name in names if isinstance(name, str)})[:_DEVICES]
    versions = [
        (what, str(value)[:_VERSION_LIMIT])
        for what, value in top.items()
        if what.endswith("_version") and isinstance(value, int | str)
    ]
    return (*(("device", name) for name in kept), *sorted(versions)[:_DEVICES])


def rank_of(top: dict[str, object]) -> int:
    """Return the rank in the head of a file, -1 without one."""
    info = top.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return rank if isinstance(rank, int) and 0 <= rank < 2**31 else -1


FORMAT = ProfileFormat("kineto", detect, read, _rank, _listed)


@dataclass
class _Labels:
    """By name number: whether its lane is a device's, and its role in a collective."""

    lanes: list[bool] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)


def _take(events: list[_Event], found: Found, collectives: CollectiveEvents, labels: _Labels, shapes: Shapes) -> None:
    length = nanoseconds([event.dur for event in events])
    # a device's work without an end is written as a negative length; as an instant it would be the shortest
    if (backwards := (length < 0).arg_true()).len():
        unfinished = {at for at in backwards if _lane_of_device(_label(events[at]))}
        found.odd += len(unfinished)
        events = [event for at, event in enumerate(events) if at not in unfinished]
        length = nanoseconds([event.dur for event in events])
    args = [event.args or _NONE for event in events]
    names, start = found.names, nanoseconds([event.ts for event in events])
    what = [names[_label(event), event.name] for event in events]
    frame = pl.DataFrame(
        {
            "start_ns": start,
            "end_ns": start + length.clip(0),
            "what": pl.Series(what, dtype=pl.UInt32),
            "pid": whole([event.pid for event in events]),
            "tid": whole([event.tid for event in events]),
            "device": whole([-1 if arg.device is None else arg.device for arg in args]),
            "stream": whole([-1 if arg.stream is None else arg.stream for arg in args]),
            "correlation": whole([arg.correlation for arg in args]),
            "shape": pl.Series(
                [shapes.number(arg.dims, arg.types, arg.grid, arg.block) for arg in args], dtype=pl.Int32
            ),
        }
    )
    new = list(islice(names, len(labels.lanes), None))
    labels.lanes += [_lane_of_device(label) for label, _ in new]
    labels.parts += [part_of(_kind(label, name), name) for label, name in new]
    device = pl.lit(pl.Series(labels.lanes, dtype=pl.Boolean).gather(frame["what"]))
    # The lanes of a device are its number and its stream's; 0 and below is no correlation.
    frame = frame.with_columns(
        pl.when(~device).then(-1).when(pl.col("device") < 0).then("pid").otherwise("device").alias("device"),
        pl.when(~device).then(-1).when(pl.col("stream") < 0).then("tid").otherwise("stream").alias("stream"),
        pl.when(pl.col("correlation") > 0).then("correlation").otherwise(-1).alias("correlation"),
    )
    part = pl.Series(labels.parts, dtype=pl.UInt8).gather(frame["what"])
    places = (part != NO_PART).arg_true()
    collectives.take(part.gather(places).to_list(), [(events[i].name, args[i]) for i in places], frame[places])
    found.add(frame)


def _shift(found: Found, base: object) -> int:
    """Add the base to all instants, unless they are on the epoch already; return what was added."""
    if not isinstance(base, int) or not 0 < base < _BASE_LIMIT_NS:
        return 0
    if any((frame["start_ns"] >= _EPOCH_NS).any() for frame in found.rows):
        return 0
    found.rows = [frame.with_columns(pl.col("start_ns", "end_ns") + base) for frame in found.rows]
    return base


def _label(event: _Event) -> str:
    return _COLLECTIVE + event.cat if event.args is not None and event.args.collective else event.cat


def _lane_of_device(label: str) -> bool:
    category = label.removeprefix(_COLLECTIVE).lower()
    return category in _ON_DEVICE or _KINDS.get(category) in _DEVICE


def _kind(label: str, name: str) -> str:
    category = label.removeprefix(_COLLECTIVE).lower()
    if category.endswith(("runtime", "driver")):
        return call_kind(name)
    kind = _KINDS.get(category, "other")
    if kind == "kernel" and (label.startswith(_COLLECTIVE) or is_collective(name)):
        return "collective"
    return "annotation" if kind == "operator" and is_step(name) else kind
