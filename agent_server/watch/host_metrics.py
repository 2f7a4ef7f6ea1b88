"""All metrics of this host: of its watcher, and of the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.agent_server.metrics.of_server import info, server_families
from whystall.agent_server.metrics.of_watch import watch_families
from whystall.agent_server.watch.status import read_status
from whystall.tools.recording.home import home

if TYPE_CHECKING:
    from whystall.agent_server.metrics.families import Family
    from whystall.agent_server.stores import Stores


def host_metrics(kb: Stores, now: float) -> list[Family]:
    """Return the metrics at `now`, s since the epoch. Raises `ToolError` (database)."""
    return [info(), *watch_families(read_status(home() / "watch"), now), *server_families(kb, now)]
