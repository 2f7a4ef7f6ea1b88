"""One session of an assistant with an MCP server: list the tools, call what the policy wants, until it concludes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TextIO

import mcp_types as types
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client

from benchmarks.faults.answer import Answer
from benchmarks.faults.assistants.policy import Policy
from benchmarks.faults.assistants.transcripts import Called, Concluded, Offered, Started, Tool, Transcript, Writer

MOST_CALLS = 12
"""Calls after which a session ends without a conclusion."""
_CALL_S = 120.0


async def run(
    command: list[str],
    environment: Mapping[str, str],
    policy: Policy,
    pid: int,
    symptom: str,
    path: Path | None,
    errors: TextIO,
) -> Transcript:
    """Start a server on pipes, let `policy` answer the question, and return the transcript, also stored at `path`.

    `errors`: gets the server's standard error. Raises OSError or MCPError if the server cannot be reached, and what
    the policy raises.
    """
    parameters = StdioServerParameters(command=command[0], args=command[1:], env=dict(environment))
    async with Client(stdio_client(parameters, errors)) as client:
        info = client.server_info
        start = Started(
            pid=pid,
            symptom=symptom,
            assistant=policy.name,
            model=policy.model,
            server=f"{info.name} {info.version}" if info else "",
            instructions=client.instructions or "",
            at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )
        writer = Writer(path, start)
        transcript = Transcript(start, [_tool(one) for one in await _tools(client)])
        writer.put(Offered(tools=transcript.tools))
        while transcript.conclusion is None:
            step = await policy.next(transcript.tools, start, transcript.calls)
            if isinstance(step, Answer):
                transcript.conclusion = Concluded(answer=step)
            elif len(transcript.calls) >= MOST_CALLS:
                transcript.conclusion = Concluded(answer=Answer(verdict="inconclusive"), stopped="calls")
            else:
                transcript.calls.append(await call(client, step.tool, step.arguments, step.message))
                writer.put(transcript.calls[-1])
        writer.put(transcript.conclusion)
    return transcript


async def call(client: Client, tool: str, arguments: dict[str, object], message: str = "") -> Called:
    """Call a tool and return what it returned; an error of the protocol is a failed call."""
    begin = time.monotonic()
    asked = Called(tool=tool, arguments=arguments, message=message)
    try:
        result = await client.call_tool(tool, arguments, read_timeout_seconds=_CALL_S)
    except MCPError as error:
        return asked.model_copy(update={"text": str(error), "error": True, "seconds": time.monotonic() - begin})
    text = "\n".join(part.text for part in result.content if isinstance(part, types.TextContent))
    found = {"text": text, "structured": result.structured_content, "error": bool(result.is_error)}
    return asked.model_copy(update={**found, "seconds": time.monotonic() - begin})


async def _tools(client: Client) -> list[types.Tool]:
    """Return all pages of the list of tools."""
    listed = await client.list_tools()
    tools = list(listed.tools)
    while listed.next_cursor:
        listed = await client.list_tools(cursor=listed.next_cursor)
        tools += listed.tools
    return tools


def _tool(tool: types.Tool) -> Tool:
    return Tool(
        name=tool.name, title=tool.title or "", description=tool.description or "", input_schema=tool.input_schema
    )
