"""``POST /sinks/NAME``: webhooks of trackers, authenticated by signature or token, applied and then answered."""

from __future__ import annotations

import time
from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.chat.receiving import headers_by_name
from whystall.agent_server.integrations.messages import Answered
from whystall.agent_server.integrations.trackers.apply_events import apply
from whystall.agent_server.integrations.trackers.inbound import BODY_LIMIT, receive
from whystall.agent_server.interfaces.web.gate import Denied, Gate
from whystall.agent_server.interfaces.web.refusals import Refusals
from whystall.agent_server.interfaces.web.route import route
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.tools.contract.errors import ErrorCode, ToolError

_SECONDS = 10.0
_AT_ONCE = 8
_UNREADY_S = 30


def sink_routes(kb: Stores, settings: Settings, ticket_service: TicketService, refusals: Refusals) -> Iterator[Route]:
    """Yield the webhooks of all trackers of the settings."""

    async def hear(request: Request, gate: Gate) -> Response:
        name = request.path_params["name"]
        sink = settings.sinks.get(name)
        if sink is None:
            raise Denied(404, "not_found")
        body = await gate.body(request)
        headers, query = headers_by_name(request.headers.raw), dict(request.query_params)

        def handle() -> Answered:
            now = time.time()
            try:
                received = receive(name, sink, headers, query, body, now)
            except ToolError as error:
                if error.code is not ErrorCode.BAD_ARGUMENT:
                    raise
                # Our secret cannot be read: nothing can be authenticated, the sender retries.
                raise Denied(503, "unready", wait=_UNREADY_S, detail=error.message) from None
            if isinstance(received, Answered):
                return received
            apply(received, name, sink, kb, ticket_service, now)
            return Answered()

        answer = await in_thread(handle)
        return Response(answer.body, media_type=answer.content_type)

    yield route("/sinks/{name}", "POST", hear, Gate(BODY_LIMIT, _SECONDS, _AT_ONCE), refusals)
