"""Probe the calls of accelerators' libraries while a continuous recording runs, as long as that costs little.

Each process is searched for such libraries again and again, as they are loaded later. The cost is the number of entries
and returns times what one takes, as measured on this host; above its limit launches and queued copies are no longer
probed, which are most calls, and then nothing is. More is tried again later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from whystall.bpf.functions import Probe
from whystall.tools.collect.accelerator_calls import Libraries, entry_points

DETAILS = ("all", "waits", "none")
"""What is probed, from the most to the least: `waits`: only calls that return when the device has done its work."""
_SEARCH_NS = 10_000_000_000  # between two searches of a process
_SPAN_NS = 10_000_000_000  # of a measurement
_STORM = 4.0  # times the limit: then after a second
_RAISE_AFTER_NS = 300_000_000_000
_MOST_RAISE_AFTER_NS = 3600_000_000_000
_FLOOR = 0.02  # of a core, per process that uses such a library: one that waits most of the time
_SECOND_NS = 1_000_000_000


class Probed(Protocol):
    """Whose functions are probed: `whystall.bpf.collectors.accelerator.AcceleratorCalls`."""

    def attach_to(self, probes: Iterable[Probe]) -> list[Probe]: ...
    def keep(self, wanted: Iterable[Probe]) -> None: ...
    def attached(self) -> list[Probe]: ...
    def hit_ns(self) -> float: ...


@dataclass(frozen=True)
class CallsState:
    """What is probed. `detail`: of `DETAILS`; `functions`: that are probed; `processes`: watched ones with such a
    library; `cpu_share`: of one core, that probes took from all processes; `calls_per_s`; `reasons`: why and when
    (seconds since the start) more or less was probed; `refused`: functions that the kernel does not let us probe."""

    detail: str
    functions: int
    processes: int
    cpu_share: float
    calls_per_s: float
    refused: int
    reasons: tuple[str, ...]


class AcceleratorWatch:
    """See the module."""

    def __init__(self, calls: Probed, share: float, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """`share`: of the CPU time of the watched processes, at most. `clock`: CLOCK_MONOTONIC, ns."""
        self._calls, self._share, self._clock = calls, share, clock
        self._waits = {one.number for one in entry_points() if one.waits}
        self._libraries = Libraries()
        self._probes: list[Probe] = []
        self._refused: set[Probe] = set()
        self._searched: dict[int, int] = {}
        self._users: set[int] = set()
        self._detail = 0
        self._began = self._since = self._changed = clock()
        self._hits = self._raised = 0
        self._cpu_share = self._per_s = 0.0
        self._raise_after_ns = _RAISE_AFTER_NS
        self._reasons: list[str] = []

    def check(self, pids: Collection[int], hits: int, job_cores: float) -> None:
        """Search one process, and measure; call it each second. `hits`: entries and returns so far; `job_cores`: CPU
        time of the processes `pids`, in cores."""
        now = self._clock()
        self._search(pids, now)
        span = now - self._since
        if span < _SECOND_NS:
            return
        share = (hits - self._hits) * self._calls.hit_ns() / span
        load = share / max(self._share * job_cores, _FLOOR * max(1, len(self._users)))
        if span < _SPAN_NS and (load <= _STORM or not job_cores):  # not measured yet
            return
        self._cpu_share, self._per_s = share, (hits - self._hits) / 2 * 1e9 / span
        if load > 1 and self._detail < len(DETAILS) - 1:
            if self._raised and now - self._raised < _RAISE_AFTER_NS:  # more was too much: try less often
                self._raise_after_ns = min(2 * self._raise_after_ns, _MOST_RAISE_AFTER_NS)
            self._change(self._detail + 1, now)
        elif self._detail and load <= 1 and now - self._changed >= self._raise_after_ns:
            self._raised = now
            self._change(self._detail - 1, now)
        self._since, self._hits = now, hits

    def state(self) -> CallsState:
        """Return what is probed now."""
        return CallsState(
            detail=DETAILS[self._detail],
            functions=len(self._calls.attached()),
            processes=len(self._users),
            cpu_share=self._cpu_share,
            calls_per_s=self._per_s,
            refused=len(self._refused),
            reasons=tuple(self._reasons[-10:]),
        )

    def _search(self, pids: Collection[int], now: int) -> None:
        """Search the process that was searched longest ago."""
        for gone in self._searched.keys() - set(pids):
            del self._searched[gone]
            self._users.discard(gone)
        pid = min(pids, key=lambda one: self._searched.get(one, 0), default=0)
        if not pid or now - self._searched.get(pid, now - _SEARCH_NS) < _SEARCH_NS:
            return
        self._searched[pid] = now
        uses, found = self._libraries.search(pid)
        if uses:
            self._users.add(pid)
        self._probes += found
        self._attach(found)

    def _wanted(self, probe: Probe) -> bool:
        detail = DETAILS[self._detail]
        return detail == "all" or (detail == "waits" and probe.number in self._waits)

    def _attach(self, probes: Iterable[Probe]) -> None:
        self._refused.update(self._calls.attach_to([probe for probe in probes if self._wanted(probe)]))

    def _change(self, detail: int, now: int) -> None:
        word = "less" if detail > self._detail else "more"
        self._reasons.append(f"{(now - self._began) / 1e9:.0f} s: {word} at {100 * self._cpu_share:.2f} % of a core")
        del self._reasons[:-100]
        self._detail, self._changed = detail, now
        self._calls.keep([probe for probe in self._probes if self._wanted(probe)])
        attached = {*self._calls.attached()}
        self._attach(probe for probe in self._probes if probe not in attached and probe not in self._refused)
