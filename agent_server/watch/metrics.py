"""The watcher's state in the text format of Prometheus, for the textfile collector of its node exporter. Pure.

The number of series is bounded: at most 100 jobs, whose names are cut, and 50 causes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from whystall.tools.contract.text import clean

_JOBS, _CAUSES, _NAME = 100, 50, 80
OTHER = "other"


class StallSeconds:
    """Seconds of stalls by job and cause since the watcher started; what exceeds the bounds is counted as ``other``."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], float] = {}

    def add(self, job: str, cause: str, seconds: float) -> None:
        """Count a stall; an empty cause is ``unknown``."""
        jobs, causes = {one for one, _ in self.seconds}, {one for _, one in self.seconds}
        job = job if job in jobs or len(jobs) < _JOBS else OTHER
        cause = cause or "unknown"
        cause = cause if cause in causes or len(causes) < _CAUSES else OTHER
        self.seconds[job, cause] = self.seconds.get((job, cause), 0.0) + seconds


def exposition(status: Mapping[str, Any], stalls: StallSeconds) -> str:
    """Return the metrics of `status` (`WatchService`), as Prometheus reads them."""
    jobs = status["jobs"][:_JOBS]
    cost, counts = status["cost"], status["counts"]
    lines = [
        *_metric("stall_seconds_total", "counter", "Seconds that jobs stalled, by the cause that was found.", (
            ({"job": job, "cause": cause}, value) for (job, cause), value in sorted(stalls.seconds.items())
        )),
        *_metric("step_seconds", "gauge", "Median time of a step, where one is known.", (
            ({"job": job["name"], "rank": one["rank"], "pid": one["pid"]}, one["step_ms"] / 1000)
            for job in jobs for one in job["processes"][:_JOBS] if one["step_ms"]
        )),
        *_metric("stalled", "gauge", "Whether a process is stalled now.", (
            ({"job": job["name"], "rank": one["rank"], "pid": one["pid"]}, float(one["stalled"]))
            for job in jobs for one in job["processes"][:_JOBS]
        )),
        *_metric("tickets_total", "counter", "Tickets opened.", [({}, counts.get("tickets", 0))]),
        *_metric("cpu_share", "gauge", "CPU that recording costs, as a part of one core.", _one(cost, "cpu_share")),
        *_metric("lost_events_total", "counter", "Events that were lost.", _one(cost, "lost")),
        *_metric("resident_bytes", "gauge", "Memory of the watcher.", [({}, status["memory_mib"] * (1 << 20))]),
        *_metric("jobs", "gauge", "Jobs that are watched.", [({}, len(status["jobs"]))]),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _one(values: Mapping[str, Any], name: str) -> list[tuple[dict[str, Any], float]]:
    return [({}, values[name])] if name in values else []


def _metric(name: str, kind: str, about: str, rows: Iterable[tuple[Mapping[str, Any], float]]) -> list[str]:
    full = f"whystall_watch_{name}"
    found = [f"{full}{_labels(labels)} {float(value):.9g}" for labels, value in rows]
    return [f"# HELP {full} {about}", f"# TYPE {full} {kind}", *found] if found else []


def _labels(labels: Mapping[str, Any]) -> str:
    named = [f'{name}="{_escaped(str(value))}"' for name, value in labels.items() if value is not None]
    return "{" + ",".join(named) + "}" if named else ""


def _escaped(value: str) -> str:
    return clean(value, _NAME).replace("\\", "\\\\").replace('"', '\\"')
