"""Read the text of ``perf script``: a line per sample, its frames below, the innermost first, and an empty line.

python3 32600 15496.972026:    5025125 cpu-clock:
                   fc2f5 _PyEval_EvalFrameDefault+0x1785 (/usr/lib/libpython3.11.so.1.0)
            7f904ffbd640 [unknown] ([unknown])

Any selection of fields (``-F``) is read; their order is fixed (tools/perf/builtin-script.c, `process_event`). Stacks
repeat: the callers of the innermost frame are looked up as one text, then line by line; only new lines are parsed.
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
_COMM = r"(?P<comm>\S.*?)(?<=\S)\s+"
_IDS = r"(?P<pid>-?[0-9]{1,10})(?:/\s*(?P<tid>-?[0-9]{1,10}))?"
_CPU = r"(?:\[(?P<cpu>[0-9]+)\]\s+)?"
_MISC = r"(?:[A-Za-z.][A-Za-z0-9.]{0,6}\s+(?=[0-9]+\.))?"  # flags of the context, and the field `misc`
_STAMP = r"[0-9]{1,10}\.[0-9]{3,9}:"
_TIME = r"(?P<s>[0-9]{1,10})\.(?P<fraction>[0-9]{3,9}):"
_PERIOD = r"(?:(?P<period>[0-9]{1,19}(?:\.[0-9]+)?(?:e[-+][0-9]{1,3})?)\s+)?"
_EVENT = rf"{_PERIOD}(?!{_STAMP})(?P<event>[^\s:]\S*?):(?:\s+(?P<rest>.*))?"
_HEAD = re.compile(rf"\s*{_COMM}{_IDS}\s+{_CPU}(?:{_MISC}{_TIME}\s+)?{_EVENT}")
# Without the fields of the thread or of the event; only where a frame follows, since other texts look like it.
_SHORT_HEAD = re.compile(
    rf"\s*(?:{_COMM})??(?:{_IDS}(?:\s+|$))?{_CPU}(?:{_MISC}{_TIME}\s*)?(?:{_EVENT}|(?P<only>[0-9]*))\s*"
)
_LONGEST_HEAD = 4096  # characters that are examined; arguments of tracepoints may be longer
_LOST = re.compile(
    r".*?(?:(?P<s>[0-9]{1,10})\.(?P<fraction>[0-9]{3,9}):\s+)?PERF_RECORD_LOST(?:_SAMPLES)?\D{0,64}(?P<count>[0-9]+)"
)
_ADDRESS = re.compile(r"[0-9a-f]{1,16}")
_FRAME = re.compile(r"\s+[0-9a-f]{1,16}(?: \S.*)?")
# A frame whose indentation was lost: `fc2f5 _PyEval_EvalFrameDefault+0x1785 (/usr/lib/libpython3.11.so.1.0)`.
_BARE_FRAME = re.compile(r"[0-9a-f]{1,16} +(?:\S.* \(.*\)|\S+)\s*")
_OFFSET = re.compile(r"\+0x[0-9a-f]+$")
# Additions of `-F +srcline` and `+srccode` below a frame.
_SOURCE = re.compile(r"\s+(?:\S+:[0-9]+|\S.*\[[0-9a-f]+\]|\|[0-9]+ .*|:0)(?: \(inlined\))?\s*")
# Branches (`-F +brstack`, `+brstacksym`: `0x7f12/0x7f34/P/-/-/0`), and registers (`-F +iregs`: `ABI:2 AX:0x0`).
_BRANCHES = re.compile(r"/[MPN-]{1,2}/[X-]/[A-]/[0-9]|^\s*ABI:[0-9]")
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
_REMEMBERED = 1_000_000  # lines
_STACKS_TEXT = 64 << 20  # characters of stacks that are remembered


class _Sample(NamedTuple):
    at_ns: int
    thread: int
    event: int
    weight: float


def is_perf_script(lines: list[str]) -> bool:
    """Return whether `lines`, the first of a file, are mostly samples and their frames."""
    reader = _Reader()
    reader.lines(lines)
    return reader.heads > 0 and reader.heads + reader.frames > reader.builder.odd


def read(path: Path) -> StackProfile:
    """Return the samples in `path`, as ``perf script`` writes them with its usual fields, more or fewer.

    Weights are periods if there are any (of the clocks: nanoseconds), else 1. A single number beside the command is its
    thread; a sample without an event is of the event ``samples``. Odd are lines that are neither sample nor frame.
    Raises `ToolError`: bad_trace, io_error.
    """
    text = Text(path)
    reader = _Reader()
    rest = ""
    for block in text.blocks():
        block = rest + block
        whole = block.rfind("\n\n") + 2
        if whole == 1:  # samples without call chains are not separated; the last line may be part of a sample
            whole = block.rfind("\n", 0, -1) + 1
        reader.text(block[:whole])
        rest = block[whole:]
    reader.text(rest)
    reader.finish()
    reader.builder.odd += text.odd
    profile = reader.builder.profile("perf_script")
    if profile.samples.is_empty():
        raise text.nothing("a sample of perf script")
    return _with_periods(profile, reader.measured)


class _Reader:
    def __init__(self) -> None:
        self.builder = Builder()
        self.heads = self.frames = 0
        self._sample: _Sample | None = None
        self._chain: list[int] = []  # frames, the innermost first
        self._callers: dict[str, int] = {}  # stacks by the text of their frames
        self._callers_text = 0
        self._threads: dict[tuple[str | None, ...], int] = {}
        self._events: dict[tuple[str | None, bool], int] = {}
        self._lines: dict[str, int] = {}  # frames by their line
        self._places: dict[str, int] = {}
        self._units: dict[str, str] = {}

    @property
    def measured(self) -> set[str]:
        """Events that are not perf's."""
        return {event for event in self._units if event not in _CLOCKS}

    def text(self, text: str) -> None:
        """Read whole lines; an empty line at their end ends a sample."""
        if not text.endswith("\n\n"):
            text = text.removesuffix("\n")
        for part in text.split("\n\n"):
            head, _, frames = part.partition("\n")
            stack = (
                self._stack(frames) if frames[:1] == "\t" and self._sample is None and head[:1] not in "\t#" else None
            )
            if stack is None or not self._head(head, frames):
                self.lines(part.split("\n"))
            else:
                self._add(stack)

    def lines(self, lines: list[str]) -> None:
        """Read lines one by one: of samples that do not have the usual form."""
        for number, line in enumerate(lines):
            start = line[:1]
            if not start or not line.strip():
                self.finish()
            elif start == "#":
                self._comment(line)
            elif "PERF_RECORD_" in line:
                self.finish()
                self._lost(line)
            elif start == "\t" or not self._head(line, lines[number + 1] if number + 1 < len(lines) else ""):
                self._frame(line)

    def finish(self) -> None:
        """Add the sample that was begun, if any."""
        sample, chain = self._sample, self._chain
        if sample is None:
            return
        if len(chain) > DEEPEST:
            self.builder.odd += 1
            self._sample = None
        else:
            self._add(self.builder.stack(reversed(chain)))
        self._chain = []

    def _add(self, stack: int) -> None:
        sample = self._sample
        if sample is not None:
            self.builder.sample(stack, sample.event, sample.weight, at_ns=sample.at_ns, thread=sample.thread)
        self._sample = None

    def _stack(self, frames: str) -> int | None:
        """Return the stack of these lines; None if not all of them are frames."""
        line, _, above = frames.partition("\n")
        callers = self._callers.get(above)
        if callers is None:
            lines = above.rstrip("\n").split("\n") if above else []
            chain = [self._frame_of(line) if line[:1] == "\t" else None for line in reversed(lines)]
            if None in chain or len(chain) >= DEEPEST:
                return None
            callers = self.builder.stack([frame for frame in chain if frame is not None and frame >= 0])
            self._callers_text += len(above)
            if self._callers_text > _STACKS_TEXT:
                self._callers.clear()
                self._callers_text = 0
            self._callers[above] = callers
        frame = self._frame_of(line)
        return callers if frame == -1 else None if frame is None else self.builder.call(callers, frame)

    def _head(self, line: str, below: str) -> bool:
        """Begin a sample if `line` is its head and not a frame: heads without call chains are indented too, and end
        with their only frame."""
        text = line[:_LONGEST_HEAD]
        head = _HEAD.fullmatch(text)
        if head is None or (head["s"] is None and not _untimed(line, head)):
            if not _FRAME.fullmatch(below.partition("\n")[0]) or _FRAME.fullmatch(line) or _SOURCE.fullmatch(line):
                return False
            head = _SHORT_HEAD.fullmatch(text)
            if head is None or not (head["s"] or head["pid"] or head["event"]):
                return False
        self.finish()
        self._begin(head)
        return True

    def _begin(self, head: re.Match[str]) -> None:
        who, what = head.group("comm", "pid", "tid"), (head["event"], head["period"] is None)
        thread = self._threads.get(who)
        if thread is None:
            comm, pid, tid = who
            pid, tid = (pid, tid) if tid else ("-1", pid or "-1")
            thread = self._threads[who] = self.builder.thread(_number(pid), _number(tid), comm or "")
        event = self._events.get(what)
        if event is None:
            event = self._events[what] = self._event(*what)
        self._sample = _Sample(_instant(head), thread, event, float(head["period"] or 1))
        self.heads += 1
        rest = head["rest"]
        if not rest:
            return
        if branch := _BRANCHES.search(rest):
            rest = rest[: rest.rfind(") ", 0, branch.start()) + 1]
        if rest.endswith(")"):  # without call chains the only frame stands here; of a tracepoint its arguments do
            frame = self._frame_of(rest)
            self._chain = [frame] if frame is not None and frame >= 0 else []

    def _event(self, name: str | None, counted: bool) -> int:
        """Return the number of an event; `counted`: its samples have no period."""
        event = hybrid["event"] if (hybrid := _HYBRID.fullmatch(name or "")) else name or "samples"
        plain, _, modifiers = event.partition(":")
        if plain in _CLOCKS and _PRECISE.issuperset(modifiers):
            event = plain
        usual = "ns" if plain in _CLOCKS else event
        return self.builder.event(event, "samples" if counted else self._units.get(event, usual))

    def _frame(self, line: str) -> None:
        bare = line[0] not in " \t"
        frame = self._frame_of(line) if self._sample is not None and (not bare or _BARE_FRAME.fullmatch(line)) else None
        if frame is not None:
            self.frames += 1
            if frame >= 0:
                self._chain.append(frame)
        elif self._sample is None or not (_SOURCE.fullmatch(line) or _BRANCHES.search(line)):
            self.builder.odd += 1
            if bare:
                self.finish()

    def _frame_of(self, line: str) -> int | None:
        """Return the frame of a line; -1: the unwinder's end, which is no frame; None: the line is something else."""
        frame = self._lines.get(line)
        if frame is not None:
            return frame
        address, _, place = line.strip().partition(" ")
        if not _ADDRESS.fullmatch(address):
            return None
        place = place.strip()
        if address == "0" or address == "f" * 16:
            frame = -1
        else:
            high = len(address) == 16 and address.startswith("ffff")
            key = place or f"0x{address}"
            key = key + "\0" if high else key
            frame = self._places.get(key)
            if frame is None:
                if len(self._places) > _REMEMBERED:
                    self._places.clear()
                frame = self._places[key] = self.builder.frame(*_placed(place or f"0x{address}", high=high))
        if len(self._lines) > _REMEMBERED:
            self._lines.clear()
        self._lines[line] = frame
        return frame

    def _comment(self, line: str) -> None:
        if len(self._units) < _MOST_UNITS and (parsed := _WEIGHTS.fullmatch(line)):
            self._units[parsed["event"]] = parsed["unit"]

    def _lost(self, line: str) -> None:
        if found := _LOST.match(line):
            event = self.builder.event(LOST, LOST)
            self.builder.sample(NO_STACK, event, float(found["count"]), at_ns=_instant(found))


def _untimed(line: str, head: re.Match[str]) -> bool:
    """Return whether a head without an instant is one: it did not take an instant for a part of the command, and an
    indented one ends with its only frame."""
    if re.search(_STAMP, head["comm"]):
        return False
    return line[0] != " " or _FRAME.fullmatch(f" {head['rest']}") is not None


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
