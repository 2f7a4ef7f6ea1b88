"""Parse the output of stock BCC tools.

The text is not trusted: any user may choose the names of threads and files. A line that does not match exactly is
counted in `unparsed` and left out.
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
"""Capacity of a BCC histogram that has a key besides its slot (BPF_HIST2 in helpers.h); BCC drops the rest."""
_MOST = 1 << 62
_TIME = re.compile(r"[0-2][0-9]:[0-5][0-9]:[0-6][0-9]")
# disk = b'sda'                          (the section; only tools with one histogram per key)
#      usecs               : count     distribution
#         4 -> 7          : 1234     |*****               |
_UNIT = re.compile(r" {5,}(nsecs|usecs|msecs) +: count +distribution")
_SLOT = re.compile(r" *([0-9]{1,19}) -> ([0-9]{1,19}) *: ([0-9]{1,19}) *\|[* +]*\|")
# HARDIRQ                    TOTAL_nsecs
# virtio0-requests                 23941
_TOTAL_HEAD = re.compile(r"(?:SOFTIRQ|HARDIRQ) +TOTAL_(nsecs|usecs)")
_TOTAL = re.compile(r"(.*?) +([0-9]{1,19})")


class Slot(NamedTuple):
    """Latencies of `low_ns` <= latency < `high_ns`."""

    low_ns: int
    high_ns: int


@dataclass
class Histograms:
    """Counts per section (a disk; "" if the tool has none) and slot. `full`: in some second BCC's map was full."""

    counts: dict[str, Counter[Slot]] = field(default_factory=dict)
    full: bool = False


@dataclass
class Totals:
    """Time in handlers by name, in nanoseconds. `full`: in some second BCC's map was full."""

    total_ns: Counter[str] = field(default_factory=Counter)
    full: bool = False


