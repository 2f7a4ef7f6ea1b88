"""Record calls of functions in running programs and libraries: load, start, poll, stop, read, close.

A probe is a breakpoint in the file's code (a uprobe): every process that runs the file meets it, also those that are
not targets. That costs each call about 0.6 us where the kernel can emulate the instruction, up to 15 us in a virtual
machine where it must step through a copy. So it is measured, and probes are removed if they would slow the programs
down. They are file descriptors: they go when this process ends, however it ends. Every event is a record of one size
(`layout.FunctionRecord`).

Nothing is attached to returns of C++ functions: for a return the kernel replaces the return address on the stack, an
exception then finds no caller to unwind to, and the program would be terminated.
"""

from __future__ import annotations

import ctypes as ct
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from whystall.bpf import layout as lay
from whystall.bpf.attached import AttachedObject
from whystall.bpf.elf_symbols import functions_named
from whystall.bpf.errors import BpfError
from whystall.bpf.libbpf import KernelTypes, Object, library
from whystall.bpf.perf_events import uprobes_refused
from whystall.bpf.regular_files import open_regular
from whystall.bpf.ring import HEAD, BulkRing
from whystall.bpf.symbols import executed_files

RECORD_BYTES = HEAD + 56
"""Size of a record: 8 bytes of the ring buffer's header, then `layout.FunctionRecord`."""
_NUMBER_AT = HEAD + lay.FunctionRecord.function.offset
_OWN_CALLS = 100
# Functions of libbpf that do nothing, and whether the kernel can emulate their first instruction as they are compiled.
_OWN_FUNCTIONS = ("libbpf_get_error", "libbpf_major_version")
_LANDING_PAD = b"\xf3\x0f\x1e\xfa"  # endbr64, which it cannot
_Attached = TypeVar("_Attached")
_NO_FUNCTION = (1 << lay.FUNCTION_BITS) - 1


class Value(NamedTuple):
    """What to record of an argument: itself, or the word `at` bytes behind where it points, or the word `then` bytes
    behind where that points. `argument`: 0 to 6; offsets are multiples of 8, `at` up to 248, `then` up to 56."""

    argument: int
    at: int | None = None
    then: int | None = None

    def encoded(self) -> int:
        """Return its bits of a cookie. Raises ``ValueError`` if it does not fit."""
        at, then = self.at or 0, self.then or 0
        if at % 8 or then % 8 or at >> 3 >= 1 << lay.LOAD_BITS or then >> 3 >= 1 << lay.NEXT_BITS:
            raise ValueError(f"{self} cannot be recorded")
        if not 0 <= self.argument < lay.ARGUMENT_NONE or (self.at is None and self.then is not None):
            raise ValueError(f"{self} cannot be recorded")
        second = (self.then is not None) | then >> 3 << 1
        first = (self.at is not None) | at >> 3 << 1 | second << 1 + lay.LOAD_BITS
        return self.argument | first << lay.ARGUMENT_BITS


class Probe(NamedTuple):
    """A function to record: its file, and its offset there. `number`: of the function, up to 4094; `values`: at most
    four; `returns`: record returns too (see the module); `emulated`: see `place`."""

    path: str
    offset: int
    number: int
    values: tuple[Value | None, ...] = ()
    returns: bool = False
    emulated: bool = False

    @property
    def cookie(self) -> int:
        """Return what identifies its events."""
        bits = self.number
        for place in range(lay.VALUE_COUNT):
            value = self.values[place] if place < len(self.values) else None
            code = lay.ARGUMENT_NONE if value is None else value.encoded()
            bits |= code << lay.FUNCTION_BITS + place * lay.VALUE_BITS
        return bits


def place(path: str, offset: int) -> tuple[int, bool]:
    """Return where to probe the function at `offset` of a file, and whether the kernel emulates the instruction there:
    push, jmp, call and nop (arch/x86/kernel/uprobes.c). A landing pad at its begin is skipped."""
    try:
        with open(open_regular(path), "rb") as file:
            code = os.pread(file.fileno(), 8, offset)
    except OSError:
        return offset, False
    if os.uname().machine != "x86_64":
        return offset, False
    if code.startswith(_LANDING_PAD):
        offset, code = offset + len(_LANDING_PAD), code[len(_LANDING_PAD) :]
    first = code[1:2] if code[:1] == b"\x41" else code[:1]
    pushes = bool(first) and 0x50 <= first[0] <= 0x57
    return offset, pushes or code[:1] in (b"\xe8", b"\xe9", b"\xeb", b"\x90")


