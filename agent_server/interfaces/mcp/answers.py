"""The answer of a tool in the form of the protocol."""

from __future__ import annotations

import logging
from functools import partial

import mcp_types as types
from mcp.shared.exceptions import MCPError

from whystall.agent_server.interfaces import serialize as wire
from whystall.agent_server.interfaces.mcp.asking import Arguments
from whystall.agent_server.interfaces.mcp.calls import Calls, ServerStops, Session
from whystall.agent_server.interfaces.mcp.entry import Entry
from whystall.tools.contract.errors import ToolError

_log = logging.getLogger("whystall.mcp")


class StoredFailure(Exception):
    """The text of a failure that happened earlier."""


async def call_result(calls: Calls, entry: Entry, arguments: Arguments, session: Session) -> types.CallToolResult:
    """Call `entry` and return its result, or its failure. Raises `ServerStops`, and `MCPError` of the tool itself."""
    try:
        result, text = await calls.run(partial(entry.answer, arguments), session)
    except (ServerStops, MCPError):
        raise
    except (ToolError, StoredFailure) as error:
        return failure(str(error))
    except Exception:
        # The text of an unexpected exception may hold observed data: it is only logged, and the call fails.
        _log.exception("tool %r failed unexpectedly", entry.name)
        return failure(f"internal: {entry.name!r} failed unexpectedly (see the server's log)")
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=_within(entry.text_limit, wire.inert(text)))],
        structured_content=wire.structured(result),
    )


def failure(text: str) -> types.CallToolResult:
    """Return the result of a call that failed."""
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def _within(limit: int, text: str) -> str:
    """Cut a text at its limit, visibly; texts are normally made within it."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
