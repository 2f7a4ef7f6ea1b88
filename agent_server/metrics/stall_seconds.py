"""Seconds of stalls by job, rank and cause since the watcher started."""

from __future__ import annotations

from collections.abc import Iterator

from whystall.agent_server.metrics.families import LABEL, OTHER
from whystall.tools.contract.text import clean

JOBS = 100
"""Maximum jobs that have series of their own."""
_CAUSES, _SERIES = 50, 2000
UNKNOWN = "unknown"


class StallSeconds:
    """At most `JOBS` jobs and 50 causes are counted apart, and beyond 2000 series no ranks; the rest is ``other``."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str, str], float] = {}
        self._jobs: set[str] = set()
        self._causes: set[str] = set()

    def add(self, job: str, rank: int | None, cause: str, seconds: float) -> None:
        """Count a stall of one process. An empty cause is ``unknown``; `rank`: None for a job without ranks."""
        job, cause = _bounded(job, self._jobs, JOBS), _bounded(cause, self._causes, _CAUSES)
        key = (job, "" if rank is None else str(rank), cause)
        if rank is not None and key not in self._seconds and len(self._seconds) >= _SERIES:
            key = (job, OTHER, cause)
        self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    def rows(self) -> Iterator[tuple[str, str, str, float]]:
        """Yield job, rank (empty: it has none), cause and seconds, sorted."""
        for (job, rank, cause), seconds in sorted(self._seconds.items()):
            yield job, rank, cause, round(seconds, 6)


def _bounded(name: str, known: set[str], most: int) -> str:
    name = clean(name, LABEL) or UNKNOWN
    if name not in known:
        if len(known) >= most:
            return OTHER
        known.add(name)
    return name
