"""Seconds of stalls by job, rank and cause since the watcher started.

A new series is 0 for `NEW_S`, as Prometheus counts only increases between two samples: its first value would be lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from whystall.agent_server.metrics.families import LABEL, OTHER
from whystall.tools.contract.text import clean

JOBS = 100
"""Maximum jobs that have series of their own."""
_CAUSES, _SERIES = 50, 2000
UNKNOWN = "unknown"
NEW_S = 90.0
"""More than the longest usual scrape interval, a minute."""


class StallSeconds:
    """At most `JOBS` jobs and 50 causes are counted apart, and beyond 2000 series no ranks; the rest is ``other``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: dict[tuple[str, str, str], float] = {}
        self._since: dict[tuple[str, str, str], float] = {}
        self._jobs: set[str] = set()
        self._causes: set[str] = set()

    def add(self, job: str, rank: int | None, cause: str, seconds: float) -> None:
        """Count a stall of one process. An empty cause is ``unknown``; `rank`: None for a job without ranks."""
        job, cause = _bounded(job, self._jobs, JOBS), _bounded(cause, self._causes, _CAUSES)
        key = (job, "" if rank is None else str(rank), cause)
        if rank is not None and key not in self._seconds and len(self._seconds) >= _SERIES:
            key = (job, OTHER, cause)
        self._seconds[key] = self._seconds.get(key, 0.0) + seconds
        self._since.setdefault(key, self._clock())

    def rows(self) -> Iterator[tuple[str, str, str, float]]:
        """Yield job, rank (empty: it has none), cause and seconds, sorted."""
        now = self._clock()
        for (job, rank, cause), seconds in sorted(self._seconds.items()):
            new = now - self._since[job, rank, cause] < NEW_S
            yield job, rank, cause, 0.0 if new else round(seconds, 6)


def _bounded(name: str, known: set[str], most: int) -> str:
    name = clean(name, LABEL) or UNKNOWN
    if name not in known:
        if len(known) >= most:
            return OTHER
        known.add(name)
    return name
