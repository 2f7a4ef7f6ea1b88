"""Names of frames: symbols of processes, read while they live, merged with Python frames."""

from __future__ import annotations

import time
from collections.abc import Iterable

from whystall.bpf.capture import Capture as BpfCapture
from whystall.bpf.capture import Stack
from whystall.bpf.layout import STACK_KERNEL
from whystall.bpf.python_code import PythonResult
from whystall.bpf.samples import Place
from whystall.bpf.symbols import OpenFiles, ProcessSymbols
from whystall.bpf.symbols import kernel as kernel_symbols
from whystall.tools.collect.frames import Call
from whystall.tools.collect.python_merge import merged, with_accelerator_call, with_collector

_REFRESH_NS = 1_000_000_000


class Processes:
    """Symbols of the observed processes, read while they live."""

    def __init__(self) -> None:
        self._files = OpenFiles()
        self._known: dict[int, ProcessSymbols] = {}
        self._read_ns: dict[int, int] = {}

    def of(self, pid: int) -> ProcessSymbols:
        """Return the symbols of a process; none if it exited before its first call."""
        if pid not in self._known:
            self._known[pid] = ProcessSymbols(pid, self._files)
            self._read_ns[pid] = time.monotonic_ns()
        return self._known[pid]

    def add(self, places: Iterable[tuple[Place, Stack | None]]) -> None:
        """Keep the code of new samples. Unknown addresses make us read a process's mappings again, at most once per
        second."""
        for place, stack in places:
            process = self.of(place.tgid)
            if stack is None:
                continue
            callers = [address - bool(at) for at, address in enumerate(stack.addresses)]
            if not process.keep(callers) and time.monotonic_ns() - self._read_ns[place.tgid] > _REFRESH_NS:
                self._read_ns[place.tgid] = time.monotonic_ns()
                process.update()
                process.keep(callers)

    def refresh(self) -> None:
        """Read all processes' mappings again, at the end of the window."""
        for process in self._known.values():
            process.update()

    def close(self) -> None:
        """Close all files; idempotent."""
        self._files.close()


def prepare_kernel_symbols(raw: BpfCapture) -> None:
    """Read the kernel symbols of all return addresses in `raw` at once."""
    kernel_symbols().refresh()
    in_kernel = [stack for stack in raw.stacks.values() if stack.kind == STACK_KERNEL]
    kernel_symbols().prepare(address - 1 for stack in in_kernel for address in stack.addresses)


class SampleCalls:
    """Frames of a sample's place; each stack is symbolised once."""

    def __init__(self, raw: BpfCapture, processes: Processes) -> None:
        self._raw = raw
        self._processes = processes
        self._kernel: dict[int, list[Call]] = {}
        self._user: dict[tuple[int, int, int], list[Call]] = {}

    def __call__(self, place: Place) -> list[Call]:
        """Return the frames in user mode, then those of the kernel, from the outermost inward."""
        user = self.user(place.tgid, place.ustack, place.pystack)
        if place.collects:
            user = with_collector(user)
        return user + self._kernel_calls(place.kstack)

    def user(self, pid: int, ustack: int, pystack: int) -> list[Call]:
        """Return the frames in user mode, native and Python, from the outermost inward."""
        key = pid, ustack, pystack
        if key not in self._user:
            native, python = self._raw.stacks.get(ustack), self._raw.stacks.get(pystack)
            frames = self._processes.of(pid).frames(native.addresses) if native is not None else []
            lines = self._raw.of(PythonResult).frames(python.addresses, pid) if python is not None else []
            inside = next((line.name for line in lines if line.call), "")
            calls = merged(frames, [line for line in lines if not line.call])[::-1]
            self._user[key] = with_accelerator_call(calls, inside) if inside else calls
        return self._user[key]

    def _kernel_calls(self, number: int) -> list[Call]:
        stack = self._raw.stacks.get(number)
        if stack is None:
            return []
        if number not in self._kernel:
            names = kernel_symbols().frames(stack.addresses)
            self._kernel[number] = [Call(name, "", 0, "kernel") for name in reversed(names)]
        return self._kernel[number]
