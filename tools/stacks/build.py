"""Build a stack profile record by record; readers with columns build the tables directly."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from whystall.tools.contract.text import PATH_LIMIT, clean
from whystall.tools.stacks.model import NO_STACK, NO_THREAD, NO_TIME, TABLES, StackProfile
from whystall.tools.stacks.names import NAME_LIMIT


class Builder:
    """Numbers frames, stacks, threads and events, and builds the tables at the end.

    A sample whose weight is negative or not finite is refused and counted in `odd`; callers may add to `odd` as well.
    """

    def __init__(self) -> None:
        self.odd = 0
        self._frames: dict[tuple[str, str, int, str], int] = {}
        self._stacks: dict[tuple[int, int], int] = {}
        self._threads: dict[tuple[int, int, str], int] = {}
        self._events: dict[tuple[str, str, float], int] = {}
        self._at, self._span, self._weight = array("q"), array("q"), array("d")
        self._thread, self._stack, self._event = array("i"), array("i"), array("h")

    def frame(self, name: str | bytes, file: str = "", line: int = 0, kind: str = "other") -> int:
        """Return the number of a frame; its names are escaped here."""
        key = (clean(name, NAME_LIMIT), clean(file, PATH_LIMIT), line, kind)
        return self._frames.setdefault(key, len(self._frames))

    def call(self, parent: int, frame: int) -> int:
        """Return the number of the stack in which the stack `parent` (`NO_STACK`: none) calls `frame`."""
        return self._stacks.setdefault((parent, frame), len(self._stacks))

    def stack(self, frames: Iterable[int]) -> int:
        """Return the number of a stack, given from the outermost frame inward; `NO_STACK` when there are none."""
        found = NO_STACK
        for frame in frames:
            found = self.call(found, frame)
        return found

    def thread(self, pid: int = -1, tid: int = -1, comm: str = "") -> int:
        """Return the number of a thread."""
        return self._threads.setdefault((pid, tid, clean(comm)), len(self._threads))

    def event(self, name: str, unit: str = "samples", period: float = 0.0) -> int:
        """Return the number of an event."""
        return self._events.setdefault((clean(name), clean(unit), period), len(self._events))

    def sample(
        self,
        stack: int,
        event: int,
        weight: float = 1.0,
        *,
        at_ns: int = NO_TIME,
        span_ns: int = 0,
        thread: int = NO_THREAD,
    ) -> None:
        """Count one sample."""
        if not math.isfinite(weight) or weight < 0:
            self.odd += 1
            return
        self._at.append(at_ns)
        self._span.append(span_ns)
        self._thread.append(thread)
        self._stack.append(stack)
        self._event.append(event)
        self._weight.append(weight)

    def profile(self, source: str, *, clock: str = "", notes: Iterable[tuple[str, str]] = ()) -> StackProfile:
        """Return everything added so far, with a note of the `odd` records."""
        odd = [("odd_lines", str(self.odd))] if self.odd else []
        return StackProfile(self._tables(), source, clock, (*notes, *odd))

    def _tables(self) -> dict[str, pl.DataFrame]:
        columns: Mapping[str, Mapping[str, Iterable[Any]]] = {
            "samples": {
                "at_ns": self._at,
                "span_ns": self._span,
                "thread": self._thread,
                "stack": self._stack,
                "event": self._event,
                "weight": self._weight,
            },
            "threads": _numbered("thread", ("pid", "tid", "comm"), self._threads),
            "stacks": _numbered("stack", ("parent", "frame"), self._stacks),
            "frames": _numbered("frame", ("name", "file", "line", "kind"), self._frames),
            "events": _numbered("event", ("name", "unit", "period"), self._events),
        }
        return {
            name: pl.DataFrame(
                [pl.Series(column, columns[name][column], dtype=dtype) for column, dtype in schema.items()]
            )
            for name, schema in TABLES.items()
        }


def _numbered(number: str, names: tuple[str, ...], keys: Iterable[tuple[object, ...]]) -> dict[str, Iterable[Any]]:
    rows = list(keys)
    return {number: list(range(len(rows))), **{name: [row[at] for row in rows] for at, name in enumerate(names)}}
