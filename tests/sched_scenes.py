"""Scheduling traces made by hand: who ran where and when is said, and becomes the tables that a tracer would have made.

`Cpus` fills a `recordings.Scene` with them. Times are in microseconds; a CPU that nobody is said to use is idle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from recordings import PID, Scene

from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.registry import Judgement

Row = dict[str, Any]
NS = 1000


@dataclass
class Cpus:
    """The CPUs of one host. `threads`: tid to process and name."""

    count: int = 2
    threads: dict[int, tuple[int, str]] = field(default_factory=dict)
    _runs: dict[int, list[tuple[float, float, int, str]]] = field(default_factory=dict)
    _rows: dict[str, list[Row]] = field(default_factory=dict)

    def thread(self, tid: int, comm: str, pid: int | None = None) -> Cpus:
        """A thread with a name; of its own process unless another is given."""
        self.threads[tid] = (tid if pid is None else pid, comm)
        return self

    def run(self, cpu: int, tid: int, start: float, end: float, then: str = "S") -> Cpus:
        """`tid` has the CPU, and leaves it in state `then` (``R``: it is put off)."""
        self._runs.setdefault(cpu, []).append((start, end, tid, then))
        return self

    def wake(self, tid: int, at: float, cpu: int, by: int = 0, context: str = "hardirq") -> Cpus:
        """Somebody wakes `tid`, which is queued on `cpu`; `by` counts only in the context of a task."""
        for kind in ("waking", "wakeup"):
            self._add(
                "wakeups",
                at_ns=int(at * NS),
                cpu=cpu,
                kind=kind,
                waker_tid=by if context == "task" else -1,
                context=context,
                tid=tid,
                prio=120,
                target_cpu=cpu,
            )
        return self

    def move(self, tid: int, at: float, source: int, target: int) -> Cpus:
        """`tid` is taken from one CPU's queue to another's."""
        return self._add("migrations", at_ns=int(at * NS), cpu=source, tid=tid, from_cpu=source, to_cpu=target)

    def interrupt(
        self, cpu: int, tid: int, start: float, end: float, name: str, vector: int = 3, *, soft: bool = True
    ) -> Cpus:
        """An interrupt, or a softirq, in the context of `tid`."""
        for at, entry in ((start, True), (end, False)):
            row = {"cpu": cpu, "tid": tid, "soft": soft, "vector": vector, "name": name}
            self._add("interrupts", at_ns=int(at * NS), entry=entry, **row)
        return self

    def call(self, tid: int, start: float, end: float, name: str, cpu: int = 0) -> Cpus:
        """A system call."""
        for at, entry in ((start, True), (end, False)):
            row = {"cpu": cpu, "tid": tid, "nr": -1, "name": name, "arg0": 0, "arg1": 0, "arg2": 0, "result": 0}
            self._add("syscalls", at_ns=int(at * NS), entry=entry, **row)
        return self

    def hole(self, start: float, end: float, cpu: int = -1) -> Cpus:
        """The tracer lost what happened here."""
        return self._add("holes", start_ns=int(start * NS), end_ns=int(end * NS), cpu=cpu, lost=9, why="lost")

    def topology(self, scene: Scene, nodes: list[list[int]]) -> Cpus:
        """Every CPU a core of its own, in these nodes."""
        for node, cpus in enumerate(nodes):
            for cpu in cpus:
                scene._add("proc.cpus", cpu=cpu, node=node, core=cpu, package=node, online=True)
        return self

    def mask(self, scene: Scene, tid: int, cpus: str, at: float = 0) -> Cpus:
        """`tid` may run on these from then on."""
        pid, comm = self.threads[tid]
        scene._add("proc.affinity", at_ns=int(at * NS), pid=pid, tid=tid, comm=comm, cpus=cpus)
        return self

    def fill(self, scene: Scene) -> Scene:
        """Put everything into `scene`, whose window it has."""
        rows = {name: list(table) for name, table in self._rows.items()}
        rows["switches"] = [row for cpu in range(self.count) for row in self._switches(cpu, scene.window_ns / NS)]
        for name, table in rows.items():
            order = "start_ns" if name == "holes" else "at_ns"
            scene.tables[f"ftrace.{name}"] = sorted(table, key=lambda row: row[order])
        for tid, (pid, comm) in self.threads.items():
            scene._add("ftrace.names", at_ns=0, tid=tid, pid=pid, comm=comm)
        return scene

    def _switches(self, cpu: int, end: float) -> list[Row]:
        """Idle between what was said."""
        found: list[Row] = []
        last = (0.0, 0, "R")  # until when whom it belonged to, and how that one left

        def switch(at: float, target: int) -> None:
            _, tid, state = last
            found.append(
                {
                    "at_ns": int(at * NS),
                    "cpu": cpu,
                    "prev_tid": tid,
                    "prev_prio": 120,
                    "prev_state": state,
                    "preempted": state == "R" and tid != 0,
                    "prev_arrived_ns": 0,
                    "next_tid": target,
                    "next_prio": 120,
                }
            )

        for start, stop, tid, then in sorted(self._runs.get(cpu, [])):
            if start > last[0] and last[1] != 0:
                switch(last[0], 0)
                last = (last[0], 0, "R")
            if start > 0 or found:
                switch(start, tid)
            last = (stop, tid, then)
        if last[1] != 0 and last[0] < end:
            switch(last[0], 0)
        return found

    def _add(self, table: str, **row: Any) -> Cpus:
        self._rows.setdefault(table, []).append(row)
        return self


# --- a dispatcher ---------------------------------------------------------------------------------------------

DISPATCH, GREEDY = PID + 1, 900
PERIOD, WORK = 2000, 300  # us
WAKES = 500


def machine(nodes: list[list[int]] | None = None, mask: str = "") -> tuple[Cpus, Scene]:
    """Two CPUs (or those of `nodes`), one second, a process with a main thread and a dispatch thread."""
    nodes = nodes or [[0, 1]]
    scene = Scene(window_s=WAKES * PERIOD / 1e6)
    scene.thread(DISPATCH, "dispatch", user=15)
    cpus = Cpus(sum(map(len, nodes))).thread(PID, "python").thread(DISPATCH, "dispatch", PID)
    every = sorted(cpu for node in nodes for cpu in node)
    cpus.topology(scene, nodes).mask(scene, DISPATCH, mask or f"0-{every[-1]}")
    for cpu in every:  # a housekeeper now and then shows that the CPU is idle otherwise
        cpus.thread(50 + cpu, f"tick/{cpu}").run(cpu, 50 + cpu, 1, 3).run(cpu, 50 + cpu, scene.window_ns / 1e3 - 3, 1e9)
    return cpus, scene


def times() -> list[float]:
    """When it is to wake."""
    return [number * PERIOD + 100.0 for number in range(WAKES)]


def steady(cpus: Cpus, cpu: int = 0, late: float = 5) -> Cpus:
    """It wakes in time, works, and sleeps."""
    for at in times():
        cpus.wake(DISPATCH, at, cpu).run(cpu, DISPATCH, at + late, at + late + WORK)
    return cpus


def bad(found: Judgement[Any]) -> dict[str, Finding]:
    """Abnormal findings by kind; at most one of a kind."""
    rows = [f for f in found.findings if f.polarity is Polarity.ABNORMAL]
    assert len({f.kind for f in rows}) == len(rows), rows
    return {f.kind: f for f in rows}


def normal(found: Judgement[Any]) -> set[str]:
    """Kinds that were found to be normal."""
    return {f.kind for f in found.findings if f.polarity is Polarity.NORMAL}
