"""Read the text of ``perf script``: a line per sample, its frames below, the innermost first.

python3 32600 15496.972026:    5025125 cpu-clock:
                   fc2f5 _PyEval_EvalFrameDefault+0x1785 (/usr/lib/libpython3.11.so.1.0)
            7f904ffbd640 [unknown] ([unknown])
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import polars as pl

from whystall.tools.files.formats import Format, Match
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.events import LOST
from whystall.tools.stacks.model import NO_STACK, NO_TIME, StackProfile
from whystall.tools.stacks.names import UNKNOWN, Name, named
from whystall.tools.stacks.readers.text import Text
from whystall.tools.stacks.readers.whole_file import DEEPEST

# `comm` ends only where a run of blanks begins: `.*?\s+` alone tries every pair of blanks, in quadratic time.
_HEAD = re.compile(
    r"\s*(?P<comm>\S.*?)(?<=\S)\s+(?P<pid>-?[0-9]{1,10})(?:/\s*(?P<tid>-?[0-9]{1,10}))?\s+(?:\[(?P<cpu>[0-9]+)\]\s+)?"
    r"(?:(?=\S*\.)[A-Za-z.][A-Za-z0-9.]{3,6}\s+)?(?:(?P<s>[0-9]{1,10})\.(?P<fraction>[0-9]{3,9}):\s+)?(?:(?P<period>[0-9]{1,19}(?:\.[0-9]+)?(?:e[-+][0-9]{1,3})?)\s+)?"
    r"(?P<event>[^\s:]\S*?):(?:\s+(?P<rest>.*))?"
)
_LOST = re.compile(
    r".*?(?:(?P<s>[0-9]{1,10})\.(?P<fraction>[0-9]{3,9}):\s+)?PERF_RECORD_LOST(?:_SAMPLES)?\D{0,64}(?P<count>[0-9]+)"
)
_ADDRESS = re.compile(r"[0-9a-f]{1,16}")
_FRAME = re.compile(r"\s+[0-9a-f]{1,16} \S.*")
_OFFSET = re.compile(r"\+0x[0-9a-f]+$")
# Additions of `-F +srcline` and `+srccode` below a frame.
_SOURCE = re.compile(r"\s+(?:\S+:[0-9]+|\S.*\[[0-9a-f]+\]|\|[0-9]+ .*|:0)(?: \(inlined\))?\s*")
_HYBRID = re.compile(r"cpu_(?:core|atom)/(?P<event>[^/]+)/.*")
_CLOCKS = ("cpu-clock", "task-clock")
# Modifiers: precision of the address, and side of a virtual machine. They do not change what is measured.
_PRECISE = frozenset("pPHGD")
# Our own writer's comment on an event that is not one of perf's.
_WEIGHTS = re.compile(r"# (?P<event>\S+): weights in (?P<unit>\S+)\s*")
_MOST_UNITS = 64
_LAST_SECOND = (1 << 63) // 1_000_000_000 - 1
_USER_PLACES = ("[vdso]", "[vsyscall]", "[uprobes]", "[heap]", "[stack]", "[anon", UNKNOWN)
_KERNEL_FILES = re.compile(r".*\.ko(?:\.\w+)?|.*/vmlinux[^/]*")
_PYTHON = re.compile(r"py::(?P<name>.*):(?P<file>[^:]+)")
_REMEMBERED = 1_000_000


class _Sample(NamedTuple):
    at_ns: int
    thread: int
    event: int
    weight: float


def is_perf_script(lines: list[str]) -> bool:
    """Return whether `lines`, the first of a file, are mostly samples and their frames."""
    heads = frames = others = 0
    for number, line in enumerate(lines):
        if not line.strip() or line[0] == "#":
            continue
        head = None if line[0] == "\t" else _HEAD.fullmatch(line)
        below = lines[number + 1] if number + 1 < len(lines) else ""
        if head is not None and (_begins(line, head) if line[0] == " " else head["s"] or _FRAME.fullmatch(below)):
            heads += 1
        elif _FRAME.fullmatch(line):
            frames += 1
        else:
            others += 1
    return heads > 0 and heads + frames > others


def read(path: Path) -> StackProfile:
    """Return the samples in `path`, as ``perf script`` writes them with its usual fields, more or fewer.

    Weights are periods if there are any (of the clocks: nanoseconds), else 1. A single number beside the command is its
    thread. Odd are lines that are neither sample nor frame. Raises `ToolError`: bad_trace, io_error.
    """
    text = Text(path)
    reader = _Reader()
    rest = ""
    for block in text.blocks():
        lines = (rest + block).split("\n")
        rest = lines.pop()
        for line in lines:
            reader.line(line)
    if rest:
        reader.line(rest)
    reader.line("")
    reader.builder.odd += text.odd
    profile = reader.builder.profile("perf_script")
    if profile.samples.is_empty():
        raise text.nothing("a sample of perf script")
    return _with_periods(profile, reader.measured)


class _Reader:
    def __init__(self) -> None:
        self.builder = Builder()
        self._sample: _Sample | None = None
        self._chain: list[int] = []  # frames, the innermost first
        self._frames: dict[str, int] = {}
        self._units: dict[str, str] = {}

    @property
    def measured(self) -> set[str]:
        """Events that are not perf's."""
        return {event for event in self._units if event not in _CLOCKS}

    def line(self, line: str) -> None:
        """Parse one line."""
        start = line[:1]
        if start == "\t":
            self._frame(line)
        elif not line.strip():
            self._done()
        elif start != "#":
            self._other(line)
        elif len(self._units) < _MOST_UNITS and (parsed := _WEIGHTS.fullmatch(line)):
            self._units[parsed["event"]] = parsed["unit"]

    def _other(self, line: str) -> None:
        head = _HEAD.fullmatch(line) if "PERF_RECORD_" not in line else None
        if head is not None and _begins(line, head):
            self._done()
            self._begin(head)
        elif "PERF_RECORD_" in line:
            self._done()
            self._lost(line)
        elif line[0] == " ":
            self._frame(line)
        else:
            self._done()
            self.builder.odd += 1

    def _begin(self, head: re.Match[str]) -> None:
        build = self.builder
        pid, tid = (head["pid"], head["tid"]) if head["tid"] else ("-1", head["pid"])
        event = hybrid["event"] if (hybrid := _HYBRID.fullmatch(head["event"])) else head["event"]
        plain, _, modifiers = event.partition(":")
        if plain in _CLOCKS and _PRECISE.issuperset(modifiers):
            event = plain
        unit, weight = "samples", 1.0
        if head["period"]:
            usual = "ns" if plain in _CLOCKS else event
            unit, weight = self._units.get(event, usual), float(head["period"])
        thread = build.thread(_number(pid), _number(tid), head["comm"])
        self._sample = _Sample(_instant(head), thread, build.event(event, unit), weight)
        if (head["rest"] or "").endswith(
            ")"
        ):  # without call chains the only frame stands here; of a tracepoint its arguments do
            frame = self._frame_of(head["rest"])
            self._chain = [frame] if frame is not None and frame >= 0 else []

    def _frame(self, line: str) -> None:
        frame = self._frame_of(line)
        if self._sample is None or (frame is None and not _SOURCE.fullmatch(line)):
            self.builder.odd += 1
        elif frame is not None and frame >= 0:
            self._chain.append(frame)

    def _frame_of(self, line: str) -> int | None:
        """Return the frame of a line; -1: the unwinder's end, which is no frame; None: the line is something else."""
        address, _, place = line.strip().partition(" ")
        if not _ADDRESS.fullmatch(address) or not (place := place.strip()):
            return None
        if address == "0" or address == "f" * 16:
            return -1
        high = len(address) == 16 and address.startswith("ffff")
        key = place + "\0" if high else place
        frame = self._frames.get(key)
        if frame is None:
            if len(self._frames) > _REMEMBERED:
                self._frames.clear()
            frame = self._frames[key] = self.builder.frame(*_placed(place, high=high))
        return frame

    def _lost(self, line: str) -> None:
        if found := _LOST.match(line):
            event = self.builder.event(LOST, LOST)
            self.builder.sample(NO_STACK, event, float(found["count"]), at_ns=_instant(found))

    def _done(self) -> None:
        sample, chain = self._sample, self._chain
        self._sample, self._chain = None, []
        if sample is None:
            return
        if len(chain) > DEEPEST:
            self.builder.odd += 1
            return
        stack = self.builder.stack(reversed(chain))
        self.builder.sample(stack, sample.event, sample.weight, at_ns=sample.at_ns, thread=sample.thread)


