"""Read Chrome's trace events (JSON) as stacks with self time.

    {"ph": "X", "name": "load", "pid": 1, "tid": 1, "ts": 10.5, "dur": 3.0}
    {"ph": "B", "name": "step", "pid": 1, "tid": 1, "ts": 20}

Complete events (X) and pairs of B and E; the others, of flows, counters and objects, hold no stacks. A truncated file
is read up to its end. Traces of accelerators' profilers are read in `whystall.tools.timeline`, which knows their links.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from pathlib import Path

import msgspec

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.formats import Format, Head, Match
from whystall.tools.files.input import bad
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.names import named
from whystall.tools.stacks.readers.evented import Evented
from whystall.tools.stacks.readers.whole_file import content

_NS = 1000.0  # per microsecond, the unit of ts and dur
_TRIES = 64
_EVENT = re.compile(rb'"ph"\s*:\s*"[A-Za-z]"')
_BYTE = re.compile(r"\(byte (?P<byte>[0-9]+)\)")
_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float | str = 0.0
    dur: float | str = 0.0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Named(msgspec.Struct):
    name: str = ""


class _File(msgspec.Struct):
    traceEvents: list[msgspec.Raw]


# begin, end, name; end infinite: unknown
_Call = tuple[float, float, str]


def read(path: Path) -> StackProfile:
    """Return the calls in `path`, timed, in nanoseconds; threads are those of the trace.

    Odd are events that cannot be read or end before they begin, and ends without a beginning. Raises `ToolError`:
    bad_trace (not such JSON, no calls in it, more than 1 GiB unpacked), io_error.
    """
    data = content(path, "record a shorter trace")
    events, odd = _events(path, data)
    builder = Builder()
    builder.odd = odd
    calls, names = _calls(builder, events)
    event = builder.event("wall", "ns")
    for (pid, tid), found in ((key, found) for key, found in calls.items() if found):
        process, thread = _number(pid), _number(tid)
        comm = names.get((pid, tid)) or (tid if isinstance(tid, str) and thread < 0 else names.get((pid, None), ""))
        _nest(builder, Evented(builder, event, builder.thread(process, thread, comm), _NS), found)
    profile = builder.profile("chrome")
    if profile.samples.is_empty():
        raise ToolError(ErrorCode.BAD_TRACE, f"{path.name} holds no calls that last", "record for longer")
    return profile


def _events(path: Path, data: bytes) -> tuple[list[_Event], int]:
    raws, odd = _raws(path, data)
    decoder, found = msgspec.json.Decoder(_Event), []
    for raw in raws:
        try:
            found.append(decoder.decode(raw))
        except _ERRORS:
            odd += 1
    return found, odd


def _raws(path: Path, data: bytes) -> tuple[list[msgspec.Raw], int]:
    """Return the events as raw JSON, and whether the end of the file was lost."""
    text = data.strip()
    bare = text.startswith(b"[")
    try:
        if bare:
            return msgspec.json.decode(text, type=list[msgspec.Raw]), 0
        return msgspec.json.decode(text, type=_File).traceEvents, 0
    except _ERRORS as error:
        reason = error
    found = _BYTE.search(str(reason))
    end = min(int(found["byte"]) + 1, len(text)) if found else len(text)  # everything before the damage is sound
    for _ in range(_TRIES):  # the writer may have died, or have omitted the bracket, as Chrome allows
        end = text.rfind(b"}", 0, end)
        if end < 0:
            break
        head = text[: end + 1]
        try:
            if bare:
                return msgspec.json.decode(head + b"]", type=list[msgspec.Raw]), int(
                    text[end + 1 :].strip(b" ,\n") != b""
                )
            return msgspec.json.decode(head + b"]}", type=_File).traceEvents, 1
        except _ERRORS:
            continue
    raise bad(path, f"no JSON of trace events: {reason}")


def _calls(
    builder: Builder, events: list[_Event]
) -> tuple[dict[tuple[int | str, int | str], list[_Call]], dict[tuple[int | str, int | str | None], str]]:
    """Return the calls of each thread, and the names of threads and processes (a process: without a thread)."""
    found: dict[tuple[int | str, int | str], list[_Call]] = defaultdict(list)
    pairs: dict[tuple[int | str, int | str], list[tuple[float, bool, str]]] = defaultdict(list)
    names: dict[tuple[int | str, int | str | None], str] = {}
    for event in events:
        key = (event.pid, event.tid)
        if event.ph == "M":
            if event.name in ("thread_name", "process_name"):
                names[key if event.name == "thread_name" else (event.pid, None)] = _name_of(event)
        elif event.ph in ("X", "B", "E"):
            at, length = _time(event.ts), _time(event.dur) if event.ph == "X" else 0.0
            if not (math.isfinite(at) and math.isfinite(length) and length >= 0):
                builder.odd += 1
            elif event.ph == "X":
                found[key].append((at, at + length, event.name))
            else:
                pairs[key].append((at, event.ph == "B", event.name))
    for key, edges in pairs.items():
        edges.sort(key=lambda edge: edge[0])
        found[key] += _paired(builder, edges)
    return found, names


def _paired(builder: Builder, edges: list[tuple[float, bool, str]]) -> list[_Call]:
    open_: list[tuple[float, str]] = []
    found = []
    for at, begins, name in edges:
        if begins:
            open_.append((at, name))
        elif open_:
            start, opened = open_.pop()
            found.append((start, at, opened))
        else:
            builder.odd += 1
    return found + [(start, edges[-1][0], name) for start, name in open_]


def _nest(builder: Builder, calls: Evented, found: list[_Call]) -> None:
    """Add nested calls: one that began within another ends with it at the latest."""
    frames: dict[str, int] = {}
    ends: list[float] = []
    found.sort(key=lambda call: (call[0], -call[1]))
    calls.now = found[0][0]
    for begin, end, name in found:
        while ends and ends[-1] <= begin:
            calls.end(ends.pop())
        if name not in frames:
            frames[name] = builder.frame(*named(name))
        if calls.begin(begin, frames[name]):
            ends.append(min(end, ends[-1]) if ends else end)
        else:
            builder.odd += 1
    while ends:
        calls.end(ends.pop())


def _name_of(event: _Event) -> str:
    try:
        return msgspec.json.decode(event.args, type=_Named).name
    except _ERRORS:
        return ""


def _time(value: float | str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan


def _number(value: int | str) -> int:
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) < 11 else -1
    return value if -1 <= value < 1 << 31 else -1


def detect(head: Head) -> Match:
    """Return LIKELY for JSON with trace events of any program."""
    if head.json == b"{":
        return Match.LIKELY if b'"traceEvents"' in head.data else Match.NO
    empty = not head.data.strip()[1:].strip(b" \t\r\n]")
    return Match.LIKELY if head.json == b"[" and (empty or _EVENT.search(head.data)) else Match.NO


FORMAT = Format("chrome", detect, read)
