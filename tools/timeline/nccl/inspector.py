"""Read logs of the NCCL Inspector plugin: one JSON object per line and finished operation.

    {"header": {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1}, "metadata": {"dump_timestamp_us":
     1748030377748202, "hostname": "node-1", "pid": 1639453}, "coll_perf": {"coll": "AllReduce", "coll_sn": 1407,
     "coll_msg_size_bytes": 17179869184, "coll_exec_time_us": 61974, "coll_timing_source": "kernel_gpu"}}

Format: nccl/ext-profiler/inspector. ``header`` names the communicator (equal on all its ranks), the place in it and its
size; ``coll_perf`` (point-to-point: ``p2p_perf``) the operation, its number, size and duration; ``metadata`` when and
by which process the line was written. Only the verbose form has instants: ``event_trace_ts``, microseconds of the
host's wall clock, of the kernel in each of its channels.

Without it the instant is unknown: a periodic thread writes the lines, so an operation ended at the latest when its line
was written. Such operations end there (kept in order, by number), begin their measured duration before, and the profile
notes it (``starts_unknown``); their durations are right, their instants are not.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import polars as pl

from whystall.tools.contract.text import clean
from whystall.tools.files.formats import Head, Match
from whystall.tools.files.input import bad, opened, unreadable
from whystall.tools.timeline import profile
from whystall.tools.timeline.collectives import COLLECTIVES, GROUPS, POINT_TO_POINT, canonical_op
from whystall.tools.timeline.profile import Profile, Run
from whystall.tools.timeline.profile_reading.format import ProfileFormat
from whystall.tools.timeline.profile_reading.groups import ELEMENT_LIMIT, RANK_LIMIT

SOURCE = "nccl_inspector"
SUFFIXES = (".log", ".jsonl", ".log.gz", ".jsonl.gz", ".json", ".json.gz")

_LINE = 1 << 20
"""Bytes of a line; the verbose ones grow with channels and take some 10 KiB."""
_LONGEST = 256 << 20
_ROWS = 20_000_000
# Unusable lines in a row after which reading stops.
_NOTHING = 100_000
_SNIFF = 1 << 16
_HEAD_LINES = 200
_LARGEST_US = 2**62 // 1000
_EPOCH_US = 10**15  # 2001
# How the plugin measured a duration, best first: by the device's clock, on the host around the kernel, around the call.
_SOURCES = ("kernel_gpu", "kernel_cpu", "collective_cpu")


class _Header(msgspec.Struct, gc=False):
    id: str | int = ""
    comm_name: str = ""
    rank: int = -1
    n_ranks: int = -1


class _Metadata(msgspec.Struct, gc=False):
    dump_timestamp_us: int = 0
    hostname: str = ""
    pid: int = -1


class _Channel(msgspec.Struct, gc=False):
    kernel_start_ts: int = 0
    kernel_stop_ts: int = 0


class _Times(msgspec.Struct, gc=False):
    coll_start_ts: int = 0
    p2p_start_ts: int = 0
    kernel_events: list[_Channel] = []


class _Event(msgspec.Struct, gc=False):
    event_trace_ts: _Channel = msgspec.field(default_factory=_Channel)


class _Perf(msgspec.Struct, gc=False):
    coll: str = ""
    p2p: str = ""
    coll_sn: int = -1
    p2p_sn: int = -1
    coll_msg_size_bytes: int = -1
    p2p_msg_size_bytes: int = -1
    coll_exec_time_us: float = -1
    p2p_exec_time_us: float = -1
    coll_timing_source: str = ""
    p2p_timing_source: str = ""
    p2p_peer: int = -1
    event_trace_ts: _Times | None = None
    # since 4.1 the channels are here
    events: list[_Event] = []


class _Line(msgspec.Struct, gc=False):
    header: _Header
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    coll_perf: _Perf | None = None
    p2p_perf: _Perf | None = None


@dataclass
class _Read:
    """State of reading so far."""

    rows: list[tuple[object, ...]] = field(default_factory=list)
    # by communicator: its name in the program; number of ranks, place in it
    names: dict[str, str] = field(default_factory=dict)
    members: dict[str, tuple[int, int]] = field(default_factory=dict)
    sources: Counter[str] = field(default_factory=Counter)
    hosts: set[tuple[str, int]] = field(default_factory=set)
    untimed: int = 0
    odd: int = 0


def detect(head: Head) -> Match:
    """Return CERTAIN for a file whose first line is one of the Inspector's."""
    return Match.CERTAIN if next(_beginning(head), None) is not None else Match.NO


