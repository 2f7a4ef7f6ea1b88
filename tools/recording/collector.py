"""The interface between tools, which need collectors, and engines, which fill them.

A *collector* is a named set of columns (``syscalls``, ``switches``, ``block``, ``proc``). An *engine* (``ebpf``,
``procfs``) fills one or more of them at once, so that several tools never hook the same event twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from whystall.tools.recording.target import Target

if TYPE_CHECKING:
    import polars as pl
    from typing_extensions import Self


def option(default: Any, merge: Callable[[Any, Any], Any]) -> Any:
    """Return a field of `Options`; `merge` combines the values that two tools ask for."""
    return field(default=default, metadata={"merge": merge})


def narrowest(one: int, other: int) -> int:
    """Merge bit sets in which 0 stands for everything."""
    return one | other if one and other else 0


@dataclass(frozen=True)
class Options:
    """Options of one collector; times are nanoseconds. The class itself is the defaults of any collector.

    A collector with options has a subclass: a frozen dataclass whose fields are made by `option`.
    """

    @classmethod
    def of(cls, wanted: Mapping[str, Options], collector: str) -> Self:
        """Return the options of `collector` among `wanted`; the defaults where none are given."""
        given = wanted.get(collector)
        return given if isinstance(given, cls) else cls()

    def merged(self, other: Options) -> Options:
        """Return options that satisfy both these and `other`."""
        if type(self) is Options:
            return other if type(other) is Options else type(other)().merged(other)
        if type(other) is Options:
            other = type(self)()
        names = {f.name: f.metadata["merge"](getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return replace(self, **names)

    def as_dict(self) -> dict[str, int]:
        """Return the options as a manifest stores them, without switches that are off; of a set its size."""
        values = {f.name: (_number(getattr(self, f.name)), _number(f.default)) for f in fields(self)}
        return {name: value for name, (value, default) in values.items() if value or default}


def _number(value: Any) -> int:
    return len(value) if isinstance(value, frozenset) else int(value)


@dataclass(frozen=True)
class Need:
    """A tool's need of `collector` with at least these `options`. `optional`: the tool can judge without it, less
    precisely. `essential`: names of options without which a recording of the collector does not serve.
    """

    collector: str
    options: Options = Options()
    optional: bool = False
    essential: tuple[str, ...] = ()


def merge_needs(needs: Iterable[Need]) -> dict[str, Options]:
    """Return, per collector, options that satisfy every one of `needs`."""
    merged: dict[str, Options] = {}
    for need in needs:
        before = merged.get(need.collector)
        merged[need.collector] = need.options if before is None else before.merged(need.options)
    return merged


@dataclass
class Capture:
    """The tables and counts of one collector.

    `tables` are columns by table name (times: nanoseconds of CLOCK_MONOTONIC, made relative by the window). `seen`,
    `kept`, `lost` count events. `proven`: the collector saw an event that it caused itself, or agrees with an
    independent count. `not_seen` lists (blind spot code, detail). `events` names tables with one event per row, at
    ``at_ns``: events outside of the window are removed from them; in other tables times are clipped to it.
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
    * ``load`` and ``start`` are all or nothing: if they raise, nothing stays attached after ``close``.
    * ``close`` may be called at any time, also twice and after a failure; nothing is attached or running afterwards.
    * An engine that aggregates in the kernel counts only between its ``start`` and its ``stop``, since totals cannot be
      trimmed later. One that records events or readings may record from ``load`` until ``read``; the window trims.
    * Failures are `ToolError`.
    """

    name: str
    serves: frozenset[str]
    """The collectors that it can fill."""
    period_s: float
    """Longest time between two calls of ``poll``, in seconds; it may change between calls."""

    def unavailable(self) -> str | None:
        """Return in a few words why this engine cannot run here; None if it can. Attaches nothing."""

    def cannot(self, collector: str) -> str | None:
        """Return why `collector` cannot be filled here although others can; None if it can. After a failed ``load``:
        why it failed for this collector."""
        return None

    def load(self, wanted: Mapping[str, Options], target: Target) -> None:
        """Attach for the `wanted` collectors and `target`. May take seconds (verifier, compiler)."""

    def start(self) -> int:
        """Begin counting, and return that instant in ns of CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def fileno(self) -> int | None:
        """Return a descriptor that becomes readable when events wait; None to be polled every ``period_s`` only."""
        return None

    def poll(self) -> None:
        """Read the events that have arrived."""

    def stop(self) -> int:
        """End counting, and return that instant in ns of CLOCK_MONOTONIC; when repeated, the first one."""
        return time.monotonic_ns()

    def read(self) -> dict[str, Capture]:
        """Detach, and return a capture for every wanted collector."""

    def close(self) -> None:
        """Release everything."""
