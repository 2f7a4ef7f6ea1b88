"""What a tool asks for, and what an engine must do to provide it.

A *collector* is a named set of columns (``syscalls``, ``switches``, ``block``, ``proc``). An *engine* (``ebpf``,
``procfs``) fills one or more of them at once, so that several tools never hook the same event twice.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import polars as pl

from whystall.tools.recording.target import Target

Options = Mapping[str, int]
"""Options of a collector; booleans are 0 or 1, times are nanoseconds."""


@dataclass(frozen=True)
class Need:
    """A tool needs `collector` with at least these `options` (see `merge_needs`). `optional`: a recording without it
    can be judged all the same, less well.
    """

    collector: str
    options: Options = field(default_factory=dict)
    optional: bool = False


# Options are merged so that the union serves every tool: thresholds take the smallest, switches any.
_SMALLEST = frozenset({"min_ns", "period_ns"})
# These narrow what is seen, and without them everything is: they hold only where every tool can do with that. CPUs are
# bits of a number, and of those any tool's are wanted.
_NARROWING: Mapping[str, Callable[[int, int], int]] = {"cpus": operator.or_, "only_target": min}


def merge_needs(needs: Iterable[Need]) -> dict[str, dict[str, int]]:
    """Union of `needs`: collector name to options that satisfy every one of them."""
    merged: dict[str, dict[str, int]] = {}
    for need in needs:
        first = need.collector not in merged
        options = merged.setdefault(need.collector, {})
        for name, merge in _NARROWING.items():
            new, old = need.options.get(name, 0), options.pop(name, 0)
            if new and (first or old):
                options[name] = new if first else merge(old, new)
        for name, value in need.options.items():
            if name in _NARROWING:
                continue
            old = options.get(name, value)
            options[name] = min(old, value) if name in _SMALLEST else max(old, value)
    return merged


@dataclass
class Capture:
    """What one collector brought home.

    `tables` are columns by table name (times: nanoseconds of CLOCK_MONOTONIC, made relative by the window). `seen`,
    `kept`, `lost` count events. `proven`: the collector saw an event that it caused itself, or agrees with an
    independent count. `not_seen` lists (blind spot code, detail). `events` names tables whose rows are each one event,
    at ``at_ns``: what happened outside of the window is left out of them, where other tables show it at the edge.
    """

    tables: dict[str, pl.DataFrame]
    hooks: list[str]
    seen: int
    kept: int
    lost: int
    proven: bool
    not_seen: list[tuple[str, str]] = field(default_factory=list)
    events: frozenset[str] = frozenset()


class Engine(Protocol):
    """Fills collectors during one window. One instance serves one window, and is used by one thread.

    The window calls ``load``, ``start``, ``poll`` any number of times, ``stop``, ``read``, ``close``, in this order:

    * All engines are loaded before the first one starts, and all are stopped before the first one is read, since
      loading and reading may take seconds. The window reaches from the first ``start`` to the last ``stop``.
    * ``load`` and ``start`` are all or nothing: where they raise, nothing stays attached once ``close`` was called.
    * ``close`` may be called at any time, also twice and after a failure; nothing is attached or running afterwards.
    * An engine whose totals are made in the kernel counts only between its ``start`` and its ``stop``. One that records
      single events or takes readings may record from ``load`` until ``read``: the window drops what lies outside of it.
    * Failures are `ToolError`.
    """

    name: str
    serves: frozenset[str]
    """The collectors that it can fill."""
    period_s: float
    """``poll`` is wanted at least this often, in seconds; it may change between calls."""

    def unavailable(self) -> str | None:
        """Return why this engine cannot run here, in a few words; None if it can. Cheap: attaches nothing."""

    def cannot(self, collector: str) -> str | None:
        """Return why `collector` cannot be filled here although others can; None if it can. After a ``load`` that
        failed: why it failed for this one."""
        return None

    def load(self, wanted: Mapping[str, Options], target: Target) -> None:
        """Attach for the `wanted` collectors and `target`. May take long: kernels verify, compilers compile."""

    def start(self) -> int:
        """Begin to count, and return the instant since when, in ns of CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def fileno(self) -> int | None:
        """Return a descriptor that becomes readable when events wait, or None: then only ``period_s`` counts."""
        return None

    def poll(self) -> None:
        """Take in what has arrived."""

    def stop(self) -> int:
        """End counting, and return the instant until when, in ns of CLOCK_MONOTONIC; the first one when repeated."""
        return time.monotonic_ns()

    def read(self) -> dict[str, Capture]:
        """Detach, and return a capture for every wanted collector."""

    def close(self) -> None:
        """Release everything."""
