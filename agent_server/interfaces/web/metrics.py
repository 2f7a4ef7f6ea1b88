"""``GET /metrics``: what the watcher of this host and the database know, for Prometheus."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.interfaces.web.gate import Gate, proven
from whystall.agent_server.interfaces.web.refusals import Refusals
from whystall.agent_server.interfaces.web.route import route
from whystall.agent_server.metrics.families import CONTENT_TYPE, text
from whystall.agent_server.settings.sections.metrics import MetricsSettings
from whystall.agent_server.stores import Stores
from whystall.agent_server.watch.host_metrics import host_metrics

PATH = "/metrics"
_AT_ONCE = 4


def metrics_route(kb: Stores, settings: MetricsSettings, refusals: Refusals) -> Route:
    """Return the route; the sender needs ``[metrics] token``."""

    async def metrics(request: Request, _gate: Gate) -> Response:
        proven(request.headers, settings.token, "[metrics] token")
        return Response(await in_thread(lambda: text(host_metrics(kb, time.time()))), media_type=CONTENT_TYPE)

    return route(PATH, "GET", metrics, Gate(0, 5.0, _AT_ONCE), refusals)
