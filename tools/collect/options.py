"""The options of every collector that has some: their defaults, and how the needs of two tools merge.

A threshold limits only the tables of single events; totals cover every event.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

from whystall.tools.recording.collector import Options, narrowest, option

SAMPLE_NS = 10_101_010
"""99 Hz: sampling at 100 Hz would always hit the same point of a program that works in cycles of 10 ms."""

PATH_WAIT_NS = 50_000
"""Shorter waits are aggregated; their wakers are not recorded."""


@dataclass(frozen=True)
class SyscallOptions(Options):
    """`min_ns`: record calls that take at least this long."""

    min_ns: int = option(10_000_000, min)


@dataclass(frozen=True)
class SwitchOptions(Options):
    """`min_ns`: record times off the CPU of at least this length; `wakers`: with what ended each; `follow_wakers`: also
    record the processes that wake threads of the target, and those that wake these; `peers`: record these processes,
    too, from the start; `python`: with Python frames."""

    min_ns: int = option(1_000_000, min)
    wakers: bool = option(False, operator.or_)
    python: bool = option(False, operator.or_)
    follow_wakers: bool = option(False, operator.or_)
    peers: frozenset[int] = option(frozenset(), operator.or_)


@dataclass(frozen=True)
class BlockOptions(Options):
    """`min_ns`: record requests that take at least this long, queue and device together."""

    min_ns: int = option(50_000_000, min)


@dataclass(frozen=True)
class SampleOptions(Options):
    """`period_ns`: between two samples of a CPU; `python`: Python frames."""

    period_ns: int = option(SAMPLE_NS, min)
    python: bool = option(False, operator.or_)


@dataclass(frozen=True)
class MemoryUseOptions(Options):
    """`period_ns`: between two readings of each process's memory."""

    period_ns: int = option(1_000_000_000, min)


@dataclass(frozen=True)
class ProcOptions(Options):
    """`period_ns`: between two readings of /proc."""

    period_ns: int = option(1_000_000_000, min)


@dataclass(frozen=True)
class GpuStateOptions(Options):
    """`period_ns`: between two readings of each GPU."""

    period_ns: int = option(500_000_000, min)


def _longest(one: int, other: int) -> int:
    """Merge spans of time in which 0 stands for everything."""
    return max(one, other) if one and other else 0


@dataclass(frozen=True)
class DeviceLogOptions(Options):
    """`recent_s`: the log of the last seconds suffices, so that the journal is asked for no more than these; 0: all."""

    recent_s: int = option(0, _longest)


@dataclass(frozen=True)
class ServingOptions(Options):
    """`period_ns`: between two readings of a server's metrics; `urls`: to read instead of the ports of the target."""

    period_ns: int = option(1_000_000_000, min)
    urls: frozenset[str] = option(frozenset(), operator.or_)


@dataclass(frozen=True)
class FtraceOptions(Options):
    """`groups`: groups of events besides ``sched``; `cpus`: CPUs to record as bits, 0: all;
    `only_target`: only events of the target; `buffer_kb`: per CPU, 0: the engine's default.
    """

    groups: frozenset[str] = option(frozenset(), operator.or_)
    cpus: int = option(0, narrowest)
    only_target: bool = option(False, operator.and_)
    buffer_kb: int = option(0, max)

    def as_dict(self) -> dict[str, int]:
        """Return them as a manifest stores them: each group by its name."""
        others = {"cpus": self.cpus, "only_target": int(self.only_target), "buffer_kb": self.buffer_kb}
        return dict.fromkeys(sorted(self.groups), 1) | {name: value for name, value in others.items() if value}
