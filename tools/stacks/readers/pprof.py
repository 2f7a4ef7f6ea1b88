"""Read pprof: samples in protocol buffers, usually gzipped (github.com/google/pprof, proto/profile.proto).

The first bytes, unpacked: ``0a 04 08 01 10 02`` (field 1, 4 bytes: sample_type with type 1 and unit 2 of the string
table).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from whystall.tools.files.formats import Format, Head, Match
from whystall.tools.files.input import bad
from whystall.tools.files.protobuf import fields, packed, signed
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import NO_STACK, NO_THREAD, StackProfile
from whystall.tools.stacks.names import UNKNOWN, named
from whystall.tools.stacks.readers.whole_file import DEEPEST, content

_SAMPLE_TYPE, _SAMPLE, _MAPPING, _LOCATION, _FUNCTION, _STRING = 1, 2, 3, 4, 5, 6
_PERIOD_TYPE, _PERIOD, _DEFAULT = 11, 12, 14
_FIELDS = range(1, 16)
_UNITS = {"nanoseconds": "ns", "microseconds": "us", "milliseconds": "ms", "seconds": "s"}
_MILLIONTHS = "/1000000"  # the end of our own unit: the format has no fractions
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a]")
_TID = ("tid", "thread_id", "thread id", "thread")
_PID = ("pid", "process_id", "process id")
_COMM = ("comm", "thread_name", "thread name", "thread")
_WALKED = 64  # frames per byte of the file: beyond it, locations were crafted to explode
_REMEDY = "profile for a shorter time"
_T = TypeVar("_T")


class _Function(NamedTuple):
    name: str
    file: str


class _Line(NamedTuple):
    function: int
    line: int


class _Location(NamedTuple):
    mapping: int
    address: int
    lines: tuple[_Line, ...]  # what was inlined first, its caller last


def is_pprof(start: bytes) -> bool:
    """Return whether a file with this unpacked beginning may be a profile: its first fields are those of one."""
    count = 0
    try:
        for field, value in fields(start):
            whole = field in (*range(1, 7), 11, 13)
            if field not in _FIELDS or isinstance(value, bytes) != whole:
                return field == 13 and count > 0  # comments may be packed
            count += 1
    except ValueError:  # truncated at the end of the head
        return count > 0 and start[:1] in b"\x0a\x12\x1a\x22\x2a\x32\x48\x50\x5a\x60\x70"
    return count > 0


def read(path: Path) -> StackProfile:
    """Return the profile in `path`, gzip or plain. Its default event comes first (see `choose_event`).

    Records with dangling references, or with a negative value (of a difference), are odd. Raises `ToolError`: bad_trace
    (no profile, cut short, more than 1 GiB unpacked), io_error.
    """
    data = content(path, _REMEDY)
    try:
        return _Reader(path, data).profile()
    except (ValueError, TypeError):
        raise bad(path, "damaged or cut short: its fields are not those of pprof") from None


class _Reader:
    def __init__(self, path: Path, data: bytes) -> None:
        self._path, self._builder = path, Builder()
        self._left = _WALKED * len(data) + 1_000_000
        self._parts: dict[int, list[bytes]] = {field: [] for field in _FIELDS}
        self._numbers: dict[int, int] = {}
        for field, value in fields(data):
            if isinstance(value, bytes):
                self._parts.setdefault(field, []).append(value)
            else:
                self._numbers[field] = value
        self._texts = [part.decode("utf-8", "backslashreplace") for part in self._parts[_STRING]]
        self._mappings = self._by_id(_MAPPING, lambda one: self._text(_number(one, 5)))
        self._functions = self._by_id(
            _FUNCTION,
            lambda one: _Function(self._text(_number(one, 2) or _number(one, 3)), self._text(_number(one, 4))),
        )
        self._locations = self._by_id(_LOCATION, _location)
        self._frames: dict[int, list[int]] = {}
        self._scale: list[float] = []

    def profile(self) -> StackProfile:
        """Return all of it."""
        types = [(self._text(_number(one, 1)), self._text(_number(one, 2))) for one in map(_message, self._parts[1])]
        if not types or not self._parts[_SAMPLE]:
            raise bad(self._path, "it has no samples", "profile for longer, or while the program runs")
        events = self._events(types)
        stacks: dict[tuple[int, ...], int] = {}
        for part in self._parts[_SAMPLE]:
            sample = _message(part)
            values = _integers(sample, 2)
            ids = tuple(_integers(sample, 1))
            stack = stacks.get(ids)
            if stack is None:
                stack = stacks[ids] = self._stack(ids)
            if len(values) != len(types) or stack < NO_STACK:
                self._builder.odd += 1
                continue
            thread = self._thread(sample)
            for event, value, by in zip(events, values, self._scale, strict=True):
                if value:
                    self._builder.sample(stack, event, signed(value) / by, thread=thread)
        return self._builder.profile("pprof")

    def _events(self, types: list[tuple[str, str]]) -> list[int]:
        """Return the event of each sample type, the default first: the named one, else the last, as in pprof."""
        names = [name for name, _ in types]
        chosen = self._text(self._numbers.get(_DEFAULT, 0))
        first = names.index(chosen) if chosen in names else len(names) - 1
        about = [self._text(_number(_message(part), 1)) for part in self._parts[_PERIOD_TYPE][-1:]]
        period = max(float(signed(self._numbers.get(_PERIOD, 0))), 0.0)
        found = dict.fromkeys(range(len(types)), 0)
        self._scale = [1.0] * len(types)
        for place in [first, *(place for place in found if place != first)]:
            name, unit = types[place]
            unit, self._scale[place] = (unit[: -len(_MILLIONTHS)], 1e6) if unit.endswith(_MILLIONTHS) else (unit, 1.0)
            unit = "samples" if (name, unit) == ("samples", "count") else _UNITS.get(unit, unit)
            found[place] = self._builder.event(name, unit, period if [name] == about else 0.0)
        return list(found.values())

    def _stack(self, ids: tuple[int, ...]) -> int:
        """Return the stack of locations, innermost first; below `NO_STACK` when it is incomplete or too deep."""
        found, depth = NO_STACK, 0
        for one in reversed(ids):
            frames = self._frames.get(one)
            if frames is None:
                frames = self._frames[one] = self._frames_at(one)
            depth += len(frames)
            self._left -= len(frames) + 1
            if self._left < 0:
                raise bad(self._path, "its stacks are out of proportion to its size")
            if not frames or depth > DEEPEST:
                return NO_STACK - 1
            for frame in frames:
                found = self._builder.call(found, frame)
        return found

    def _frames_at(self, number: int) -> list[int]:
        """Return the frames of a location from the caller inward; none when it is missing."""
        location = self._locations.get(number)
        if location is None:
            return []
        module = self._mappings.get(location.mapping, "")
        if not location.lines:
            name = f"0x{location.address:x}" if location.address else UNKNOWN
            return [self._builder.frame(name, module, 0, "native" if module else "other")]
        found = []
        for line in reversed(location.lines):
            function = self._functions.get(line.function, _Function("", ""))
            parsed = named(function.name)
            kind, file = parsed.kind, function.file or parsed.file or module
            if file.endswith(".py"):
                kind = "python"
            elif kind == "other" and file:
                kind = "kernel" if module.startswith(("[kernel", "[guest.kernel")) else "native"
            at = line.line or parsed.line
            found.append(self._builder.frame(parsed.name, file, at if 0 <= at < 1 << 31 else 0, kind))
        return found

    def _thread(self, sample: list[tuple[int, int | bytes]]) -> int:
        labels: dict[str, str | int] = {}
        for field, value in sample:
            if field == 3 and isinstance(value, bytes):
                label = _message(value)
                text = _number(label, 2)
                labels[self._text(_number(label, 1))] = self._text(text) if text else _number(label, 3)
        if not labels:
            return NO_THREAD
        tid = next((_id(labels[key]) for key in _TID if key in labels and _id(labels[key]) >= 0), -1)
        pid = next((_id(labels[key]) for key in _PID if key in labels), -1)
        names = (labels[key] for key in _COMM if key in labels)
        comm = next((name for name in names if isinstance(name, str) and not name.isdigit()), "")
        return self._builder.thread(pid, tid, comm) if comm or max(pid, tid) >= 0 else NO_THREAD

    def _by_id(self, field: int, made: Callable[[list[tuple[int, int | bytes]]], _T]) -> dict[int, _T]:
        messages = [_message(part) for part in self._parts[field]]
        return {_number(one, 1): made(one) for one in messages}

    def _text(self, index: int) -> str:
        return self._texts[index] if index < len(self._texts) else ""


def _message(data: bytes) -> list[tuple[int, int | bytes]]:
    return list(fields(data))


def _number(message: list[tuple[int, int | bytes]], field: int) -> int:
    """Return the value of an integer field; the last one counts, 0 if there is none."""
    return next((value for one, value in reversed(message) if one == field and isinstance(value, int)), 0)


def _integers(message: list[tuple[int, int | bytes]], field: int) -> list[int]:
    found: list[int] = []
    for one, value in message:
        if one == field:
            found += packed(value) if isinstance(value, bytes) else [value]
    return found


def _location(message: list[tuple[int, int | bytes]]) -> _Location:
    lines = [_message(value) for field, value in message if field == 4 and isinstance(value, bytes)]
    return _Location(
        _number(message, 2), _number(message, 3), tuple(_Line(_number(one, 1), _number(one, 2)) for one in lines)
    )


def _id(value: str | int) -> int:
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) < 11 else -1
    return value if 0 <= value < 1 << 31 else -1


def detect(head: Head) -> Match:
    """Return LIKELY for protocol buffers with the fields of pprof; their lengths are hardly ever letters alone."""
    return Match.LIKELY if not head.json and _CONTROL.search(head.data) and is_pprof(head.data) else Match.NO


FORMAT = Format("pprof", detect, read)
