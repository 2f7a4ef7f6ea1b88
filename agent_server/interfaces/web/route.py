"""Web routes with limits, whose errors are reported as codes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from whystall.agent_server.integrations.messages import Refused
from whystall.agent_server.interfaces.web.gate import Denied, Gate
from whystall.agent_server.interfaces.web.refusals import Refusals
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

Answer = Callable[[Request, Gate], Awaitable[Response]]
_AGAIN_S = 10
STATUS = {ErrorCode.BAD_ARGUMENT: 400, ErrorCode.NOT_FOUND: 404}
"""HTTP status of an error; 503 for others."""
_log = logging.getLogger("whystall.web")


def route(path: str, method: str, answer: Answer, gate: Gate, refusals: Refusals) -> Route:
    """Return a route that calls `answer` at `path`. Refusals are counted by this `path`, not by the request's."""

    async def endpoint(request: Request) -> Response:
        try:
            with gate.entered():
                return await answer(request, gate)
        except Denied as denied:
            refused = denied
        except Refused as unbelieved:
            refused = Denied(unbelieved.status, unbelieved.code, detail=unbelieved.detail)
        except ToolError as error:
            refused = _denied(error)
        except Exception:
            # Its text may hold parts of the request: it is only logged.
            _log.exception("%s failed unexpectedly", path)
            refused = Denied(500, "internal")
        await refusals.note(path, refused.code, clean(refused.detail, 300))
        return refused.response()

    return Route(path, endpoint, methods=[method])


def _denied(error: ToolError) -> Denied:
    """Return the refusal for an error: 400 for unreadable requests; else the fault is ours (a full disk, a locked file)
    and the sender retries.
    """
    status = STATUS.get(error.code, 503)
    return Denied(status, error.code.value, wait=_AGAIN_S if status == 503 else None, detail=error.message)


def json_error(status: int, code: str) -> JSONResponse:
    """Return a response that holds only `code`."""
    return JSONResponse({"error": code}, status_code=status)
