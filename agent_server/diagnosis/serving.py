"""Decide whether a diagnosis reads the metrics of an inference server, and of which address."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from whystall.agent_server.diagnosis.causes import SERVING_TOOL
from whystall.tools.collect.engines import ENGINES
from whystall.tools.collect.serving.engine import COLLECTOR
from whystall.tools.collect.serving.listening import metrics_endpoints
from whystall.tools.recording.assignment import can_serve
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target, children_of


def serving_options(url: str | None, target: Target) -> dict[str, dict[str, Any]] | None:
    """Return the arguments of the tool that reads the metrics of `target`; None if it serves none.

    Nothing is contacted: without a `url`, the process must listen on a port that is one for metrics.
    """
    pids: Collection[int] = target.pids
    if target.follow:
        pids = {*pids, *children_of(target.pids)}
    if url is None and not metrics_endpoints(pids)[0]:
        return None
    named = {"metrics_url": url} if url is not None else {}
    return {SERVING_TOOL: {**named, "device": can_serve("gpu_state", ENGINES)}}


def recorded_serving(recording: Recording) -> bool:
    """Return whether `recording` holds the metrics of a server."""
    return recording.has(COLLECTOR) and recording.table(f"{COLLECTOR}.scrapes").height > 0
