"""The collector ``samples`` of the ``ebpf`` engine: names while processes live, and what proves the timers alive."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from whystall.bpf.capture import Capture as Seen
from whystall.bpf.capture import Stack
from whystall.bpf.samples import Place
from whystall.bpf.session import Session
from whystall.bpf.symbols import OpenFiles, ProcessSymbols
from whystall.bpf.symbols import kernel as kernel_symbols
from whystall.tools.collect.options import SampleOptions
from whystall.tools.collect.py_spy import Beside
from whystall.tools.collect.python_merge import merged
from whystall.tools.collect.samples_decode import Call, sample_tables
from whystall.tools.recording.collector import Capture

_LOOK_AGAIN_NS = 1_000_000_000
_PROOF_TICKS, _PROOF_S = 4, 4.0
_FEW_TICKS = 50
# The kernel's own count of busy time is itself made by sampling: only a gross difference says something.
_MISSING = 0.2


class Processes:
    """Symbols of the processes that are seen, each looked at while it lives."""

    def __init__(self) -> None:
        self._files = OpenFiles()
        self._known: dict[int, ProcessSymbols] = {}
        self._looked: dict[int, int] = {}

    def of(self, pid: int) -> ProcessSymbols:
        """Symbols of a process; a process that has exited without having been looked at has none."""
        if pid not in self._known:
            self._known[pid] = ProcessSymbols(pid, self._files)
            self._looked[pid] = time.monotonic_ns()
        return self._known[pid]

    def look(self, places: Iterable[tuple[Place, Stack | None]]) -> None:
        """Take in where new samples were; code that was not there before makes us read a process's mappings again, at
        most once a second."""
        for place, stack in places:
            process = self.of(place.tgid)
            if stack is None:
                continue
            callers = [address - bool(at) for at, address in enumerate(stack.addresses)]
            if not process.keep(callers) and time.monotonic_ns() - self._looked[place.tgid] > _LOOK_AGAIN_NS:
                self._looked[place.tgid] = time.monotonic_ns()
                process.look_again()
                process.keep(callers)

    def look_again(self) -> None:
        """At the end: what processes have mapped since."""
        for process in self._known.values():
            process.look_again()

    def close(self) -> None:
        """Close the files that were held; idempotent."""
        self._files.close()


class SampleCalls:
    """The frames of a place, each stack named once."""

    def __init__(self, seen: Seen, processes: Processes) -> None:
        self._seen = seen
        self._processes = processes
        self._kernel: dict[int, list[Call]] = {}
        self._user: dict[tuple[int, int, int], list[Call]] = {}

    def __call__(self, place: Place) -> list[Call]:
        """From the outermost inward."""
        return self.user(place.tgid, place.ustack, place.pystack) + self._kernel_calls(place.kstack)

    def user(self, pid: int, ustack: int, pystack: int) -> list[Call]:
        """The frames in user mode, from the outermost inward: native ones and those of an interpreter."""
        key = pid, ustack, pystack
        if key not in self._user:
            native, python = self._seen.stacks.get(ustack), self._seen.stacks.get(pystack)
            frames = self._processes.of(pid).frames(native.addresses) if native is not None else []
            lines = self._seen.python.frames(python.addresses, pid) if python is not None else []
            self._user[key] = merged(frames, lines)[::-1]
        return self._user[key]

    def _kernel_calls(self, number: int) -> list[Call]:
        stack = self._seen.stacks.get(number)
        if stack is None:
            return []
        if number not in self._kernel:
            names = kernel_symbols().frames(stack.addresses)
            self._kernel[number] = [Call(name, "", 0, "kernel") for name in reversed(names)]
        return self._kernel[number]


class Ticking:
    """Whether the timers ticked: beside the kernel's own count of busy time."""

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns
        self._begin = self._end = busy_ns()
        self._since = self._until = time.monotonic_ns()

    def prove(self, session: Session) -> None:
        """At the end of the window: when nobody had a CPU at any tick, have one ourselves until a tick sees it."""
        self._until = time.monotonic_ns()
        end = time.monotonic() + min(_PROOF_TICKS * self._period_ns / 1e9, _PROOF_S)
        while not _ticks(session.counters()) and time.monotonic() < end:
            _burn(0.001)
        self._end = busy_ns()

    @property
    def due(self) -> bool:
        """Whether there must have been a tick within the window: a shorter one may lie between two."""
        return self._until - self._since >= self._period_ns

    def missing(self, seen: Seen) -> int:
        """Ticks that busy CPUs must have had and that were not seen, as when the kernel throttles the timers; 0 when
        it is no gross difference."""
        ticks = seen.seen["ticks"] - seen.seen["idle_ticks"]
        due = (self._end - self._begin) // self._period_ns
        missing = due - ticks
        return missing if missing > max(_FEW_TICKS, _MISSING * due) else 0


def _ticks(counters: dict[str, list[int]]) -> int:
    return sum(counters.get("seen_ticks", ())) - sum(counters.get("seen_idle_ticks", ()))


def _burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def busy_ns(source: Path = Path("/proc/stat")) -> int:
    """CPU time of all CPUs that somebody of this host had (not idle, waiting, or stolen by others)."""
    try:
        user, nice, system, _idle, _wait, hard, soft = map(int, source.read_text().split(None, 8)[1:8])
    except (OSError, ValueError):
        return 0
    return (user + nice + system + hard + soft) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


def sample_capture(
    seen: Seen,
    calls: Callable[[Place], list[Call]],
    options: SampleOptions,
    lost: int,
    ticking: Ticking,
    beside: Sequence[Beside] = (),
) -> Capture:
    """The collector's capture; `lost`: what the kernel side counted as lost; `beside`: what py-spy sampled."""
    period_ns = options.period_ns
    kernel_symbols().prepare(
        a - bool(at) for s in seen.stacks.values() if not s.kind for at, a in enumerate(s.addresses)
    )
    tables = sample_tables(seen.samples, seen.threads, calls, period_ns, beside)
    capture = Capture(
        tables=tables,
        hooks=list(seen.hooks),
        seen=seen.seen["samples"],
        kept=tables["samples"].height,
        lost=lost + ticking.missing(seen),
        proven=seen.seen["ticks"] > seen.seen["idle_ticks"] and ticking.due,
        events=frozenset({"samples"}),
    )
    if (tables["frames"]["kind"] == "kernel").any() and kernel_symbols().hidden:
        capture.not_seen.append(("kernel_symbols", ""))
    return capture