def _begins(line: str, head: re.Match[str]) -> bool:
    """Return whether `line` is the head of a sample and not a frame: heads without call chains are indented too, and
    end with their only frame."""
    return line[0] != " " or head["s"] is not None or _FRAME.fullmatch(f" {head['rest']}") is not None


def _placed(place: str, *, high: bool) -> Name:
    """Return the frame for symbol and object, like ``read+0x1f (/usr/lib/libc.so.6)``."""
    symbol, file = place, ""
    if place.endswith(")"):
        cut = place.rfind(" (", 0, -11 if place.endswith(" (deleted))") else len(place))
        if cut >= 0:
            symbol, file = place[:cut], place[cut + 2 : -1]
        elif place.startswith("("):
            symbol, file = UNKNOWN, place[1:-1]
    symbol = _OFFSET.sub("", symbol.strip())
    if file == "inlined":
        return Name(symbol, kind="kernel" if high else "native")
    kernel = file.startswith("[") and not file.startswith(_USER_PLACES)
    kernel = kernel or bool(_KERNEL_FILES.fullmatch(file)) or (high and file in ("", UNKNOWN))
    if symbol == UNKNOWN and file and file != UNKNOWN:
        symbol = file if file.startswith("[") else f"[{file.rpartition('/')[2]}]"
    file = "" if file == UNKNOWN else file
    if python := _PYTHON.fullmatch(symbol):
        return Name(python["name"], python["file"], 0, "python")
    if kernel:
        return Name(symbol, file, 0, "kernel")
    parsed = named(symbol)
    return (
        parsed
        if parsed.kind in ("device", "idle", "python", "thread") or parsed.line
        else Name(symbol, file, 0, "native" if file else "other")
    )


def _instant(found: re.Match[str]) -> int:
    if found["s"] is None or int(found["s"]) > _LAST_SECOND:
        return NO_TIME
    return int(found["s"]) * 1_000_000_000 + int(found["fraction"].ljust(9, "0"))


def _number(text: str) -> int:
    value = int(text)
    return value if -1 <= value < 1 << 31 else -1


def _with_periods(profile: StackProfile, measured: set[str]) -> StackProfile:
    """Add the usual value of one sample of each event; not of `measured` ones, whose weights are durations."""
    counted = profile.events.filter(~pl.col("unit").is_in(["samples", LOST]) & ~pl.col("name").is_in(measured))["event"]
    usual = (
        profile.samples.filter(pl.col("event").is_in(counted.implode()))
        .group_by("event")
        .agg(pl.col("weight").median())
    )
    periods = profile.events.join(usual, on="event", how="left", maintain_order="left")
    events = periods.with_columns(pl.col("weight").fill_null(0.0).alias("period")).select(profile.events.columns)
    return StackProfile({**profile.tables, "events": events}, profile.source, profile.clock, profile.notes)


FORMAT = Format("perf_script", lambda head: Match.LIKELY if is_perf_script(head.lines) else Match.NO, read)
