"""A machine made up, whose schedule is known: it tells events as a kernel does, and the truth beside them.

`Machine(seed)` runs threads on CPUs by chance: they sleep, are woken (by threads or interrupts, at once or on the way
into sleep), preempted, throttled, moved, born and buried, their numbers used again. Every event has its own instant.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import polars as pl

from whystall.tools.timeline.sched import TABLES, SchedTrace, empty_tables

Row = tuple[Any, ...]
COMMS = ("train", "pt_main_thread", "kworker/0:1", "a ==> b", 'say "hi"', "back\\slash", "[000] x: y", "名字")
"""What threads are called: command names may hold anything."""
SLEEPS = {"S": "sleeping", "D": "uninterruptible", "I": "idle", "T": "stopped"}


@dataclass
class Machine:
    """See the module. `truth[tid]` and `had[cpu]`: (since, state, cpu) and (since, tid), in order."""

    seed: int
    cpus: int = 3
    threads: int = 8
    steps: int = 600
    warm_up: int = 60
    now: int = 1_000
    start: int = 0
    rows: list[tuple[str, Row]] = field(default_factory=list)
    truth: dict[int, list[tuple[int, str, int]]] = field(default_factory=dict)
    had: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.current = dict.fromkeys(range(self.cpus), 0)
        self.since = dict.fromkeys(range(self.cpus), self.now)
        self.queues: dict[int, list[int]] = {cpu: [] for cpu in range(self.cpus)}
        self.asleep: dict[int, int] = {}  # thread: the CPU it left
        self.dead: list[int] = []
        self.had = {cpu: [(0, 0)] for cpu in range(self.cpus)}
        for tid in range(1, self.threads + 1):
            self.truth[tid] = [(0, "sleeping", 0)]
            self.asleep[tid] = self.chance.randrange(self.cpus)
        self.next_tid = self.threads + 1
        for step in range(self.warm_up + self.steps):
            if step == self.warm_up:
                self.start = self.now + 1
                self.rows.clear()
                self._tick()
            self._step(self.chance.randrange(self.cpus))
        self.end = self._tick()

    # --- what may happen ----------------------------------------------------------------------------------

    def _step(self, cpu: int) -> None:
        tid, chance = self.current[cpu], self.chance
        actions: list[Callable[[int], None]] = [self._interrupt, self._migrate]
        if self.asleep:
            actions += [self._wake, self._wake]
        if self.queues[cpu]:
            actions += [lambda cpu: self._switch(cpu, "R")] * 2
        if tid:
            actions += [self._block, self._block, self._system_call, self._spurious]
            if chance.random() < 0.1:
                actions += [self._fork, self._exit, lambda cpu: self._switch(cpu, "R", idle=True)]
        chance.choice(actions)(cpu)

    def _tick(self) -> int:
        self.now += self.chance.choice((1, 7, 60, 600, 3_000))
        return self.now

    def _tell(self, table: str, *values: Any) -> None:
        self.rows.append((table, (self.now, *values)))

    def _becomes(self, tid: int, state: str, cpu: int) -> None:
        self.truth[tid].append((self.now, state, cpu))

    def _switch(self, cpu: int, state: str, *, idle: bool = False) -> None:
        self._tick()
        old, queue = self.current[cpu], self.queues[cpu]
        new = queue.pop(self.chance.randrange(len(queue))) if queue and not idle else 0
        if old == new == 0:
            return
        shown = state + "+" if state == "R" and old and self.chance.random() < 0.5 else state
        self._tell("switches", cpu, old, 120, shown, state == "R", self.since[cpu], new, 120)
        self.current[cpu], self.since[cpu] = new, self.now
        self.had[cpu].append((self.now, new))
        if old and state == "R":
            queue.append(old)
            self._becomes(old, "runnable", cpu)
        elif old:
            self._becomes(old, SLEEPS.get(state, "dead"), cpu)
        if new:
            self._becomes(new, "running", cpu)

    def _block(self, cpu: int) -> None:
        tid, state = self.current[cpu], self.chance.choice("SSSDIT")
        if self.chance.random() < 0.1 and self.cpus > 1:  # woken by another CPU when it has all but gone
            waker = self.chance.choice([other for other in range(self.cpus) if other != cpu])
            self._tick()
            self._tell("wakeups", waker, "waking", self.current[waker], "task", tid, 120, cpu)
            self._switch(cpu, state)
            self._queue(tid, cpu, waker, "task")
        else:
            self._switch(cpu, state)
            self.asleep[tid] = cpu

    def _wake(self, cpu: int) -> None:
        tid = self.chance.choice(sorted(self.asleep))
        left = self.asleep.pop(tid)
        context = self.chance.choice(("task", "hardirq", "softirq"))
        self._tick()
        self._tell("wakeups", cpu, "waking", self.current[cpu], context, tid, 120, left)
        self._becomes(tid, "runnable", left)
        self._queue(tid, left, cpu, context)

    def _queue(self, tid: int, left: int, waker: int, context: str) -> None:
        target = self.chance.choice((left, left, self.chance.randrange(self.cpus)))
        if target != left:
            self._tick()
            self._tell("migrations", waker, tid, left, target)
        self._tick()
        if self.truth[tid][-1][1] != "runnable":
            since, _, _ = self.truth[tid].pop()  # it never slept
            self.truth[tid].append((since, "runnable", left))
        self._tell("wakeups", waker, "wakeup", self.current[waker], context, tid, 120, target)
        self.queues[target].append(tid)

    def _spurious(self, cpu: int) -> None:
        waker = self.chance.randrange(self.cpus)
        self._tick()
        told = (self.current[waker], "task", self.current[cpu], 120, cpu)
        self._tell("wakeups", waker, "waking", *told)
        self._tick()
        self._tell("wakeups", waker, "wakeup", *told)

    def _migrate(self, cpu: int) -> None:
        other = self.chance.randrange(self.cpus)
        if self.queues[other] and other != cpu:
            tid = self.queues[other].pop()
            self._tick()
            self._tell("migrations", cpu, tid, other, cpu)
            self.queues[cpu].append(tid)

    def _interrupt(self, cpu: int) -> None:
        tid = self.current[cpu]

        def tell(soft: bool, entry: bool) -> None:
            self._tick()
            name = "NET_RX" if soft else "eth0" if entry else ""  # as the kernel tells it
            self._tell("interrupts", cpu, tid, soft, entry, 3 if soft else 30, name)

        tell(False, True)
        tell(False, False)
        if self.chance.random() < 0.5:
            tell(True, True)
            if self.chance.random() < 0.5:
                tell(False, True)
                tell(False, False)
            tell(True, False)

    def _system_call(self, cpu: int) -> None:
        self._tick()
        self._tell("syscalls", cpu, self.current[cpu], True, -1, "futex", 4096, 128, -1, -1)
        self._tick()
        self._tell("syscalls", cpu, self.current[cpu], False, -1, "futex", -1, -1, -1, -11)

    def _fork(self, cpu: int) -> None:
        if self.dead and self.chance.random() < 0.7:
            child = self.dead.pop()
        else:
            child, self.next_tid = self.next_tid, self.next_tid + 1
            self.truth[child] = [(0, "dead", -1)]
        self._tick()
        self._tell("tasks", cpu, "fork", self.current[cpu], child, "")
        self._tick()
        self._tell("wakeups", cpu, "new", self.current[cpu], "task", child, 120, cpu)
        self._becomes(child, "runnable", cpu)
        self.queues[cpu].append(child)

    def _exit(self, cpu: int) -> None:
        tid = self.current[cpu]
        self._tick()
        self._tell("tasks", cpu, "exit", tid, -1, "")
        self._switch(cpu, "X")
        self.dead.append(tid)

    # --- what is told -------------------------------------------------------------------------------------

    def trace(self, *, arrived: bool = False) -> SchedTrace:
        """Everything told; `arrived`: with the scheduler's own account."""
        tables = empty_tables()
        for name in tables:
            rows = [row for table, row in self.rows if table == name]
            tables[name] = pl.DataFrame(rows, schema=TABLES[name], orient="row")
        names = [(self.start, tid, tid - tid % 4 or tid, COMMS[tid % len(COMMS)]) for tid in range(1, self.next_tid)]
        tables["names"] = pl.DataFrame(names, schema=TABLES["names"], orient="row")
        if not arrived:
            tables["switches"] = tables["switches"].with_columns(prev_arrived_ns=pl.lit(0, pl.Int64))
        return SchedTrace(tables, self.start, self.end, tuple(range(self.cpus)), clock="mono")

    def states(self, tid: int, start: int, end: int) -> set[str]:
        """All states in which the thread truly was between two instants."""
        changes = [*self.truth[tid], (self.end + 1, "", -1)]
        return {
            state
            for (since, state, _), (until, _, _) in pairwise(changes)
            if since < end and until > start and until > since
        }

    def owners(self, cpu: int, start: int, end: int) -> set[int]:
        """All threads that truly had the CPU between two instants."""
        changes = [*self.had[cpu], (self.end + 1, -1)]
        return {
            tid for (since, tid), (until, _) in pairwise(changes) if since < end and until > start and until > since
        }


def changed(trace: SchedTrace, **tables: pl.DataFrame) -> SchedTrace:
    """`trace` with other tables."""
    merged: Mapping[str, pl.DataFrame] = {**trace.tables, **tables}
    return replace(trace, tables=merged)


def trace_of(*, start: int = 0, end: int = 1_000, cpus: Iterable[int] = (0,), **rows: list[Row]) -> SchedTrace:
    """A trace of rows written down, by table."""
    tables = empty_tables()
    for name, listed in rows.items():
        tables[name] = pl.DataFrame(listed, schema=TABLES[name], orient="row")
    return SchedTrace(tables, start, end, tuple(cpus), clock="mono")
