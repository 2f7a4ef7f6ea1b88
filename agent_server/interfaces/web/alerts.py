"""``POST /alerts/...``: receive alerts; answers only after all of them are stored."""

from __future__ import annotations

import time
from collections.abc import Iterator

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.alerts.intake import Intake
from whystall.agent_server.integrations.alerts.payload import BODY_LIMIT
from whystall.agent_server.interfaces.web.gate import Denied, Gate, proven
from whystall.agent_server.interfaces.web.refusals import Refusals
from whystall.agent_server.interfaces.web.route import route
from whystall.agent_server.settings.sections.alerts import AlertsSettings

_SECONDS = 30.0
_AT_ONCE = 256
# These senders are authenticated, but what is read at once is still limited. Further ones wait,
# since not every sender retries after a refusal.
_READ_AT_ONCE = 4
_PATIENCE_S = 20.0
_AGAIN_S = 5


def alert_routes(intake: Intake, settings: AlertsSettings, refusals: Refusals) -> Iterator[Route]:
    """Yield Alertmanager's webhook, and those of other JSON: ``/alerts/generic``, ``/alerts/generic/FORM``."""
    gate = Gate(BODY_LIMIT, _SECONDS, _AT_ONCE)
    turns = anyio.Semaphore(_READ_AT_ONCE)

    async def take(request: Request, gate: Gate, form: str) -> Response:
        proven(request.headers, settings.token, "[alerts] token")
        try:
            with anyio.fail_after(_PATIENCE_S):
                await turns.acquire()
        except TimeoutError:
            raise Denied(503, "busy", wait=_AGAIN_S) from None
        try:
            body = await gate.body(request)
            receipt = await in_thread(lambda: intake.receive(body, time.time(), form))
        finally:
            turns.release()
        return Response(receipt.model_dump_json(), media_type="application/json")

    async def alertmanager(request: Request, gate: Gate) -> Response:
        return await take(request, gate, "alertmanager")

    async def generic(request: Request, gate: Gate) -> Response:
        return await take(request, gate, request.path_params.get("form", "generic"))

    yield route("/alerts/alertmanager", "POST", alertmanager, gate, refusals)
    yield route("/alerts/generic", "POST", generic, gate, refusals)
    yield route("/alerts/generic/{form}", "POST", generic, gate, refusals)