def rank_of(head: Head) -> int:
    """Return the place in the communicator of most ranks in the first lines; -1 without one."""
    members = {str(line.header.id): (line.header.n_ranks, line.header.rank) for line in _beginning(head)}
    return _place(members)


def read(path: Path) -> Profile:
    """Return the operations in a log, plain or gzip. Raises `ToolError` (bad_trace, io_error)."""
    found = _Read()
    decoder = msgspec.json.Decoder(_Line)
    try:
        for text in _lines(path):
            if len(found.rows) >= _ROWS:
                raise bad(path, f"more than {_ROWS} operations")
            if found.odd > _NOTHING + len(found.rows):
                raise bad(path, f"{found.odd} of its lines are no operations")
            try:
                _take(decoder.decode(text), found)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                found.odd += 1
    except (EOFError, zlib.error) as error:
        # a truncated log counts up to there: the job may have ended in the middle of it
        found.odd += 1
        if not found.rows:
            raise bad(path, f"damaged ({error})") from None
    except OSError as error:
        raise unreadable(path, error) from None
    if not found.rows:
        raise bad(path, "no operation of the NCCL Inspector in it")
    return _profile(found)


def _beginning(head: Head) -> Iterator[_Line]:
    """Yield the first lines, if the very first is one of the Inspector's."""
    decoder = msgspec.json.Decoder(_Line)
    if head.json != b"{":
        return
    lines = head.data[:_SNIFF].splitlines()
    for number, line in enumerate(lines[:_HEAD_LINES]):
        try:
            one = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if number == 0:
                return
            continue
        if one.coll_perf is None and one.p2p_perf is None:
            return
        yield one


def _lines(path: Path) -> Iterator[bytes]:
    """Yield lines that are not empty. One that is too long is cut: then it is no JSON, and counted."""
    with opened(path) as file:
        while line := file.readline(_LINE):
            length, rest = len(line), line
            while len(rest) == _LINE and not rest.endswith(b"\n"):
                rest = file.readline(_LINE)
                length += len(rest)
                if length > _LONGEST:
                    raise bad(path, f"more than {_LONGEST >> 20} MiB without a line")
            if line.strip():
                yield line


def _take(line: _Line, found: _Read) -> None:
    perf, header = line.coll_perf or line.p2p_perf, line.header
    if perf is None:
        found.odd += 1
        return
    group = clean(str(header.id), 64)
    if 0 <= header.rank < header.n_ranks <= RANK_LIMIT:
        found.members[group] = (header.n_ranks, header.rank)
    if header.comm_name:
        found.names[group] = clean(header.comm_name)
    found.hosts.add((line.metadata.hostname, line.metadata.pid))
    found.sources[perf.coll_timing_source or perf.p2p_timing_source or "unknown"] += 1
    op = canonical_op(perf.coll or perf.p2p)
    took = max(perf.coll_exec_time_us, perf.p2p_exec_time_us)
    instants = _instants(perf)
    written = line.metadata.dump_timestamp_us
    if instants is None:
        if not (0 <= took < _LARGEST_US and _EPOCH_US <= written < _LARGEST_US):
            found.odd += 1
            return
        found.untimed += 1
        instants = written * 1000 - round(took * 1000), written * 1000, 0
    start, end, asked = instants
    size = max(perf.coll_msg_size_bytes, perf.p2p_msg_size_bytes)
    seq = max(perf.coll_sn, perf.p2p_sn)
    found.rows.append(
        (
            start,
            end,
            op,
            group,
            seq if 0 <= seq < 2**62 else -1,
            size if 0 <= size < ELEMENT_LIMIT else -1,
            perf.p2p_peer if op in POINT_TO_POINT and 0 <= perf.p2p_peer < RANK_LIMIT else -1,
            asked,
        )
    )


