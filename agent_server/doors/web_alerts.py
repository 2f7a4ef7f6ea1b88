"""``POST /alerts/...``: alerts come in. Answered when all of them are stored, and not before."""

from __future__ import annotations

import time
from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from whystall.agent_server.alerts.intake import Intake
from whystall.agent_server.alerts.payload import BODY_LIMIT
from whystall.agent_server.alerts.settings import AlertsSettings
from whystall.agent_server.doors.web_gate import Gate, proven
from whystall.agent_server.doors.web_refusals import Refusals
from whystall.agent_server.doors.web_route import route
from whystall.agent_server.sources import in_thread

_SECONDS = 30.0
# Those who come here have shown the token; what is read of them at once is bounded all the same.
_AT_ONCE = 4


def alert_routes(intake: Intake, settings: AlertsSettings, refusals: Refusals) -> Iterator[Route]:
    """Alertmanager's webhook, and the JSON of others: ``/alerts/generic``, ``/alerts/generic/FORM``."""
    gate = Gate(BODY_LIMIT, _SECONDS, _AT_ONCE)

    async def take(request: Request, gate: Gate, form: str) -> Response:
        proven(request.headers, settings.token, "[alerts] token")
        body = await gate.body(request)
        receipt = await in_thread(lambda: intake.receive(body, time.time(), form))
        return Response(receipt.model_dump_json(), media_type="application/json")

    async def alertmanager(request: Request, gate: Gate) -> Response:
        return await take(request, gate, "alertmanager")

    async def generic(request: Request, gate: Gate) -> Response:
        return await take(request, gate, request.path_params.get("form", "generic"))

    yield route("/alerts/alertmanager", "POST", alertmanager, gate, refusals)
    yield route("/alerts/generic", "POST", generic, gate, refusals)
    yield route("/alerts/generic/{form}", "POST", generic, gate, refusals)
