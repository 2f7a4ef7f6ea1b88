"""``POST /chat/NAME``: what people say in chats. Believed, stored, answered; whatever it asks for is done later."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from whystall.agent_server.chat.wire import Answered, Incoming, Vendor
from whystall.agent_server.doors.web_gate import Denied, Gate
from whystall.agent_server.doors.web_refusals import Refusals
from whystall.agent_server.doors.web_route import route
from whystall.agent_server.sources import in_thread
from whystall.knowledge_base.store import KnowledgeBase

KIND = "chat"
_LIMIT = 1 << 20  # bytes; a message of a person has a few thousand
_SECONDS = 5.0
_AT_ONCE = 32
_WAITING = 1000
_FULL_S = 10


def chat_routes(kb: KnowledgeBase, vendors: Mapping[str, Vendor], refusals: Refusals) -> Iterator[Route]:
    """The callbacks of all chats."""

    async def hear(request: Request, gate: Gate) -> Response:
        vendor = vendors.get(request.path_params["name"])
        if vendor is None:
            raise Denied(404, "not_found")
        body = await gate.body(request)
        now = time.time()
        said = vendor.receive(dict(request.headers), dict(request.query_params), body, now)
        if isinstance(said, Answered):
            return Response(said.body, media_type=said.content_type)
        await in_thread(partial(take_in, kb, said, now))
        return Response(vendor.accepted.body, media_type=vendor.accepted.content_type)

    yield route("/chat/{name}", "POST", hear, Gate(_LIMIT, _SECONDS, _AT_ONCE), refusals)


def take_in(kb: KnowledgeBase, said: Incoming, now: float) -> bool:
    """Store `said` as a task; whether it came for the first time. Raises `Denied` (busy) while too much waits."""
    source = f"chat:{said.place.channel}"
    with kb.transaction():
        if kb.tasks.waiting(KIND) >= _WAITING:
            raise Denied(503, "busy", wait=_FULL_S)
        if not kb.seen.first(source, said.event, now):
            return False
        conversation = f"{source}:{said.place.conversation}"
        payload = {"incoming": said.model_dump(mode="json"), "conversation": conversation}
        return kb.tasks.add(KIND, f"{source}:{said.event}", payload) is not None
