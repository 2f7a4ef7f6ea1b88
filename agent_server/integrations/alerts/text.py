"""Render alerts, routes and silences as text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from whystall.agent_server.integrations.alerts.route_trace import RouteTrace, route_path
from whystall.agent_server.integrations.alerts.routefile import Routes
from whystall.agent_server.integrations.alerts.tree import ALL, walk
from whystall.agent_server.journal.alerts import Stored
from whystall.agent_server.journal.silences import Silence
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.times import rfc3339
from whystall.prompts.render import render


def trace_text(found: Sequence[RouteTrace], left_out: int, file: str, lang: Lang) -> str:
    """Render the routing of each alert; `left_out`: number of alerts that were not traced."""
    return render("route_test.txt", lang, found=found, left_out=left_out, file=file, span=span)


def routes_text(routes: Routes, file: str, lang: Lang) -> str:
    """Render the routing tree."""
    nodes = [
        {
            "node": node,
            "route": route_path(node),
            "depth": len(node.indices),
            "matchers": [str(matcher) for matcher in node.matchers],
            "all": ALL in node.options.group_by,
            "receiver": routes.receivers[node.options.receiver],
        }
        for node in walk(routes.root)
    ]
    return render("route_show.txt", lang, nodes=nodes, routes=routes, file=file, span=span)


def alerts_text(alerts: Sequence[Stored], counts: dict[str, int], lang: Lang) -> str:
    """Render the counts and a line per alert."""
    return render("alerts.txt", lang, alerts=alerts, counts=counts, when=when)


def silences_text(silences: Sequence[Silence], now: float, lang: Lang) -> str:
    """Render a line per silence."""
    rows: list[dict[str, Any]] = [{"s": s, "state": s.state(now)} for s in silences]
    return render("silences.txt", lang, rows=rows, when=when)


def when(seconds: float) -> str:
    """Return Unix seconds as RFC 3339, or ``-`` if out of range."""
    try:
        return rfc3339(datetime.fromtimestamp(seconds, timezone.utc))
    except (ValueError, OverflowError, OSError):
        return "-"


def span(seconds: float) -> str:
    """Return a duration as Prometheus writes it: ``1h30m``."""
    rest, text = round(seconds * 1000), ""
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        if rest >= length:
            text += f"{rest // length}{unit}"
            rest %= length
    return text or "0s"
