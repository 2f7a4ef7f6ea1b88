"""What a tool asks for, and what an engine must do to provide it.

A *collector* is a named set of columns (``syscalls``, ``switches``, ``block``, ``proc``). An *engine* (``ebpf``,
``procfs``) fills one or more of them at once, so that several tools never hook the same event twice.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

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
    """A way to fill collectors. One instance serves one window.

    `start` attaches everything as one unit or raises `ToolError` with nothing left attached. `poll` drains what has
    arrived; it is called when `fileno` is readable and at least every `period_s`. `stop` detaches and returns the
    captures; `close` detaches without them, may be called at any time and more than once.
    """

    name: str
    serves: frozenset[str]
    period_s: float

    def unavailable(self) -> str | None:
        """Why this engine cannot run here, in a few words; None if it can. Cheap: attaches nothing."""

    def start(self, wanted: Mapping[str, Options], target: Target) -> None:
        """Attach for the `wanted` collectors and `target`."""

    def fileno(self) -> int | None:
        """A descriptor that becomes readable when events wait, or None."""

    def poll(self) -> None:
        """Take in what has arrived."""

    def stop(self) -> dict[str, Capture]:
        """Detach, and return a capture per wanted collector."""

    def close(self) -> None:
        """Detach; idempotent."""


@runtime_checkable
class Summing(Protocol):
    """An engine that sums up in the kernel, so that nothing can be taken from its sums afterwards. The window has every
    such engine begin when all engines have started, which may take seconds, and cease before the first stops. It
    reaches from the first that begins to the last that ceases, so that no sum is of more than the window.
    """

    def begin(self) -> int:
        """Count from now on; as `start` it raises `ToolError`. `start` has everything ready for it.

        Returned is the instant since when it counts, in ns of the monotonic clock.
        """

    def cease(self) -> int:
        """Count no longer. Returned is the instant until when it counted; the first one when it is called again."""
