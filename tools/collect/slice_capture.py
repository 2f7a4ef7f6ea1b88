"""Make the capture of a window from the slices of a continuous recording.

A wait that began before the window, or ended after it, is cut to it. Waits too short to be recorded are in the totals
of whole slices: of a slice that is partly outside, they count in proportion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from whystall.bpf import capture as cap
from whystall.bpf import layout as lay
from whystall.bpf.collectors.switches import SwitchRows
from whystall.bpf.python_code import PythonResult, decode
from whystall.bpf.samples import SampleLog
from whystall.tools.collect.slice_parts import Slice, map_items
from whystall.tools.collect.slice_scan import split

_OPEN, _SEEDED = lay.RECORD_OPEN, lay.RECORD_SEEDED
_MOST_PATH_RECORDS = frozenset({lay.RECORD_SEGMENT, lay.RECORD_FILE})
_Key = tuple[int, int, str, int, cap.FileKey | None, int, int, int]


@dataclass(frozen=True)
class Cutting:
    """A capture of a window, and the conditions under which it was recorded. `kinds`: of `Cut`'s processes
    (``layout.TRACED_...``); `missing_ns`: time of the window in which nothing was recorded."""

    capture: cap.Capture
    kinds: dict[int, int]
    min_ns: int
    sample_ns: int
    missing_ns: int
    head: dict[str, Any]
    """Of the last slice in the window, see `slice_parts.slice_end`."""


def cut_window(
    slices: Sequence[Slice], codes: Iterable[bytes], start: int, end: int, own: frozenset[int] | None = None
) -> Cutting | None:
    """Return what `slices` (all of them, oldest first) have of the window [start, end), ns of CLOCK_MONOTONIC; None if
    they have nothing. `codes`: records of code objects. `own`: the processes that the window is about; others count as
    followed ones, which only wake these. None: all targets."""
    inside = [one for one in slices if one.end_ns > start and one.start_ns < end]
    if not inside:
        return None
    start, end = max(start, inside[0].start_ns), min(end, inside[-1].end_ns)
    at = slices.index(inside[0])
    heads = [one.head for one in inside if one.head] or [one.head for one in slices[:at] if one.head][-1:] or [{}]
    read = [_Read(one, one in inside) for one in slices[max(at - 1, 0) :]]
    segments = list(_clipped((s for one in read for s in one.records.segments), start, end))
    sample_ns = max(int(head.get("sample_ns", 0)) for head in heads) or 1
    capture = cap.Capture(
        window_start=start,
        window_end=end,
        files={key: file for one in read for key, file in one.records.files.items()},
        threads={tid: thread for one in read for tid, thread in cap.threads(map_items(*one.slice.threads, 4)).items()},
        stacks=dict(stack for one in read for stack in one.stacks),
        results={
            SwitchRows: SwitchRows(segments, _totals(read, segments, start, end), _followed(read, heads, own)),
            PythonResult: _python(codes, heads),
        },
        lost={name: [count] for name, count in _counted(inside).items() if name in lay.LOSSES},
        seen={name.removeprefix("seen_"): 0 for name in lay.COUNTERS[len(lay.LOSSES) :]}
        | {name.removeprefix("seen_"): count for name, count in _counted(inside).items() if name not in lay.LOSSES},
        hooks=tuple(heads[-1].get("hooks", ())),
        variants=dict(heads[-1].get("variants", {})),
    )
    samples = _samples(read, sample_ns).samples()
    capture.seen["switches"] = sum(total.count for total in capture.of(SwitchRows).off_totals)
    covered = sum(min(one.end_ns, end) - max(one.start_ns, start) for one in inside)
    return Cutting(
        capture.with_results(samples),
        {int(pid): int(kind) for head in heads for pid, kind in head.get("pids", {}).items()},
        max(_min_ns(head, own) for head in heads),
        sample_ns,
        max(0, end - start - covered),
        heads[-1],
    )


def _min_ns(head: dict[str, Any], own: frozenset[int] | None) -> int:
    """Return the shortest wait that a slice has of all processes `own`, None: of all targets."""
    kinds, lowered = head.get("pids", {}), head.get("lowered", {})
    counted = (ns for pid, ns in lowered.items() if (int(pid) in own if own is not None else _is_target(kinds, pid)))
    return max(int(head.get("min_ns", 0)), *map(int, counted), 0)


def _is_target(kinds: dict[str, Any], pid: str) -> bool:
    return bool(kinds.get(pid) == lay.TRACED_TARGET)


class _Read:
    """The decoded records of a slice."""

    def __init__(self, one: Slice, inside: bool) -> None:
        self.slice, self.inside = one, inside
        self.stacks: list[tuple[int, cap.Stack]] = []
        self.samples: list[bytes] = []
        self.followed: list[cap.Followed] = []
        kept = []
        for chunk in one.chunks:
            for record in split(chunk):
                kind = record[0]
                if kind in _MOST_PATH_RECORDS:
                    kept.append(record)
                elif kind == lay.RECORD_STACK:
                    self.stacks.append(cap.stack(record))
                elif kind == lay.RECORD_SAMPLE and inside:
                    self.samples.append(record)
                elif kind == lay.RECORD_FOLLOWED:
                    self.followed.append(cap.followed(record))
        self.records = cap.Records(kept)


def _clipped(segments: Iterable[cap.Segment], start: int, end: int) -> Iterator[cap.Segment]:
    """Yield the waits of the window, each once: those in progress were recorded at every cut, and at their end."""
    found: dict[tuple[int, int], cap.Segment] = {}
    for one in segments:
        if one.end <= start or one.start >= end:
            continue
        key = (one.tid, one.start)
        known = found.get(key)
        if known is None or (known.flags & _OPEN and one.end >= known.end):
            found[key] = one
    for one in sorted(found.values()):
        flags, awake = one.flags, one.end - one.runnable_ns
        if one.start < start:
            flags |= _SEEDED
        if one.end > end:
            flags |= _OPEN
        first, last = max(one.start, start), min(one.end, end)
        later = one.wake > end
        yield one._replace(
            start=first,
            end=last,
            flags=flags,
            runnable_ns=max(0, last - max(awake, first)),
            wake=0 if later else max(one.wake, first) if one.wake else 0,
            waker_tgid=0 if later else one.waker_tgid,
            waker_tid=0 if later else one.waker_tid,
            waker_comm=b"" if later else one.waker_comm,
            context="" if later else one.context,
            waker_nr=-1 if later else one.waker_nr,
        )


def _key(one: cap.Segment | cap.OffTotal) -> _Key:
    return (one.tgid, one.tid, one.off_class, one.nr, one.file, one.kstack, one.ustack, one.pystack)


def _totals(read: Sequence[_Read], segments: Sequence[cap.Segment], start: int, end: int) -> list[cap.OffTotal]:
    """Return totals by thread and place: the waits of the window, and the shorter ones of its slices."""
    sums: dict[_Key, list[float]] = {}

    def add(key: _Key, count: float, total: float, longest: float, runnable: float) -> None:
        known = sums.setdefault(key, [0.0, 0.0, 0.0, 0.0])
        known[0] += count
        known[1] += total
        known[2] = max(known[2], longest)
        known[3] += runnable

    for one in segments:
        add(_key(one), 1, one.end - one.start, one.end - one.start, one.runnable_ns)
    for part in read:
        if not part.inside or not part.slice.totals[0]:
            continue
        length = max(part.slice.end_ns - part.slice.start_ns, 1)
        share = (min(part.slice.end_ns, end) - max(part.slice.start_ns, start)) / length
        long: dict[_Key, list[int]] = {}
        for segment in part.records.segments:
            if not segment.flags & _OPEN:
                known = long.setdefault(_key(segment), [0, 0, 0])
                known[0] += 1
                known[1] += segment.end - segment.start
                known[2] += segment.runnable_ns
        for total in cap.off_totals(map_items(*part.slice.totals, _OFF_KEY)):
            key = _key(total)
            count, took, runnable = long.get(key, (0, 0, 0))
            left, left_ns = total.count - count, total.total_ns - took
            if left > 0 and left_ns > 0:
                longest = min(total.max_ns, left_ns)
                add(key, left * share, left_ns * share, longest, max(0, total.runnable_ns - runnable) * share)
    return [
        cap.OffTotal(*key, max(1, round(count)), round(total), round(longest), round(runnable))
        for key, (count, total, longest, runnable) in sums.items()
    ]


def _followed(read: Sequence[_Read], heads: Sequence[dict[str, Any]], own: frozenset[int] | None) -> list[cap.Followed]:
    """Return the processes that are followed because they wake others, with the last known reason."""
    found = {one.tgid: one for part in read for one in part.followed}
    targets = {int(p) for head in heads for p, kind in head.get("pids", {}).items() if kind == lay.TRACED_TARGET}
    targets = targets if own is None else targets & own
    for part in read:
        for segment in part.records.segments:
            if segment.tgid not in targets and segment.tgid not in found:
                found[segment.tgid] = cap.Followed(segment.start, segment.tgid, segment.tid, segment.comm, 0)
    return [one for pid, one in found.items() if pid not in targets]


def _python(codes: Iterable[bytes], heads: Sequence[dict[str, Any]]) -> PythonResult:
    result = PythonResult()
    for record in codes:
        key, code = decode(record)
        result.codes[key] = code
    for head in heads:
        result.processes |= {int(pid): int(minor) for pid, minor in head.get("python", {}).items()}
        result.refused |= {int(pid): str(why) for pid, why in head.get("refused", {}).items()}
    return result


def _samples(read: Sequence[_Read], sample_ns: int) -> SampleLog:
    """Return the samples at one rate, the lowest of the window: of slices with a higher one, every n-th."""
    log = SampleLog()
    for part in read:
        every = max(1, round(sample_ns / max(int(part.slice.head.get("sample_ns", sample_ns)), 1)))
        for record in part.samples[::every]:
            log.add(record)
    return log


def _counted(slices: Iterable[Slice]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for one in slices:
        for name, count in one.head.get("counters", {}).items():
            if name in lay.COUNTERS and isinstance(count, int):
                counted[name] = counted.get(name, 0) + count
    return counted


_OFF_KEY = lay.unpacker(lay.OffKey).size