@dataclass(frozen=True)
class FunctionConfig:
    """What to record. `targets`: 1 to 1024 processes, without `self_tgid`; `most_share`: of the time of a process, on
    average, that probes may take: with more all are removed."""

    targets: frozenset[int]
    probes: Sequence[Probe]
    most_share: float = 0.05
    ring_bytes: int = 1 << 22
    max_bytes: int = 64 << 20
    """Memory for records in this process; all probes are removed if it is full."""
    self_tgid: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class FunctionCalls:
    """What was recorded; times are CLOCK_MONOTONIC nanoseconds. `records`: chunks of whole records, each of
    `RECORD_BYTES`, nearly in the order of time. `event_ns`: what an event costs the program, as measured: where the
    kernel steps, and where it emulates. `lost`: events that did not fit; `own`: calls of this process's own probes;
    `stopped`: when probes were removed early, 0: not; `refused`: probes that the kernel did not take, with the
    reason."""

    start: int
    end: int
    records: list[bytes]
    event_ns: tuple[float, float]
    lost: int
    own: int
    stopped: int
    refused: list[tuple[Probe, str]]


def unsupported() -> str | None:
    """Return why probes are not possible, or could not be told apart; None if they are. Raises ``BpfError``
    ``no_btf``, ``no_libbpf``."""
    with KernelTypes() as kernel:
        known = "BPF_FUNC_get_attach_cookie" in kernel.enum_names("bpf_func_id")
    if not known:
        return "the kernel is older than 5.15"
    return "uprobes are not permitted: this kernel requires CAP_SYS_ADMIN" if uprobes_refused() else None


