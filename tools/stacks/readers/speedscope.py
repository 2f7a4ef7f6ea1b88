"""Read speedscope's JSON: sampled and evented profiles (its file-format-schema.json); py-spy and others write it.

{"$schema": "https://www.speedscope.app/file-format-schema.json", "shared": {"frames": [{"name": "main"}]},
 "profiles": [{"type": "sampled", "name": "thread 7", "unit": "milliseconds", "startValue": 0, "endValue": 10,
               "samples": [[0]], "weights": [10]}]}
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.formats import Format, Match
from whystall.tools.files.input import bad
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import NO_THREAD, StackProfile
from whystall.tools.stacks.names import Name, named
from whystall.tools.stacks.readers.evented import Evented, instant
from whystall.tools.stacks.readers.whole_file import DEEPEST, content

_SCHEMA = re.compile(rb'"\$schema"\s*:\s*"[^"]*speedscope|"shared"\s*:\s*\{\s*"frames"\s*:')
_NS = {"nanoseconds": 1.0, "microseconds": 1e3, "milliseconds": 1e6, "seconds": 1e9}
# Names of threads by py-spy, and by us.
_THREADS = (
    re.compile(r'(?:.* )?[Tt]hread (?P<tid>[0-9]{1,9})(?: "(?P<comm>.*)")?', re.DOTALL),
    re.compile(r"(?P<comm>.*) \((?P<tid>[0-9]{1,9})\)", re.DOTALL),
)


class _Frame(msgspec.Struct, gc=False):
    name: str = ""
    file: str | None = None
    line: int | float | None = None


class _Shared(msgspec.Struct):
    frames: list[_Frame]


class _Profile(msgspec.Struct):
    type: str = ""
    name: str = ""
    unit: str = "none"
    startValue: float = 0.0
    endValue: float = 0.0
    samples: list[msgspec.Raw] = []
    weights: list[msgspec.Raw] = []
    events: list[msgspec.Raw] = []


class _File(msgspec.Struct):
    shared: _Shared
    profiles: list[_Profile]


class _Event(msgspec.Struct, gc=False):
    type: str
    at: float
    frame: int


def read(path: Path) -> StackProfile:
    """Return the profiles in `path`, each a thread. Times become nanoseconds; other units are kept.

    A sampled profile with times has the start of each sample; so has an evented one for each period of one stack. Odd
    are samples with a missing frame or a weight that is no number, and events that close what is not open. Raises
    `ToolError`: bad_trace (not speedscope's JSON, more than 1 GiB unpacked), io_error.
    """
    data = content(path, "export a shorter profile")
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad(path, f"no JSON of speedscope: {error}") from None
    reader = _Reader(file)
    for profile in file.profiles:
        reader.add(profile)
    made = reader.builder.profile("speedscope")
    if made.samples.is_empty():
        raise ToolError(ErrorCode.BAD_TRACE, f"{path.name} holds no samples", "profile for longer")
    return made


class _Reader:
    def __init__(self, file: _File) -> None:
        self.builder = Builder()
        self._frames = [self.builder.frame(*_frame(frame)) for frame in file.shared.frames]
        self._of_unit: dict[str, int] = {}

    def add(self, profile: _Profile) -> None:
        """Read one profile."""
        scale = _NS.get(profile.unit, 0.0)
        unit = "ns" if scale else ("samples" if profile.unit == "none" else profile.unit)
        name = "wall" if scale else unit
        event = self.builder.event(name, unit)
        thread = self._thread(profile.name)
        if profile.type == "evented":
            self._evented(profile, event, thread, scale)
        else:
            self._sampled(profile, event, thread, scale)

    def _sampled(self, profile: _Profile, event: int, thread: int, scale: float) -> None:
        build, now = self.builder, profile.startValue
        missing = abs(len(profile.samples) - len(profile.weights)) if profile.weights else 0
        build.odd += missing
        weights = profile.weights or [msgspec.Raw(b"1")] * len(profile.samples)
        for stack, raw in zip(profile.samples, weights, strict=False):
            weight, found = _number(raw), self._stack(stack)
            if found is None or weight < 0 or not math.isfinite(weight):
                build.odd += 1
                continue
            at, span = instant(now, weight, scale)
            build.sample(found, event, weight * (scale or 1.0), at_ns=at, span_ns=span, thread=thread)
            now += weight

    def _stack(self, raw: msgspec.Raw) -> int | None:
        try:
            frames = msgspec.json.decode(raw, type=list[int])
        except msgspec.DecodeError:
            return None
        if len(frames) > DEEPEST or not all(0 <= frame < len(self._frames) for frame in frames):
            return None
        return self.builder.stack(self._frames[frame] for frame in frames)

    def _evented(self, profile: _Profile, event: int, thread: int, scale: float) -> None:
        calls = Evented(self.builder, event, thread, scale, profile.startValue)
        for raw in profile.events:
            one = _event(raw)
            if one is None or not math.isfinite(one.at) or one.at < calls.now or not 0 <= one.frame < len(self._frames):
                self.builder.odd += 1
            elif one.type == "O" and calls.begin(one.at, self._frames[one.frame]):
                continue
            elif one.type == "C" and calls.open and calls.open[-1] == self._frames[one.frame]:
                calls.end(one.at)
            else:
                self.builder.odd += 1
        if math.isfinite(profile.endValue):
            calls.until(profile.endValue)

    def _thread(self, name: str) -> int:
        if not name:
            return NO_THREAD
        found = next((found for form in _THREADS if (found := form.fullmatch(name[:256]))), None)
        return (
            self.builder.thread(-1, int(found["tid"]), found["comm"] or "") if found else self.builder.thread(comm=name)
        )


def _frame(frame: _Frame) -> Name:
    parsed = named(frame.name)
    line = int(frame.line) if frame.line is not None and 0 <= frame.line < 1 << 31 else 0
    file = frame.file or parsed.file
    kind = parsed.kind
    if kind == "other" and file:
        python = file.endswith((".py", ".pyx")) or file.startswith("<")
        kind = "python" if python else ("kernel" if file.startswith("[kernel") else "native")
    return Name(parsed.name, file, line or parsed.line, kind)


def _number(raw: msgspec.Raw) -> float:
    try:
        return float(msgspec.json.decode(raw, type=float))
    except msgspec.DecodeError:
        return math.nan


def _event(raw: msgspec.Raw) -> _Event | None:
    try:
        return msgspec.json.decode(raw, type=_Event)
    except msgspec.DecodeError:
        return None


FORMAT = Format(
    "speedscope",
    lambda head: Match.CERTAIN if head.json == b"{" and _SCHEMA.search(head.data) else Match.NO,
    read,
)
