"""Select causes by the evidence that decides them: traces of ranks, or observation of a host. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whystall.knowledge_base.models import Cause

RANKS_TOOL = "slow_node_check"
"""Judges the traces of a job's ranks."""
BASELINE_TOOL = "compare_runs"
"""Compares the operators of those traces with stored runs, if a baseline is named."""
TOPOLOGY_TOOL = "cluster_topology"
"""Says where the ranks of those traces run, if files of the topology are named."""
LOGS_TOOL = "crash_analyse"
DEVICES_TOOL = "gpu_health"
"""Judges logs."""
FIRST_TOOL = "host_snapshot"
"""The cheapest tool: runs first in every case of a host."""
PATH_TOOL = "critical_path"
"""The tool that accounts for the victim's time."""
FIRST_TOOLS = (PATH_TOOL, "lock_wait", "net_latency")
"""Run with the first tool: they share their collectors, none of which hooks system calls."""
NEWER_TOOLS = frozenset({*FIRST_TOOLS, "memory_growth", "python_stacks"})
"""Tools for which recordings of version 0.1 hold no data."""
SERVING_TOOL = "inference_latency"
"""Reads the metrics of an inference server: only if the target is one."""
HARDWARE_TOOL = "gpu_health"
"""Reads what drivers reported; runs with the first tool. Recordings before it hold no data for it."""


def of_ranks(causes: Mapping[str, Cause], *, baseline: bool = False) -> dict[str, Cause]:
    """Return the causes that traces of ranks can support; with `baseline` also those that stored runs can."""
    tools = {RANKS_TOOL, BASELINE_TOOL} if baseline else {RANKS_TOOL}
    return {id: cause for id, cause in causes.items() if not tools.isdisjoint(cause.examined_by)}


def of_hosts(causes: Mapping[str, Cause], *, serving: bool = True) -> dict[str, Cause]:
    """Return the causes that observing a host can decide; the others would stay open. `serving`: also those that only
    the metrics of an inference server decide."""
    others = {RANKS_TOOL, BASELINE_TOOL, LOGS_TOOL, *([] if serving else [SERVING_TOOL])}
    return {id: cause for id, cause in causes.items() if not set(cause.examined_by) <= others}


def of_logs(causes: Mapping[str, Cause]) -> dict[str, Cause]:
    """Return the causes that logs can support."""
    return {id: cause for id, cause in causes.items() if LOGS_TOOL in cause.examined_by}
