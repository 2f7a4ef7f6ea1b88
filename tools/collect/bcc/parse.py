"""What stock BCC tools print, as numbers.

The text is a stranger's: names in it come from whoever may call a thread, a file or a handler anything. Whatever does
not look as it must is counted as odd and left out, never guessed at.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from whystall.tools.contract.text import clean

UNITS = {"nsecs": 1, "usecs": 1_000, "msecs": 1_000_000}
ENTRIES = 64
"""Room of a histogram of BCC that has a key beside its slot (BPF_HIST2 in helpers.h); what is more is dropped."""
_MOST = 1 << 62
_TIME = re.compile(r"[0-2][0-9]:[0-5][0-9]:[0-6][0-9]")
_UNIT = re.compile(r" {5,}(nsecs|usecs|msecs) +: count +distribution")
_SLOT = re.compile(r" *([0-9]{1,19}) -> ([0-9]{1,19}) *: ([0-9]{1,19}) *\|[* +]*\|")
_TOTAL_HEAD = re.compile(r"(?:SOFTIRQ|HARDIRQ) +TOTAL_(nsecs|usecs)")
_TOTAL = re.compile(r"(.*?) +([0-9]{1,19})")


class Slot(NamedTuple):
    """Latencies of `low_ns` <= latency < `high_ns`."""

    low_ns: int
    high_ns: int


@dataclass
class Histograms:
    """Counts per section (a disk; empty where there are none) and slot. `full`: of some second, not all had room."""

    counts: dict[str, Counter[Slot]] = field(default_factory=dict)
    full: bool = False


@dataclass
class Totals:
    """Time in handlers by name, nanoseconds. `full`: more handlers than had room."""

    total_ns: Counter[str] = field(default_factory=Counter)
    full: bool = False


class Seconds:
    """Output that comes once per second, each time under the time of day (the option -T).

    `forget` drops what was told so far; the second that has begun already is then left out if `skip_next`, and
    `late_s` says how much of it lay behind `forget`.
    """

    def __init__(self, take: Callable[[list[str]], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._take, self._clock = take, clock
        self._block: list[str] | None = None
        self._skip = False
        self._forgot = 0.0
        self.odd = 0
        self.told = 0
        self.late_s = 0.0

    def feed(self, line: str) -> None:
        """Take in one line."""
        if _TIME.fullmatch(line):
            self.end()
            self._block = []
            if self._skip:
                self.late_s = self._clock() - self._forgot
        elif self._block is None:
            self.odd += bool(line.strip())
        elif line.strip():
            self._block.append(line)

    def end(self) -> None:
        """There is no more: the last block is whole."""
        block, self._block = self._block, None
        if block is None:
            return
        if self._skip:
            self._skip = False
            return
        self.told += 1
        self.odd += self._take(block)

    def forget(self, skip_next: bool) -> None:
        """What was told so far was before; `skip_next`: and what is told next is so in part."""
        self._block, self._skip, self.odd, self.told, self.late_s = None, skip_next, 0, 0, 0.0
        self._forgot = self._clock()


def histograms(block: list[str], into: Histograms, section: str = "") -> int:
    """Add one second of histograms to `into`; how many lines were odd. `section`: the word before `` = ``."""
    name, unit, odd, entries = "", 0, 0, 0
    head = f"{section} = "
    for line in block:
        if section and line.startswith(head):
            name, unit = _name(line.removeprefix(head)), 0
        elif match := _UNIT.fullmatch(line):
            unit = UNITS[match[1]]
        elif (match := _SLOT.fullmatch(line)) and unit and (slot := _slot(match, unit)):
            count = int(match[3])
            if count:
                entries += 1
                into.counts.setdefault(name, Counter())[slot] += min(count, _MOST)
        else:
            odd += 1
    into.full |= bool(section) and entries >= ENTRIES
    return odd


def _slot(match: re.Match[str], unit: int) -> Slot | None:
    low, high = int(match[1]), int(match[2])
    return Slot(low * unit, (high + 1) * unit) if low <= high < _MOST // unit else None


def _name(text: str) -> str:
    """A name as Python prints bytes (``b'sda'``) or text; what is no name is called unknown."""
    if match := re.fullmatch(r"b'(.*)'|b\"(.*)\"", text):
        text = match[1] or match[2] or ""
    return clean(text, 64) or "<unknown>"


def totals(block: list[str], into: Totals) -> int:
    """Add one second of ``NAME TOTAL`` lines to `into`; how many lines were odd."""
    unit, odd, entries = 0, 0, 0
    for line in block:
        if match := _TOTAL_HEAD.fullmatch(line):
            unit = UNITS[match[1]]
        elif (match := _TOTAL.fullmatch(line)) and unit and match[1] and int(match[2]) < _MOST // unit:
            entries += 1
            into.total_ns[clean(match[1], 64)] += int(match[2]) * unit
        else:
            odd += 1
    into.full |= entries >= ENTRIES
    return odd


class SlowCall(NamedTuple):
    """A line of fileslower. `end_s`: since it began to print; `name`: the last part of the path, perhaps cut."""

    end_s: float
    comm: str
    tid: int
    operation: str
    asked: int
    latency_ns: int
    name: str


_SLOW_REST = re.compile(r"([0-9]{1,10}) +([RW]) ([0-9]{1,19}) +([0-9]{1,12}\.[0-9]{2}) (.*)", re.DOTALL)
_SLOW_TIME = re.compile(r"[0-9]{1,9}\.[0-9]{3}")
_COMM = 14  # what fileslower shows of a name


def slow_call(line: str) -> SlowCall | None:
    """One line of fileslower; None for one that is none. Its columns are fixed, since a thread may be called anything:
    ``%-8.3f %-14.14s %-6s %1s %-7s %7.2f %s``.
    """
    when = _SLOW_TIME.match(line)
    if when is None:
        return None
    start = max(8, when.end()) + 1
    rest = _SLOW_REST.fullmatch(line[start + _COMM + 1 :])
    if rest is None or line[when.end() : start].strip() or line[start + _COMM] != " ":
        return None
    asked = int(rest[3])
    if asked >= _MOST or not rest[5]:
        return None
    return SlowCall(
        end_s=float(when[0]),
        comm=clean(line[start : start + _COMM].rstrip()),
        tid=int(rest[1]),
        operation={"R": "read", "W": "write"}[rest[2]],
        asked=asked,
        latency_ns=int(float(rest[4]) * 1e6),
        name=clean(rest[5]),
    )


class Wait(NamedTuple):
    """A stanza of offcputime: frames from the innermost outward, where they were told."""

    kernel: tuple[str, ...]
    user: tuple[str, ...]
    comm: str
    tid: int
    total_ns: int


_FRAMES = 127  # PERF_MAX_STACK_DEPTH, of each kind
_WHO = re.compile(r" {4}- {16}(.*) \(([0-9]{1,10})\)")
_MICROSECONDS = re.compile(r" {8}([0-9]{1,17})")
_DELIMITER = "    --"


class Waits:
    """Stanzas of ``offcputime -d``: kernel frames, a delimiter, user frames, who, how long."""

    def __init__(self) -> None:
        self.found: list[Wait] = []
        self.odd = 0
        self.missed = 0
        self._frames: list[str] = []
        self._who: tuple[str, int] | None = None

    def feed(self, line: str) -> None:
        """Take in one line."""
        if self._who is not None:
            match = _MICROSECONDS.fullmatch(line)
            if match:
                self._wait(*self._who, int(match[1]) * 1000)
            else:
                self.odd += 1
            self._frames, self._who = [], None
        elif match := _WHO.fullmatch(line):
            self._who = (clean(match[1]), int(match[2]))
        elif line.startswith("    ") and len(self._frames) <= 2 * _FRAMES:
            self._frames.append(line)
        elif line.strip():
            self.odd += 1

    def _wait(self, comm: str, tid: int, total_ns: int) -> None:
        frames = self._frames
        at = frames.index(_DELIMITER) if _DELIMITER in frames else len(frames)
        if at == len(frames) and not any(_of_kernel(frame.strip()) for frame in frames):
            at = 0  # no delimiter: only one of the two is there
        behind = at + 1 if frames[at : at + 1] == [_DELIMITER] else at
        kernel, user = self._told(frames[:at]), self._told(frames[behind:])
        self.found.append(Wait(kernel, user, comm, tid, total_ns))

    def _told(self, frames: list[str]) -> tuple[str, ...]:
        told = [frame.strip() for frame in frames]
        self.missed += sum(frame in ("[Missed Kernel Stack]", "[Missed User Stack]") for frame in told)
        return tuple(clean(frame) for frame in told if not frame.startswith("[Missed "))


def _of_kernel(frame: str) -> bool:
    """The frames through which every switch goes."""
    return frame.startswith(("finish_task_switch", "__schedule", "schedule"))


_SYSCALL = re.compile(r"__(?:x64|arm64|ia32|se|do)_sys_(\w+)|ksys_(\w+)")
# Names in the kernel's own code that differ from the system call's.
_RENAMED = {"newstat": "stat", "newlstat": "lstat", "newfstat": "fstat", "newuname": "uname"}
_PREEMPTED = re.compile(
    r"preempt_schedule\w*|__cond_resched|_cond_resched|exit_to_user_mode\w*|irqentry_exit\w*|prepare_exit_to_usermode"
    r"|syscall_exit_to_user_mode\w*|ret_from_intr|retint_user"
)


def system_call(kernel: tuple[str, ...]) -> str:
    """The system call that a kernel stack is in; empty where no frame of it tells."""
    for frame in reversed(kernel):
        if match := _SYSCALL.fullmatch(frame):
            name = match[1] or match[2]
            return _RENAMED.get(name, name)
    return ""


def state(kernel: tuple[str, ...]) -> str:
    """The state a thread left the CPU in, where its stack tells: D below io_schedule, which waits for nothing else
    (kernel/sched/core.c), R where it was on its way out or gave way; else empty.
    """
    if any(frame.startswith("io_schedule") for frame in kernel):
        return "D"
    inner = [frame for frame in kernel if not frame.startswith(("finish_task_switch", "__schedule"))][:2]
    return "R" if any(_PREEMPTED.fullmatch(frame) for frame in inner[:2]) else ""


_CACHE = re.compile(r" *([0-9]{1,18}) +([0-9]{1,18}) +([0-9]{1,18}) +[0-9]{1,3}\.[0-9]{2}% +[0-9]+ +[0-9]+")


class CacheCounts(NamedTuple):
    """A second of cachestat, in pages."""

    hits: int
    misses: int


def cache_counts(line: str) -> CacheCounts | None:
    """One line of cachestat; None for one that is none."""
    match = _CACHE.fullmatch(line)
    return CacheCounts(int(match[1]), int(match[2])) if match else None
