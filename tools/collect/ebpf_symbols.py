"""Names of frames: symbols of processes, read while they live, merged with frames of Python."""

from __future__ import annotations

import time
from collections.abc import Iterable

from whystall.bpf.capture import Capture as Seen
from whystall.bpf.capture import Stack
from whystall.bpf.python_code import PythonSeen
from whystall.bpf.samples import Place
from whystall.bpf.symbols import OpenFiles, ProcessSymbols
from whystall.bpf.symbols import kernel as kernel_symbols
from whystall.tools.collect.python_merge import merged
from whystall.tools.collect.samples_decode import Call

_LOOK_AGAIN_NS = 1_000_000_000


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
            lines = self._seen.of(PythonSeen).frames(python.addresses, pid) if python is not None else []
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
