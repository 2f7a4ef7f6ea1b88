"""Read the records of a continuous recording as they arrive: the waits that ended, and what later records refer to.

Of each record only the members needed here are unpacked; all stay raw for the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple

from whystall.bpf import capture as cap
from whystall.bpf import layout as lay
from whystall.bpf import python_code, syscalls
from whystall.bpf.ring import HEAD, records
from whystall.tools.collect.slice_samples import SliceSamples
from whystall.tools.collect.slice_waits import SliceWaits
from whystall.tools.contract.text import clean
from whystall.tools.stacks.libraries import is_library, short_path

_MOST_CODE_BYTES = 16 << 20
_MOST_PLACES = 1 << 16
_FRAMES = 3
# flags, start, end, run_ns, tgid, tid, nr, off_class, kstack, ustack, pystack, wake_context
_SEGMENT = struct.Struct("<4xIQQQIIiI24xQQQ32xI").unpack_from
_CODE_KEY = struct.Struct("<4xIQ").unpack_from  # tgid, id
_SLEEPS = frozenset(nr for nr, name in syscalls.names().items() if name in ("nanosleep", "clock_nanosleep"))
_TIMER = lay.WAKE_CONTEXTS.index("timer")
_STACK_KEY = struct.Struct("<4xHHQ").unpack_from  # depth, kind, id


@dataclass(frozen=True)
class Waits:
    """Waits that ended, one row per time off the CPU of a target's thread, in columns.

    Times by CLOCK_MONOTONIC, ns. `place`: a stable number of where it waited: the system call, and the innermost Python
    frames with their lines if known, else the native stack. `runnable_ns`: part of it without a CPU. `state`:
    ``layout.OFF_...``. `timed`: a sleep, or a timer ended it.
    """

    tgid: list[int] = field(default_factory=list)
    tid: list[int] = field(default_factory=list)
    place: list[int] = field(default_factory=list)
    start_ns: list[int] = field(default_factory=list)
    end_ns: list[int] = field(default_factory=list)
    runnable_ns: list[int] = field(default_factory=list)
    state: list[int] = field(default_factory=list)
    timed: list[bool] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tgid)


class OpenWait(NamedTuple):
    """A wait in progress. `place`: as in `Waits`; `start_ns`: CLOCK_MONOTONIC."""

    place: int
    start_ns: int


class Codes:
    """The records of code objects by process and number, at most 16 MiB."""

    def __init__(self) -> None:
        self._records: dict[tuple[int, int], bytes] = {}
        self._bytes = 0

    def add(self, record: bytes) -> None:
        """Keep a record."""
        key = _CODE_KEY(record)
        self._bytes += len(record) - len(self._records.get(key, b""))
        self._records[key] = record

    @property
    def full(self) -> bool:
        """Whether there is no room for more."""
        return self._bytes >= _MOST_CODE_BYTES

    def forget(self, pids: Iterable[int] | None = None) -> None:
        """Remove those of processes `pids`; None: all."""
        gone = None if pids is None else set(pids)
        kept = {} if gone is None else {key: one for key, one in self._records.items() if key[0] not in gone}
        self._records = kept
        self._bytes = sum(map(len, kept.values()))

    def framed(self) -> bytes:
        """Return all records, as `records` reads them."""
        return framed(self._records.values())

    def code(self, tgid: int, word: int) -> python_code.Code:
        """Return the code object of a word of a Python stack; `python_code.UNKNOWN` without a record."""
        record = self._records.get(python_code.key_of(word, tgid))
        return python_code.decode(record)[1] if record is not None else python_code.UNKNOWN


class Scan:
    """What is known of the records so far."""

    def __init__(self) -> None:
        self.codes = Codes()
        self.followed: list[cap.Followed] = []
        """Processes that are newly followed; the caller removes them."""
        self.wakers: set[int] = set()
        """Followed processes whose waits are not reported."""
        self.events = 0
        """Records since the start."""
        self.in_progress: dict[int, OpenWait] = {}
        """The waits of the targets' threads that went on at the end of the last slice, by thread."""
        self._going_on: dict[int, OpenWait] = {}
        self._origin: dict[int, tuple[int, int, int]] = {}  # of a place: system call, process, Python stack
        self.details = SliceWaits()
        self.ran = SliceSamples()
        self._stacks: dict[int, bytes] = {}
        self._before: dict[int, bytes] = {}  # those of the slice before: some waits still name them
        self._open: set[int] = set()
        self._places: dict[tuple[int, int, int], int] = {}
        self._lines: dict[tuple[int, int], str] = {}

    def read(self, taken: bytes, waits: Waits) -> None:
        """Read the records `taken`, and add the waits that ended to `waits`."""
        for at, size in records(taken):
            self.events += 1
            kind = taken[at]
            if kind == lay.RECORD_SEGMENT:
                self._segment(taken, at, waits)
            elif kind == lay.RECORD_SAMPLE:
                self.ran.sample(taken, at)
            elif kind == lay.RECORD_STACK:
                self._stacks[_STACK_KEY(taken, at)[2]] = taken[at : at + size]
            elif kind == lay.RECORD_CODE:
                self.codes.add(taken[at : at + size])
            elif kind == lay.RECORD_FILE:
                self.details.file(taken[at : at + size])
            elif kind == lay.RECORD_FOLLOWED:
                found = cap.followed(taken[at : at + size])
                self.followed.append(found)
                self.wakers.add(found.tgid)

    def add_stacks(self, found: Iterable[tuple[int, cap.Stack]]) -> None:
        """Add stacks that user space has read."""
        for number, stack in found:
            self._stacks[number] = _stack_record(number, stack)

    def free(self) -> None:
        """Forget what can be found again."""
        self._places.clear()
        self._origin.clear()
        self._lines.clear()

    def carry(self, start_ns: int = 0) -> bytes:
        """Begin a new slice at `start_ns`; return the stacks of the waits in progress, as `records` reads them."""
        known = self._before | self._stacks
        self._before, self._stacks = self._stacks, {one: known[one] for one in self._open if one in known}
        self._open = set()
        self.in_progress, self._going_on = self._going_on, {}
        self.details.begin(start_ns)
        self.ran.begin()
        return framed(self._stacks.values())

    def _segment(self, taken: bytes, at: int, waits: Waits) -> None:
        flags, start, end, run_ns, tgid, tid, nr, state, kstack, ustack, pystack, woken = _SEGMENT(taken, at)
        if tgid not in self.wakers:
            self.details.segment(taken, at)
        if flags & lay.RECORD_OPEN:
            self._open |= {kstack, ustack, pystack}
            if tgid not in self.wakers and not flags & lay.RECORD_KTHREAD:
                self._going_on[tid] = OpenWait(self._place(nr, tgid, pystack, ustack or kstack), start)
            return
        if tgid in self.wakers or flags & lay.RECORD_KTHREAD:
            return
        waits.tgid.append(tgid)
        waits.tid.append(tid)
        waits.place.append(self._place(nr, tgid, pystack, ustack or kstack))
        waits.start_ns.append(start)
        waits.end_ns.append(end)
        waits.runnable_ns.append(run_ns)
        waits.state.append(state)
        waits.timed.append(woken == _TIMER or nr in _SLEEPS)

    def _place(self, nr: int, tgid: int, pystack: int, native: int) -> int:
        key = (nr, tgid, pystack or native)
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
                self._origin.clear()
            text = self._python(tgid, pystack) or str(native)
            digest = blake2b(f"{nr} {text}".encode("utf-8", "backslashreplace"), digest_size=8).digest()
            place = self._places[key] = int.from_bytes(digest, "little") >> 1  # a signed column
            self._origin[place] = nr, tgid, pystack
        return place

    def call_and_line(self, place: int) -> tuple[int, str]:
        """Return the number of the system call of a place, negative outside of one, and the program's line, empty if
        unknown."""
        nr, tgid, pystack = self._origin.get(place, (-1, 0, 0))
        return nr, self.line(tgid, pystack)

    def line(self, tgid: int, pystack: int) -> str:
        """Return the innermost line of the program in a Python stack, of a library without one: ``load (train.py:7)``;
        empty if unknown."""
        key = tgid, pystack
        if pystack and key not in self._lines:
            frames = self._frames(tgid, pystack)
            known = [(code.name, short_path(code.file), line) for code, line in frames]
            place = next((one for one in known if not is_library(one[1])), known[0] if known else None)
            if place is None:
                return ""  # the stack may come yet
            if len(self._lines) >= _MOST_PLACES:
                self._lines.clear()
            self._lines[key] = clean(f"{place[0]} ({place[1]}:{place[2]})")
        return self._lines.get(key, "")

    def _python(self, tgid: int, pystack: int) -> str:
        """Return the innermost frames of a Python stack as text; empty if unknown."""
        frames = islice(self._frames(tgid, pystack), _FRAMES)
        return " ".join(f"{code.file}:{line}:{code.name}" for code, line in frames)

    def _frames(self, tgid: int, pystack: int) -> Iterator[tuple[python_code.Code, int]]:
        """Yield the code and line of each frame of a Python stack, innermost first."""
        for word in self._words(pystack):
            if not python_code.is_call(word):
                code = self.codes.code(tgid, word)
                yield code, code.line((word & lay.FRAME_INSTRUCTION) - 1)

    def _words(self, pystack: int) -> tuple[int, ...]:
        record = self._stacks.get(pystack) or self._before.get(pystack)
        return cap.stack(record)[1].addresses if record is not None else ()

    def accelerator_call(self, pystack: int) -> str:
        """Return the function of an accelerator's library in a Python stack: ``GPU: wait for stream
        (cuStreamSynchronize)``; empty without one."""
        words = self._words(pystack)
        return clean(self.codes.code(0, words[-1]).name) if words and python_code.is_call(words[-1]) else ""


def framed(found: Iterable[bytes]) -> bytes:
    """Return records in a row, as `records` reads them."""
    made = bytearray()
    for record in found:
        made += len(record).to_bytes(HEAD, "little")
        made += record.ljust(len(record) + 7 & ~7, b"\0")
    return bytes(made)


def _stack_record(number: int, stack: cap.Stack) -> bytes:
    depth = len(stack.addresses)
    return struct.pack(f"<IHHQ{depth}Q", lay.RECORD_STACK, depth, stack.kind, number, *stack.addresses)


def split(taken: bytes) -> Iterator[bytes]:
    """Yield each record of `taken`."""
    for at, size in records(taken):
        yield taken[at : at + size]