def _instants(perf: _Perf) -> tuple[int, int, int] | None:
    """Return start and end on the device and when the host requested it, ns of the epoch; None: not in the line."""
    times = perf.event_trace_ts
    if times is None:
        return None
    channels = [*times.kernel_events, *(one.event_trace_ts for one in perf.events)]
    starts = [one.kernel_start_ts for one in channels if _EPOCH_US <= one.kernel_start_ts < _LARGEST_US]
    ends = [one.kernel_stop_ts for one in channels if _EPOCH_US <= one.kernel_stop_ts < _LARGEST_US]
    if not starts or not ends or max(ends) < min(starts):
        return None
    asked = max(times.coll_start_ts, times.p2p_start_ts)
    return min(starts) * 1000, max(ends) * 1000, asked * 1000 if _EPOCH_US <= asked < _LARGEST_US else 0


def _profile(found: _Read) -> Profile:
    schema = {
        name: COLLECTIVES[name] for name in ("start_ns", "end_ns", "op", "group", "seq", "bytes", "peer", "launch_ns")
    }
    world = max((ranks for ranks, _ in found.members.values()), default=-1)
    whole = [group for group, (ranks, _) in found.members.items() if ranks == world]
    frame = pl.DataFrame(found.rows, schema=schema, orient="row").with_columns(
        # Places within a communicator of all ranks are ranks.
        peer=pl.when(pl.col("group").is_in(whole)).then("peer").otherwise(-1),
        dtype=pl.lit(""),
        step=pl.lit(-1),
        device=pl.lit(-1),
        lane=pl.lit(-1),
        state=pl.lit("completed"),
        vendor_wait_ns=pl.lit(-1),
    )
    groups: list[tuple[object, ...]] = [
        (group, group, found.names.get(group, ""), [], found.members.get(group, (-1, -1))[0])
        for group in sorted(set(frame["group"].unique()))
    ]
    notes = [("odd_lines", str(found.odd))] if found.odd else []
    notes += [("starts_unknown", f"{found.untimed} of {frame.height}")] if found.untimed else []
    known = [f"{source} {found.sources[source]}" for source in (*_SOURCES, "unknown") if found.sources[source]]
    if known and known[0] != f"{_SOURCES[0]} {frame.height}":
        notes.append(("coarse_durations", ", ".join(known)))
    host, pid = next(iter(found.hosts)) if len(found.hosts) == 1 else ("", -1)
    return Profile(
        tables={name: columns.to_frame() for name, columns in profile.TABLES.items()},
        clock="real",
        source=SOURCE,
        rank=_place(found.members),
        notes=tuple(notes),
        collectives=frame.select(pl.col(name).cast(kind) for name, kind in COLLECTIVES.items()).sort("start_ns", "seq"),
        groups=pl.DataFrame(groups, schema=GROUPS, orient="row"),
        run=Run(world_size=world, backend="nccl", host=clean(host), pid=pid if 0 <= pid < 2**31 else -1),
    )


def _place(members: dict[str, tuple[int, int]]) -> int:
    """Return the place in the largest communicators, -1 when they disagree or there is none."""
    world = max((ranks for ranks, _ in members.values()), default=-1)
    places = {place for ranks, place in members.values() if ranks == world and 0 <= place < ranks}
    return places.pop() if len(places) == 1 else -1


FORMAT = ProfileFormat(SOURCE, detect, read, rank_of, lambda head: head.name.endswith(SUFFIXES), only_collectives=True)
