"""The metrics of the watcher, from the status that it writes. Pure.

At most 100 jobs and 100 processes of each have series; the watcher follows at most 500 processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from whystall.agent_server.metrics.families import Family, family
from whystall.agent_server.metrics.stall_seconds import JOBS

SILENT_S = 60.0
"""A status this old is of a watcher that hangs or was killed: its gauges no longer hold."""
_PROCESSES = 100
_KINDS = ("gap", "late", "wait", "signal", "ongoing", "slowdown", "drift")


def watch_families(status: Mapping[str, Any] | None, now: float) -> list[Family]:
    """Return the metrics in `status`, which was read at `now`, s since the epoch; None: no watcher has run.

    Gauges are those of a running watcher only. A status of another version lacks what this one does not know.
    """
    try:
        return _families(status, now) if status is not None else [_running(False)]
    except (KeyError, TypeError, ValueError, AttributeError):  # a damaged file
        return [_running(False)]


def _running(running: bool) -> Family:
    return family("watch_running", "gauge", "Whether the watcher runs.", [({}, running)])


def _families(status: Mapping[str, Any], now: float) -> list[Family]:
    running = bool(status.get("running")) and now - float(status.get("written", 0)) < SILENT_S
    made = [
        _running(running),
        family(
            "watch_updated_timestamp_seconds",
            "gauge",
            "When the watcher last wrote its state.",
            [({}, status.get("written", 0))],
        ),
        *(replace(one, since=float(status.get("since", 0))) for one in _counters(status)),
    ]
    return [*made, *_gauges(status)] if running else made


def _counters(status: Mapping[str, Any]) -> Iterator[Family]:
    counts = status.get("counts", {})
    yield family(
        "watch_stall_seconds_total",
        "counter",
        "Seconds that processes of jobs stalled, by the cause that was found.",
        (({"job_name": job, "rank": rank, "cause": cause}, s) for job, rank, cause, s in status.get("stalls", ())),
    )
    yield family(
        "watch_noticed_total",
        "counter",
        "Stalls that were noticed, by kind.",
        (({"kind": kind}, counts[kind]) for kind in _KINDS if kind in counts),
    )
    yield family(
        "watch_cases_total",
        "counter",
        "Stalls by what became of them.",
        (({"outcome": name.removeprefix("why_")}, n) for name, n in counts.items() if name.startswith("why_")),
    )
    yield family("watch_tickets_total", "counter", "Tickets that were opened.", [({}, counts.get("tickets", 0))])
    yield family(
        "watch_unobserved_total", "counter", "Times that the host was suspended.", [({}, counts.get("unobserved", 0))]
    )
    yield family(
        "watch_cpu_seconds_total", "counter", "CPU time of the watcher's process.", [({}, status.get("cpu_s", 0))]
    )
    yield family("watch_lost_events_total", "counter", "Events that were lost.", _of(status, "lost"))
    if pushed := status.get("profiles"):
        yield family(
            "watch_profile_spans_total",
            "counter",
            "Spans whose profiles were sent, or lost: at least one job of them was not stored.",
            (({"outcome": name}, pushed[f"spans_{name}"]) for name in ("sent", "lost")),
        )
        yield family(
            "watch_profiles_cpu_seconds_total", "counter", "CPU time of sending profiles.", [({}, pushed["cpu_s"])]
        )


def _gauges(status: Mapping[str, Any]) -> Iterator[Family]:
    processes = [
        ({"job_name": job["name"], "rank": one["rank"], "pid": one["pid"]}, one)
        for job in status["jobs"][:JOBS]
        for one in job["processes"][:_PROCESSES]
    ]
    yield family(
        "watch_step_seconds",
        "gauge",
        "Median time of a step, where one is known.",
        ((labels, one["step_ms"] / 1000) for labels, one in processes if one["step_ms"]),
    )
    yield family(
        "watch_stalled",
        "gauge",
        "Whether a process is stalled now.",
        ((labels, one["stalled"]) for labels, one in processes),
    )
    yield family(
        "watch_stalled_seconds",
        "gauge",
        "How long a process has been stalled; 0 if it is not, or if that was found to be no fault.",
        ((labels, one.get("stalled_s", 0)) for labels, one in processes),
    )
    yield family(
        "watch_cpu_share",
        "gauge",
        "CPU that recording costs, of one core, with the programs in the kernel.",
        _of(status, "cpu_share"),
    )
    yield family(
        "watch_resident_bytes",
        "gauge",
        "Memory of the watcher.",
        [({}, status.get("memory_mib", 0) * (1 << 20))],
    )
    yield family("watch_log_bytes", "gauge", "Size of the log of waits.", _of(status, "disk_bytes"))
    yield family("watch_jobs", "gauge", "Jobs that are watched.", [({}, len(status["jobs"]))])
    yield family("watch_jobs_beyond", "gauge", "Jobs beyond the bound of the watcher.", [({}, status.get("beyond", 0))])
    yield family("watch_pending_cases", "gauge", "Stalls that wait to be judged.", [({}, status.get("pending", 0))])


def _of(status: Mapping[str, Any], name: str) -> list[tuple[dict[str, object], float]]:
    """Return the value `name` of the recorder's cost; it is missing until the recorder has run."""
    cost = status.get("cost", {})
    return [({}, cost[name])] if name in cost else []
