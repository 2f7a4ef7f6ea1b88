"""``POST /reports/HOST``: hosts report their tickets; answers only after a report is stored."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.interfaces.web.gate import Denied, Gate, proven
from whystall.agent_server.interfaces.web.refusals import Refusals
from whystall.agent_server.interfaces.web.route import route
from whystall.agent_server.settings.sections.reports import ReportsSettings
from whystall.agent_server.settings.sections.trackers import HOST_NAME
from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.host_reports import keep, parsed
from whystall.agent_server.ticketing.ticket_service import TicketService

BODY_LIMIT = 4 << 20
"""Bytes of a report; a diagnosis has 30 to 50 KB."""
_SECONDS = 30.0
_AT_ONCE = 32


def report_routes(kb: Stores, service: TicketService, settings: ReportsSettings, refusals: Refusals) -> Iterator[Route]:
    """Yield the route of reports of hosts."""

    async def take(request: Request, gate: Gate) -> Response:
        host = request.path_params["host"]
        if not host or not re.fullmatch(HOST_NAME, host):
            raise Denied(404, "not_found")
        proven(request.headers, settings.token_of(host), "[reports] token")
        body = await gate.body(request)
        ticket = await in_thread(lambda: keep(kb, service, host, parsed(_json(body)), time.time()))
        return JSONResponse({"ticket": ticket})

    yield route("/reports/{host}", "POST", take, Gate(BODY_LIMIT, _SECONDS, _AT_ONCE), refusals)


def _json(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise Denied(400, "malformed") from None
