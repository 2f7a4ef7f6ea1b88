"""The metrics of a server's database: tickets, diagnoses, alerts, and the lateness of ranks that diagnoses found."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from whystall.agent_server.metrics.families import OTHER, Family, family
from whystall.agent_server.version import version
from whystall.knowledge_base.times import rfc3339
from whystall.tools.node.vantage import host_name

if TYPE_CHECKING:
    from whystall.agent_server.stores import Stores

_CAUSES, _RANKS = 100, 1000
_RECENT = timedelta(hours=1)


def info() -> Family:
    """Return the version and the host, to be joined by ``instance``: a scraped address need not be the host's name."""
    return family("info", "gauge", "Version and host.", [({"version": version(), "host": host_name()}, 1)])


def server_families(kb: Stores, now: float) -> list[Family]:
    """Return the metrics of `kb` at `now`, s since the epoch. Raises `ToolError` (database)."""
    since = rfc3339(datetime.fromtimestamp(now, timezone.utc) - _RECENT)
    alerts = kb.alerts.counts()
    lateness = sorted(kb.figures.lateness(since).items(), key=lambda one: -one[1])[:_RANKS]
    return [
        family(
            "tickets",
            "gauge",
            "Tickets by state and severity.",
            (({"state": state, "severity": severity}, n) for state, severity, n in kb.figures.tickets()),
        ),
        family("diagnoses_total", "counter", "Diagnoses that were stored.", _diagnoses(kb.figures.diagnoses())),
        family("alerts_firing", "gauge", "Alerts that fire.", [({}, alerts["firing"])]),
        family("alert_groups", "gauge", "Groups of alerts.", [({}, alerts["groups"])]),
        family(
            "collective_lateness_seconds",
            "gauge",
            "How late a rank enters collectives, by the newest diagnosis of the last hour that found one.",
            (({"rank": rank, "host": host}, late) for (rank, host), late in sorted(lateness)),
        ),
    ]


def _diagnoses(counts: list[tuple[str, str, int]]) -> Iterator[tuple[dict[str, object], float]]:
    """Yield a sample per verdict and cause, largest first; those beyond the bound in one per verdict."""
    rest: dict[str, int] = {}
    for number, (verdict, cause, n) in enumerate(counts):
        if number < _CAUSES:
            yield {"verdict": verdict, "cause": cause}, n
        else:
            rest[verdict] = rest.get(verdict, 0) + n
    for verdict, n in rest.items():
        yield {"verdict": verdict, "cause": OTHER}, n
