"""Read the log of a case: the lines of all its programs, by time."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Line = dict[str, Any]


@dataclass(frozen=True)
class Span:
    """An interval of CLOCK_MONOTONIC, in seconds."""

    start: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.start


class Log:
    """The lines written so far."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def lines(self) -> list[Line]:
        """Return all complete lines, in the order of writing."""
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def of(self, event: str, span: Span) -> list[Line]:
        """Return the lines of an event that ended within a span."""
        return [line for line in self.lines() if line["event"] == event and span.start <= line["at"] <= span.end]

    def durations(self, event: str, span: Span) -> list[float]:
        """Return the durations of the events that `of` returns, in seconds."""
        return [line["s"] for line in self.of(event, span)]

    def share_pct(self, event: str, span: Span) -> float:
        """Return the share of the span within phases of that name, percent; one thread's phases do not overlap."""
        inside = 0.0
        for line in self.lines():
            if line["event"] == event:
                inside += max(0.0, min(line["at"], span.end) - max(line["at"] - line["s"], span.start))
        return 100 * inside / span.length

    def silent_s(self, event: str, span: Span) -> float:
        """Return the time from the last event to the end of the span, in seconds."""
        ends = [line["at"] for line in self.lines() if line["event"] == event and line["at"] <= span.end]
        return span.end - max(ends, default=span.start)


def median(values: Sequence[float]) -> float:
    """Return the median; 0 without values."""
    return statistics.median(values) if values else 0.0