class PerSecond:
    """Split output printed once per second into blocks, each below a line with the time of day (option -T).

    `take` parses a block and returns how many lines it could not parse. `restart` drops the output so far; with
    `skip_next` it drops the next block too, of which `skipped_s` seconds lay after `restart`.
    """

    def __init__(self, take: Callable[[list[str]], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._take, self._clock = take, clock
        self._block: list[str] | None = None
        self._skip = False
        self._restarted_at = 0.0
        self.unparsed = 0
        self.skipped_s = 0.0

    def feed(self, line: str) -> None:
        """Add one line."""
        if _TIME.fullmatch(line):
            self.end()
            self._block = []
            if self._skip:
                self.skipped_s = self._clock() - self._restarted_at
        elif self._block is None:
            self.unparsed += bool(line.strip())
        elif line.strip():
            self._block.append(line)

    def end(self) -> None:
        """End the current block."""
        block, self._block = self._block, None
        if block is None:
            return
        if self._skip:
            self._skip = False
            return
        self.unparsed += self._take(block)

    def restart(self, skip_next: bool) -> None:
        """Drop the output so far, and the next block if `skip_next`."""
        self._block, self._skip, self.unparsed, self.skipped_s = None, skip_next, 0, 0.0
        self._restarted_at = self._clock()


def histograms(block: list[str], into: Histograms, section: str = "") -> int:
    """Add one second of histograms to `into`; return the number of unparsed lines.

    `section`: the word before `` = ``.
    """
    name, unit, unparsed, entries = "", 0, 0, 0
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
            unparsed += 1
    into.full |= bool(section) and entries >= ENTRIES
    return unparsed


def _slot(match: re.Match[str], unit: int) -> Slot | None:
    low, high = int(match[1]), int(match[2])
    return Slot(low * unit, (high + 1) * unit) if low <= high < _MOST // unit else None


def _name(text: str) -> str:
    """Return a name printed by Python as bytes (``b'sda'``) or as text."""
    if match := re.fullmatch(r"b'(.*)'|b\"(.*)\"", text):
        text = match[1] or match[2] or ""
    return clean(text, 64) or "<unknown>"


def totals(block: list[str], into: Totals) -> int:
    """Add one second of ``NAME TOTAL`` lines to `into`; return the number of unparsed lines."""
    unit, unparsed, entries = 0, 0, 0
    for line in block:
        if match := _TOTAL_HEAD.fullmatch(line):
            unit = UNITS[match[1]]
        elif (match := _TOTAL.fullmatch(line)) and unit and match[1] and int(match[2]) < _MOST // unit:
            entries += 1
            into.total_ns[clean(match[1], 64)] += int(match[2]) * unit
        else:
            unparsed += 1
    into.full |= entries >= ENTRIES
    return unparsed


class SlowCall(NamedTuple):
    """A line of fileslower. `end_s`: since it began to print; `name`: last part of the path, possibly truncated."""

    end_s: float
    comm: str
    tid: int
    operation: str
    asked: int
    latency_ns: int
    name: str


_SLOW_REST = re.compile(r"([0-9]{1,10}) +([RW]) ([0-9]{1,19}) +([0-9]{1,12}\.[0-9]{2}) (.*)", re.DOTALL)
_SLOW_TIME = re.compile(r"[0-9]{1,9}\.[0-9]{3}")
_COMM = 14  # characters of a thread's name that fileslower prints


def slow_call(line: str) -> SlowCall | None:
    """Parse one line of fileslower; return None if it does not match.

    Split by column (``%-8.3f %-14.14s %-6s %1s %-7s %7.2f %s``), since a thread's name may contain spaces::

        5.000    python3        77     W 4096      250.00 chk_1.bin
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
    """A stanza of offcputime; frames from the innermost outward, empty if it printed none."""

    kernel: tuple[str, ...]
    user: tuple[str, ...]
    comm: str
    tid: int
    total_ns: int


_FRAMES = 127  # PERF_MAX_STACK_DEPTH, of each kind
_THREAD = re.compile(r" {4}- {16}(.*) \(([0-9]{1,10})\)")
_MICROSECONDS = re.compile(r" {8}([0-9]{1,17})")
_DELIMITER = "    --"


class Waits:
    """Parse stanzas of ``offcputime -d``: kernel frames, a delimiter, user frames, the thread, microseconds::

    finish_task_switch
    schedule
    pipe_read
    --
    read
    -                python3 (4711)
        1000412
    """

    def __init__(self) -> None:
        self.found: list[Wait] = []
        self.unparsed = 0
        self.missed = 0
        self._frames: list[str] = []
        self._thread: tuple[str, int] | None = None

    def feed(self, line: str) -> None:
        """Add one line."""
        if self._thread is not None:
            match = _MICROSECONDS.fullmatch(line)
            if match:
                self._add(*self._thread, int(match[1]) * 1000)
            else:
                self.unparsed += 1
            self._frames, self._thread = [], None
        elif match := _THREAD.fullmatch(line):
            self._thread = (clean(match[1]), int(match[2]))
        elif line.startswith("    ") and len(self._frames) <= 2 * _FRAMES:
            self._frames.append(line)
        elif line.strip():
            self.unparsed += 1

    def _add(self, comm: str, tid: int, total_ns: int) -> None:
        frames = self._frames
        at = frames.index(_DELIMITER) if _DELIMITER in frames else len(frames)
        if at == len(frames) and not any(_of_kernel(frame.strip()) for frame in frames):
            at = 0  # no delimiter: only user frames
        after = at + 1 if frames[at : at + 1] == [_DELIMITER] else at
        kernel, user = self._cleaned(frames[:at]), self._cleaned(frames[after:])
        self.found.append(Wait(kernel, user, comm, tid, total_ns))

    def _cleaned(self, frames: list[str]) -> tuple[str, ...]:
        frames = [frame.strip() for frame in frames]
        self.missed += sum(frame in ("[Missed Kernel Stack]", "[Missed User Stack]") for frame in frames)
        return tuple(clean(frame) for frame in frames if not frame.startswith("[Missed "))


def _of_kernel(frame: str) -> bool:
    """Return whether every context switch passes through `frame`."""
    return frame.startswith(("finish_task_switch", "__schedule", "schedule"))


_SYSCALL = re.compile(r"__(?:x64|arm64|ia32|se|do)_sys_(\w+)|ksys_(\w+)")
# Names of kernel functions that differ from those of the system calls.
_RENAMED = {"newstat": "stat", "newlstat": "lstat", "newfstat": "fstat", "newuname": "uname"}
_PREEMPTED = re.compile(
    r"preempt_schedule\w*|__cond_resched|_cond_resched|exit_to_user_mode\w*|irqentry_exit\w*|prepare_exit_to_usermode"
    r"|syscall_exit_to_user_mode\w*|ret_from_intr|retint_user"
)


def system_call(kernel: tuple[str, ...]) -> str:
    """Return the system call of a kernel stack, by a frame such as ``__x64_sys_read``; empty if there is none."""
    for frame in reversed(kernel):
        if match := _SYSCALL.fullmatch(frame):
            name = match[1] or match[2]
            return _RENAMED.get(name, name)
    return ""


def state(kernel: tuple[str, ...]) -> str:
    """Return the state in which a thread left the CPU, as far as its stack shows it: D below io_schedule
    (kernel/sched/core.c), R if it was preempted; else empty."""
    if any(frame.startswith("io_schedule") for frame in kernel):
        return "D"
    inner = [frame for frame in kernel if not frame.startswith(("finish_task_switch", "__schedule"))][:2]
    return "R" if any(_PREEMPTED.fullmatch(frame) for frame in inner[:2]) else ""


#     HITS   MISSES  DIRTIES HITRATIO   BUFFERS_MB  CACHED_MB
#      900      100        7   90.00%            3        382
_CACHE = re.compile(r" *([0-9]{1,18}) +([0-9]{1,18}) +([0-9]{1,18}) +[0-9]{1,3}\.[0-9]{2}% +[0-9]+ +[0-9]+")


class CacheCounts(NamedTuple):
    """A second of cachestat, in pages."""

    hits: int
    misses: int


def cache_counts(line: str) -> CacheCounts | None:
    """Parse one line of cachestat; return None if it does not match."""
    match = _CACHE.fullmatch(line)
    return CacheCounts(int(match[1]), int(match[2])) if match else None
