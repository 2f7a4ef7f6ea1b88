"""Read the host's named counters from a recording."""

from __future__ import annotations

import polars as pl


class HostCounters:
    """The readings of ``proc.host`` by name; empty without that table. `span_s`: from the first to the last reading."""

    def __init__(self, host: pl.DataFrame | None) -> None:
        self._values: dict[str, list[float]] = {}
        self.span_s = 0.0
        if host is None or host.is_empty():
            return
        first, last = host["at_ns"].min(), host["at_ns"].max()
        self.span_s = (last - first) / 1e9 if isinstance(first, int) and isinstance(last, int) else 0.0
        for name, value in host.sort("at_ns", maintain_order=True).select("name", "value").iter_rows():
            self._values.setdefault(name, []).append(value)

    def all(self, name: str) -> list[float]:
        """Return every reading of `name`, in order of time."""
        return self._values.get(name, [])

    def last(self, name: str) -> float | None:
        """Return the last reading of `name`."""
        values = self.all(name)
        return values[-1] if values else None

    def delta(self, *names: str) -> float | None:
        """Return the summed growth of those counters that were read at least twice; None if none was."""
        known = [values for name in names if len(values := self.all(name)) > 1]
        # Per-CPU sums of vmstat and iowait may decrease a little.
        return sum(max(0.0, values[-1] - values[0]) for values in known) if known else None

    def rate(self, *names: str) -> float | None:
        """Return `delta` per second."""
        grown = self.delta(*names)
        return grown / self.span_s if grown is not None and self.span_s else None
