"""``GET /pictures/NAME``: pictures for vendors that fetch them. A signed address shows that one picture."""

from __future__ import annotations

import time
from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.pictures.store import PNG_LIMIT, Pictures
from whystall.agent_server.interfaces.web.gate import Denied, Gate
from whystall.agent_server.interfaces.web.refusals import Refusals
from whystall.agent_server.interfaces.web.route import route

_AT_ONCE = 8
_HEADERS = {
    "Cache-Control": "private, max-age=3600",
    "Content-Security-Policy": "default-src 'none'",
    "X-Content-Type-Options": "nosniff",
}


def picture_routes(pictures: Pictures, refusals: Refusals) -> Iterator[Route]:
    """Yield the route of `pictures`."""

    async def picture(request: Request, _gate: Gate) -> Response:
        name, query = request.path_params["name"], dict(request.query_params)

        def read() -> bytes:
            path = pictures.open(name, query, time.time())
            if path is None:
                raise Denied(404, "not_found")
            try:
                with path.open("rb") as file:
                    return file.read(PNG_LIMIT)
            except OSError:
                raise Denied(404, "not_found") from None

        return Response(await in_thread(read), media_type="image/png", headers=_HEADERS)

    yield route("/pictures/{name}", "GET", picture, Gate(0, 5.0, _AT_ONCE), refusals)
