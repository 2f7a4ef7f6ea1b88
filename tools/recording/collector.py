"""What a tool asks for, and what an engine must do to provide it.

A *collector* is a named set of columns (``syscalls``, ``switches``, ``block``, ``proc``). An *engine* (``ebpf``,
``procfs``) fills one or more of them at once, so that several tools never hook the same event twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import polars as pl

from whystall.tools.recording.target import Target

if TYPE_CHECKING:
    from typing_extensions import Self

def option(default: Any, merge: Callable[[Any, Any], Any]) -> Any:
    """A field of `Options`: its default, and the function that makes one value of those that two tools ask for."""
    return field(default=default, metadata={"merge": merge})


def narrowest(one: int, other: int) -> int:
    """Merge bit sets of which 0 stands for everything: either tool may need everything."""
    return one | other if one and other else 0


@dataclass(frozen=True)
class Options:
    """Options of one collector; times are nanoseconds. The class itself stands for the defaults of any collector.

    A collector with options has a subclass: a frozen dataclass whose fields are made by `option`.
    """

    @classmethod
    def of(cls, wanted: Mapping[str, Options], collector: str) -> Self:
        """Return the options of `collector` among `wanted`; the defaults where none are given."""
        given = wanted.get(collector)
        return given if isinstance(given, cls) else cls()

    def merged(self, other: Options) -> Options:
        """Return options that serve both whoever asked for these and whoever asked for `other`."""
        if type(self) is Options:
            return other if type(other) is Options else type(other)().merged(other)
        if type(other) is Options:
            other = type(self)()
        names = {f.name: f.metadata["merge"](getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return replace(self, **names)

    def as_dict(self) -> dict[str, int]:
        """Return them as a manifest stores them; switches that are off are left out."""
        values = {f.name: (int(getattr(self, f.name)), int(f.default)) for f in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, (value, default) in values.items() if value or default}


@dataclass(frozen=True)
class Need:
    """A tool needs `collector` with at least these `options`. `optional`: a recording without the collector can still
    be judged, less precisely.
    """

    collector: str
    options: Options = Options()
    optional: bool = False


def merge_needs(needs: Iterable[Need]) -> dict[str, Options]:
    """Return, per collector, options that satisfy every one of `needs`."""
    merged: dict[str, Options] = {}
    for need in needs:
        before = merged.get(need.collector)
        merged[need.collector] = need.options if before is None else before.merged(need.options)
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
