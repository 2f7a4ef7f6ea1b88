"""What doctor says of every tool that observes, beside what a window of it then does. Prints JSON; run by tests."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from whystall.agent_server.app import App
from whystall.agent_server.doctor import examine
from whystall.agent_server.inputs.stacks import observes
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.params import JobParams, Params


def _shortest(params: type[Params]) -> float:
    """The shortest window that a tool takes, s."""
    return float(params.model_json_schema()["properties"]["duration"]["minimum"])


async def _all(only: list[str]) -> dict[str, Any]:
    said, app = examine(), App()
    done: dict[str, Any] = {}
    for tool in app.tools():
        if not observes(tool) or (only and tool.name not in only):
            continue
        try:
            of_job = {"pid": os.getpid()} if issubclass(tool.params, JobParams) else {}
            result = await app.run_tool(tool.name, {"duration": _shortest(tool.params), **of_job})
        except ToolError as error:
            done[tool.name] = {"error": error.code.value, "message": error.message}
        else:
            done[tool.name] = {"collectors": {one.name: one.engine for one in result.coverage.collectors}}
    return {"engines": said.engines, "tools": said.tools, "why": said.why, "refused": said.refused, "done": done}


print(json.dumps(asyncio.run(_all(sys.argv[1:]))))
