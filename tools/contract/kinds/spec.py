"""What a finding kind declares: how it was measured, its subject, its metrics with their units, its attributes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType


class Mechanism(str, Enum):
    """Independent ways to measure. Two findings confirm each other only if their mechanisms differ."""

    COUNTERS = "counters"  # the kernel's own accounting, read from /proc and cgroup files
    CALLS = "calls"  # system call entry and exit
    SWITCHES = "switches"  # the scheduler switching a thread out and in
    BLOCK = "block"  # block device requests
    INTERRUPTS = "interrupts"  # entry and exit of interrupts and softirqs
    COLLECTIVES = "collectives"  # how long each rank stayed in operations that all leave together
    WORK = "work"  # what each rank did between them: its operators, kernels and gaps
    SAMPLES = "samples"  # what was on a CPU, or on a device, at regular instants
    PAGES = "pages"  # the page cache: pages added, touched and evicted, and threads that wait for that
    WAKER = "waker"  # what the thread that ended a wait did during it
    OBJECTS = "objects"  # holders of awaited objects, and connections: /proc, sock_diag, memory of processes
    TRIAL = "trial"  # a trial run by whystall on the same file system
    LOGS = "logs"  # what the kernel and programs wrote about themselves
    DEVICE = "device"  # what the accelerator did by its own clock, as its profiler recorded it
    METRICS = "metrics"  # what a server counts of its own requests
    VERSIONS = "versions"  # which versions of software are installed or loaded
    LOG = "log"  # what drivers wrote into the kernel log
    SENSORS = "sensors"  # state and error counters of a device, by its vendor's management library


@dataclass(frozen=True)
class KindSpec:
    """The declaration of one finding kind.

    `metrics` maps a metric's name to its unit (``ms``, ``s``, ``us``, ``pct``, ``count``, ``bytes``, ``bytes/s``,
    ``1/s``, ``ratio``, ``cpus``); `attributes` are the names of its texts (operation, state, ...). `share` names the
    metric with the share of the window, in percent of one thread's time, that the finding accounts for.
    """

    mechanism: Mechanism
    subject: str
    metrics: MappingProxyType[str, str]
    attributes: frozenset[str]
    share: str | None


_UNIT_BY_SUFFIX = {
    **{unit: unit for unit in ("pct", "ms", "us", "s", "bytes", "ratio")},
    "rate": "1/s",
    "value": "ratio",  # p_value
}


def kind(
    mechanism: Mechanism, subject: str, metrics: str, attributes: str = "", *, share: str | None = None
) -> KindSpec:
    """Return a declaration; `metrics` and `attributes` are names separated by blanks.

    A metric's unit follows from the last part of its name (``total_ms``: ms), ``count`` where that is no unit. Another
    unit is written after a colon: ``read_rate:bytes/s``.
    """
    units = dict(_with_unit(metric) for metric in metrics.split())
    if share is not None and share not in units:
        raise ValueError(f"share metric {share} is not declared")
    return KindSpec(mechanism, subject, MappingProxyType(units), frozenset(attributes.split()), share)


def _with_unit(metric: str) -> tuple[str, str]:
    name, _, unit = metric.partition(":")
    return name, unit or _UNIT_BY_SUFFIX.get(name.rpartition("_")[2], "count")
