"""The alerts that were received."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.alerts.text import when
from whystall.agent_server.interfaces.web.console.site import Site, Visit
from whystall.agent_server.journal.alerts import Status

_MOST = 100


def alert_routes(site: Site) -> Iterator[Route]:
    """Yield the page of alerts."""

    async def alerts(visit: Visit) -> Response:
        given, name = visit.query("status"), visit.query("name").strip()[:200]
        status: Status | None = "firing" if given == "firing" else "resolved" if given == "resolved" else None

        def read() -> dict[str, Any]:
            found = site.kb.alerts.find(status, name or None, None, _MOST)
            return {"alerts": found, "counts": site.kb.alerts.counts()}

        return site.show(
            visit, "alerts", status=status or "", name=name, when=when, most=_MOST, **await in_thread(read)
        )

    yield site.page("/alerts", alerts, "tickets")
