"""The web application: alerts, chats, webhooks of trackers, schedules and pictures, with MCP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.interfaces.web.route import json_error
from whystall.tools.contract.errors import ToolError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from whystall.agent_server.stores import Stores

HEALTH = "/healthz"
_HEALTH_S = 5.0
_CODES = {404: "not_found", 405: "method", 413: "too_large"}


def web_app(routes: Sequence[BaseRoute], mcp: Starlette | None) -> ASGIApp:
    """Return an application of `routes`; all other paths go to `mcp`, if served, whose lifespan it takes over."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        if mcp is None:
            yield
            return
        async with mcp.router.lifespan_context(mcp):
            yield

    async def refused(_request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return json_error(status, _CODES.get(status, "refused"))

    beside = [Mount("/", app=mcp)] if mcp is not None else []
    return Starlette(
        routes=[*routes, *beside],
        lifespan=lifespan,
        exception_handlers={HTTPException: refused},
    )


def health_route(kb: Stores | None, failing: Callable[[], bool]) -> Route:
    """Return ``GET /healthz``: fails if `kb` cannot be read or `failing` returns True."""

    async def healthz(_request: Request) -> Response:
        well = not failing()
        try:
            if kb is not None:
                with anyio.fail_after(_HEALTH_S):
                    await in_thread(kb.version)
        except (ToolError, TimeoutError):
            well = False
        return JSONResponse({"status": "ok" if well else "failing"}, status_code=200 if well else 503)

    return Route(HEALTH, healthz, methods=["GET"])
