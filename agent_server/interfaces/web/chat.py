"""``POST /chat/NAME``: receive chat messages. Authenticated, stored, answered; requests in them are executed later.
``GET /chat/NAME``: a vendor's challenge to register the address.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.chat.receiving import TASK, Reply, take
from whystall.agent_server.integrations.messages import Vendor
from whystall.agent_server.interfaces.web.gate import Denied, Gate
from whystall.agent_server.interfaces.web.refusals import Refusals
from whystall.agent_server.interfaces.web.route import route
from whystall.agent_server.stores import Stores

_PATH = "/chat/{name}"
_LIMIT = 1 << 20  # bytes; a typed message has a few thousand
_SECONDS = 5.0
_AT_ONCE = 32
_WAITING = 1000
_FULL_S = 10
# Refused with 200, so that the sender does not repeat it.
_UNWANTED = frozenset({"unknown_sender", "replayed"})


def chat_routes(kb: Stores, vendors: Mapping[str, Vendor], refusals: Refusals) -> Iterator[Route]:
    """Yield the callbacks of all chats, each authenticated by its vendor's signature."""

    async def hear(request: Request, gate: Gate) -> Response:
        vendor = vendors.get(request.path_params["name"])
        if vendor is None or (request.method != "POST" and not vendor.challenged_by_get):
            raise Denied(404, "not_found")
        body = await gate.body(request) if request.method == "POST" else b""
        headers, query = request.headers.raw, dict(request.query_params)

        def taken() -> Reply:
            if kb.tasks.waiting(TASK) >= _WAITING:
                raise Denied(503, "busy", wait=_FULL_S)
            return take(kb, vendor, headers, query, body, time.time())

        reply = await in_thread(taken)
        if reply.status != 200:
            raise Denied(reply.status, reply.code, wait=_FULL_S if reply.status == 503 else None, detail=reply.detail)
        if reply.code in _UNWANTED:
            await refusals.note(_PATH, reply.code)
        return Response(reply.body, media_type=reply.content_type)

    gate = Gate(_LIMIT, _SECONDS, _AT_ONCE)
    yield route(_PATH, "POST", hear, gate, refusals)
    if any(vendor.challenged_by_get for vendor in vendors.values()):
        yield route(_PATH, "GET", hear, gate, refusals)
