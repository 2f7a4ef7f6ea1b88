"""The stacks of sampled threads, and the tables of `samples` from the samples of runnable threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import polars as pl

from whystall.tools.collect.frames import Call
from whystall.tools.collect.proc_python import Stack
from whystall.tools.collect.python_merge import label, merged
from whystall.tools.collect.samples_decode import EVENT
from whystall.tools.stacks.build import Builder

_FRAMES = 128


class Stacks:
    """Numbers kernel stacks and Python stacks."""

    def __init__(self) -> None:
        self._kernel: dict[tuple[str, ...], int] = {}
        self._python: dict[Stack, int] = {}
        self._calls: dict[int, list[Call]] = {}

    def kernel(self, frames: Sequence[str]) -> int:
        """Return the number of a kernel stack, innermost frame first; -1 for none."""
        return self._kernel.setdefault(tuple(frames), self._next()) if frames else -1

    def python(self, frames: Stack) -> int:
        """Return the number of a Python stack; -1 for none."""
        if not frames:
            return -1
        number = self._python.get(frames)
        if number is None:
            number = self._python[frames] = self._next()
            self._calls[number] = merged([], frames[:_FRAMES])
        return number

    def calls(self, number: int) -> list[Call]:
        """Return the frames of a Python stack, innermost first; none for -1."""
        return self._calls.get(number, [])

    def rows(self) -> list[tuple[int, bool, list[str]]]:
        """Return the rows of a table of stacks."""
        kernel = [(number, True, list(frames)) for frames, number in self._kernel.items()]
        return kernel + [(number, False, [label(call) for call in calls]) for number, calls in self._calls.items()]

    def _next(self) -> int:
        return len(self._kernel) + len(self._python)


class Sampled(NamedTuple):
    """A thread on a CPU. `stack`: number of its Python stack, -1: none; `weight_ns`: the CPU time it stands for."""

    at_ns: int
    pid: int
    tid: int
    comm: str
    stack: int
    weight_ns: int


def sample_tables(samples: Iterable[Sampled], stacks: Stacks, period_ns: int) -> dict[str, pl.DataFrame]:
    """Return the tables of the collector ``samples``; `period_ns`: mean time between two scans."""
    builder = Builder()
    event = builder.event(EVENT, "ns", float(period_ns))
    known: dict[int, int] = {}
    for one in samples:
        if one.stack not in known:
            calls = reversed(stacks.calls(one.stack))
            known[one.stack] = builder.stack(builder.frame(*call) for call in calls)
        thread = builder.thread(one.pid, one.tid, one.comm)
        builder.sample(known[one.stack], event, float(one.weight_ns), at_ns=one.at_ns, thread=thread)
    return dict(builder.profile("procfs").tables)