class FunctionSession(AttachedObject):
    """See the module."""

    _ring: BulkRing | None

    def __init__(self, config: FunctionConfig) -> None:
        super().__init__()
        self.config = config
        self._chunks: list[bytes] = []
        self._bytes = 0
        self._stopped = 0
        self._since, self._spent_ns = 0.0, 0.0
        self._refused: list[tuple[Probe, str]] = []
        self._event_ns = (0.0, 0.0)

    def load(self) -> None:
        """Load and attach; nothing is recorded before `start`. Raises ``BpfError``; then nothing is attached."""
        try:
            made = self._load()
            self._attach_own(made)
            for probe in self.config.probes:
                self._attach(made, probe)
            if self.config.probes and len(self._refused) == len(self.config.probes):
                raise BpfError("attach_failed", self._refused[0][1], "check the kernel with `whystall doctor`")
        except BaseException:
            self.close()
            raise

    def _load(self) -> Object:
        made = self._open("functions", self.config.targets)
        targets = sorted(self.config.targets)
        made.map(".rodata.config").set_initial(bytes(lay.Config(target=targets[0], self_tgid=self.config.self_tgid)))
        made.map("ring").set_max_entries(self.config.ring_bytes)
        made.load()
        for tgid in targets[1:]:
            made.map("targets").update(tgid.to_bytes(4, "little"), bytes([lay.TRACED_TARGET]))
        self._live = lay.Live.from_buffer(made.map(".data.live").memory())
        self._live.more_targets = len(targets) > 1
        self._ring = BulkRing(made.map("ring"), RECORD_BYTES - HEAD)
        self._programs = [made.program(name) for name in made.program_names()]
        return made

    def _attach(self, made: Object, probe: Probe) -> None:
        attached = []
        try:
            if probe.returns:  # first, so that every return has its entry
                returns = made.program("on_return")
                attached.append(returns.attach_to_function(probe.path, probe.offset, probe.cookie, returns=True))
            attached.append(made.program("on_entry").attach_to_function(probe.path, probe.offset, probe.cookie))
        except BpfError as error:
            for link in attached:
                link.close()
            if error.code == "no_privilege":
                raise
            self._refused.append((probe, error.message))
        else:
            self._links += attached

    def _attach_own(self, made: Object) -> None:
        """Attach to functions of this process: `start` calls them, which proves that probes work, and their calls show
        what an event costs."""
        program = made.program("on_entry")
        links, costs = own_probes(
            lambda path, offset: program.attach_to_function(path, offset, _NO_FUNCTION, pid=os.getpid())
        )
        self._links += links
        most = max(costs.values(), default=0.0)
        self._event_ns = (costs.get(False, most), costs.get(True, most))

    def start(self) -> int:
        """Begin to record, and return the instant."""
        self._loaded()
        since = self._live.window_start = time.monotonic_ns()
        self._since = time.monotonic()
        for name in _OWN_FUNCTIONS:
            _own(name)(None)
        return since

    def poll(self) -> int:
        """Take the available records and return their number. Removes all probes if there are too many."""
        taken = self._ring.take() if self._ring is not None else b""
        if taken:
            self._chunks.append(taken)
            self._bytes += len(taken)
        now = time.monotonic()
        self._spent_ns += self._cost_ns(taken)
        span = max(1.0, now - self._since)
        most_ns = self.config.most_share * span * 1e9 * len(self.config.targets)
        if (self._spent_ns > most_ns or self._bytes > self.config.max_bytes) and not self._stopped:
            self._stopped = self._live.window_end = time.monotonic_ns()
            self._detach()
        if span > 1:
            self._since, self._spent_ns = now, 0.0
        return len(taken) // RECORD_BYTES

    def _cost_ns(self, taken: bytes) -> float:
        """Return what the events in `taken` cost the programs."""
        numbers = memoryview(taken).cast("H")[_NUMBER_AT // 2 :: RECORD_BYTES // 2].tolist() if taken else []
        probes = self.config.probes
        return sum(self._event_ns[probes[one].emulated] * count for one, count in Counter(numbers).items())

    def stop(self) -> int:
        """End recording, and return the instant; the first one when repeated."""
        self._loaded()
        if not self._live.window_end:
            self._live.window_end = time.monotonic_ns()
        return int(self._live.window_end)

    def read(self) -> FunctionCalls:
        """Stop, detach, read everything, close. Raises ``BpfError``."""
        made = self._loaded()
        try:
            start, end = int(self._live.window_start), self.stop()
            self._detach()
            self.poll()
            words = memoryview(made.map("counters").lookup(bytes(4), per_cpu=True) or b"").cast("Q")
            counted = {name: sum(words[at :: len(lay.COUNTERS)]) for at, name in enumerate(lay.COUNTERS)}
            lost = counted["ring_call"] + self._misses()
            return FunctionCalls(
                start,
                end,
                self._chunks,
                self._event_ns,
                lost,
                counted["self_calls"],
                self._stopped,
                self._refused,
            )
        finally:
            self.close()


def own_probes(attach: Callable[[str, int], _Attached]) -> tuple[list[_Attached], dict[bool, float]]:
    """Attach to functions of this process by `attach` (file, offset). Return what it returned, and what a call then
    costs more, ns, by whether the kernel emulates the instruction there. Raises what `attach` raises."""
    names = re.compile("|".join(rf"\b{name}" for name in _OWN_FUNCTIONS).encode())
    links: list[_Attached] = []
    costs: dict[bool, float] = {}
    for (path, _), paths in executed_files(os.getpid()).items():
        for name, start in (functions_named(paths[-1], names) if "libbpf" in path else {}).items():
            offset, emulated = place(paths[-1], start)
            plain = _call_ns(_own(name))
            links.append(attach(paths[-1], offset))
            costs[emulated] = max(0.0, _call_ns(_own(name)) - plain)
    return links, costs


def _own(name: str) -> Callable[[Any], object]:
    """Return a function of `_OWN_FUNCTIONS`, which takes nothing or a null pointer."""
    return ct.CFUNCTYPE(ct.c_long, ct.c_void_p)((name, library()))


def _call_ns(function: Callable[[Any], object]) -> float:
    """Return the least time that a call takes, ns."""
    best = 1 << 60
    for _ in range(_OWN_CALLS):
        begin = time.perf_counter_ns()
        function(None)
        best = min(best, time.perf_counter_ns() - begin)
    return float(best)


def records(chunks: Iterable[bytes]) -> Iterable[tuple[int, ...]]:
    """Yield the members of each record: at, four values, tgid, tid, function, event, unread."""
    layout = lay.unpacker(lay.FunctionRecord)
    for chunk in chunks:
        for place in range(HEAD, len(chunk), RECORD_BYTES):
            yield layout.unpack_from(chunk, place)
