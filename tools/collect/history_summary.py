"""A span of the coarse history of the watch in few rows: where threads waited most, when, and what has changed."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from whystall.tools.collect.slice_history import HistoryRow, Place, by_place

_BARS = "_▁▂▃▄▅▆▇█"
_PARTS = 12  # of a span, in which the waiting of each row is given


class HistoryPlace(BaseModel):
    """Waits of threads called `comm` in one place. `state`: D (uninterruptible), S, R (without a CPU) or other; `line`:
    of the program, empty if unknown. `parts_s`: seconds in each part of the span, oldest first. `before_s`: in the span
    of the same length before; None: not asked for, or nothing was recorded then."""

    model_config = ConfigDict(extra="forbid")

    comm: str
    state: str
    call: str
    line: str
    waited_s: float
    count: int
    longest_ms: float
    parts_s: list[float]
    before_s: float | None = None

    @property
    def bars(self) -> str:
        """Return `parts_s` as one character each, relative to the most."""
        most = max(self.parts_s, default=0.0)
        steps = [round(seconds / most * (len(_BARS) - 1)) if most else 0 for seconds in self.parts_s]
        return "".join(_BARS[step] for step in steps)


class HistorySummary(BaseModel):
    """What the threads of the watched processes waited for. `minutes`: of the span, how many were recorded;
    `minutes_before`: of the span before; `waited_s`: of all rows, also of those left out."""

    model_config = ConfigDict(extra="forbid")

    since: str
    until: str
    minutes: int
    minutes_before: int = 0
    waited_s: float
    rows: list[HistoryPlace] = Field(default_factory=list)
    left_out: int = 0


def summarise(
    rows: Sequence[HistoryRow], before: Sequence[HistoryRow], span: tuple[int, int], texts: tuple[str, str], top: int
) -> HistorySummary:
    """Return the `top` places of `rows`, recorded in `span` (CLOCK_REALTIME, ns), beside those of the span `before`.
    `texts`: the span's ends as text."""
    start, end = span
    places = by_place(rows)
    earlier = by_place(before)
    minutes, minutes_before = ({row.minute_ns for row in part} for part in (rows, before))
    parts: dict[Place, list[float]] = {}
    for row in rows:
        place = Place(row.comm, row.state, row.call, row.line)
        part = min(_PARTS - 1, (row.minute_ns - start) * _PARTS // max(end - start, 1))
        parts.setdefault(place, [0.0] * _PARTS)[max(part, 0)] += row.waited_ns / 1e9
    found = [
        HistoryPlace(
            **place._asdict(),
            waited_s=waited / 1e9,
            count=count,
            longest_ms=longest / 1e6,
            parts_s=[round(seconds, 3) for seconds in parts[place]],
            before_s=earlier.get(place, (0, 0, 0))[0] / 1e9 if minutes_before else None,
        )
        for place, (waited, count, longest) in places.items()
    ]
    return HistorySummary(
        since=texts[0],
        until=texts[1],
        minutes=len(minutes),
        minutes_before=len(minutes_before),
        waited_s=sum(one.waited_s for one in found),
        rows=found[:top],
        left_out=max(0, len(found) - top),
    )
