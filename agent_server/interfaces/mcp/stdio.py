"""MCP over standard input and output, which carry only the protocol."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import anyio
from mcp.server.stdio import stdio_server

from whystall.agent_server.interfaces.mcp.server import McpServer

_UNWIND_S = 5.0


async def serve(mcp_server: McpServer) -> None:
    """Serve one client until it closes standard input."""
    async with stdio_server() as (reads, writes):
        await mcp_server.server.run(reads, writes, mcp_server.server.create_initialization_options())


async def leave(mcp_server: McpServer, signum: int, note: Callable[[str], None]) -> None:
    """End the process; calls in flight are cancelled and unwound first.

    The SDK reads standard input in a thread that cannot be interrupted, so returning would wait for the client.
    """
    mcp_server.calls.stop()
    await mcp_server.calls.idle(_UNWIND_S)
    await anyio.sleep(0.05)  # time to write the answers of cancelled calls
    note(f"error: cancelled: stopped by {signal.Signals(signum).name}; nothing is left attached")
    os._exit(128 + signum)
