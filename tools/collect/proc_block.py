"""Totals of block I/O from /proc/diskstats, for when requests cannot be traced."""

from __future__ import annotations

import polars as pl

from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.tables import BLOCK, filled

_Totals = tuple[int, int, int]
"""Requests, bytes, milliseconds."""


class BlockTotals:
    """Reads /proc/diskstats repeatedly.

    The kernel counts a request's time from queueing to completion, which is reported as device time. `max_ns` is the
    highest mean between two reads, a lower bound of the slowest request. Requests in flight are not included.
    """

    def __init__(self, disks: frozenset[str] | None, path: str = "/proc/diskstats") -> None:
        self._disks = disks
        self._path = path
        self._first: dict[tuple[str, str], _Totals] = {}
        self._last: dict[tuple[str, str], _Totals] = {}
        self._peak: dict[tuple[str, str], int] = {}
        self.reads = 0

    def sample(self) -> None:
        """Read once; raises OSError if there is no such file."""
        with open(self._path, "rb") as file:
            now = {
                (disk.device, operation): totals
                for disk in parse.diskstats(file.read())
                if self._disks is None or disk.device in self._disks
                for operation, totals in _operations(disk).items()
            }
        for key, totals in now.items():
            before = self._last.get(key)
            count, _, ms = _since(before, totals)
            if count > 0:
                self._peak[key] = max(self._peak.get(key, 0), ms * 1_000_000 // count)
            if before is None or totals < before:
                self._first[key] = totals  # new, or another disk with this name
        self._last = now
        self.reads += 1

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables of `block`; `latency` and `slow` are empty."""
        rows = []
        for key, totals in self._last.items():
            count, size, ms = _since(self._first.get(key), totals)
            if count > 0:
                rows.append((*key, count, size, 0, ms * 1_000_000, self._peak.get(key, 0)))
        return filled(BLOCK, totals=rows)


def _operations(d: parse.DiskStat) -> dict[str, _Totals]:
    found = {"read": (d.reads, d.read_bytes, d.read_ms), "write": (d.writes, d.write_bytes, d.write_ms)}
    if d.discards >= 0:
        found["discard"] = (d.discards, d.discard_bytes, d.discard_ms)
    if d.flushes >= 0:
        found["flush"] = (d.flushes, 0, d.flush_ms)
    return found


def _since(before: _Totals | None, now: _Totals) -> _Totals:
    if before is None:
        return 0, 0, 0
    return now[0] - before[0], now[1] - before[1], now[2] - before[2]
