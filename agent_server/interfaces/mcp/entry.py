"""One tool of the MCP server: its schemas, its guard and its call come from one declaration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from whystall.agent_server.interfaces.mcp.calls import Progress
from whystall.agent_server.interfaces.mcp.schemas import Schema, input_schema, output_schema
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import Params, parse_params

TEXT_LIMIT = 6000
Answer = tuple[BaseModel, str]
# Arguments that mean the same everywhere: explained by `diagnose` and by the server's instructions, not by every tool.
_COMMON = frozenset({"pid", "comm", "cgroup", "children", "duration", "top", "recording", "engine", "profile", "jobs"})
_COMMON |= {"hz", "event", "rank", "step"}
# A cluster runs what it is sent, and what it sends back is loaded as code; a model costs money, and is sent what was
# observed: no client may ask for one. Nor may one have files written on the job's disk.
_OPERATORS = frozenset({"scheduler", "llm", "calibrate", "directory"})
CORE = "core"
"""The set of those tools that observe nothing or choose for themselves what to observe."""


@dataclass(frozen=True)
class Entry:
    """One MCP tool. `call` gets the arguments that were given, already valid as `params`.

    `toolset`: the room of `tools/` that a diagnostic tool lives in (``host``, ...), else `CORE`. `repeatable`: calling
    again with the same arguments changes nothing more. `text_limit`: characters that its text may have.
    """

    name: str
    title: str
    description: str
    params: type[Params]
    result: type[BaseModel]
    call: Callable[[dict[str, Any], Progress], Awaitable[Answer]]
    read_only: bool = True
    repeatable: bool = False
    toolset: str = CORE
    text_limit: int = TEXT_LIMIT

    @property
    def arguments(self) -> Schema:
        """The input schema."""
        return input_schema(self.params, told=() if self.toolset == CORE else _COMMON, without=_OPERATORS)

    @property
    def output(self) -> Schema:
        """The output schema."""
        return output_schema(self.result)

    async def answer(self, arguments: dict[str, Any], progress: Progress) -> Answer:
        """Check `arguments` and call. Raises `ToolError`, for unknown arguments with the list of valid ones."""
        fields = [name for name in self.params.model_fields if name not in _OPERATORS]
        if refused := next((name for name in arguments if name in _OPERATORS), None):
            message = f"{refused} is for whoever runs the server"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"valid: {', '.join(fields)}")
        given = {name: value for name, value in arguments.items() if value is not None or name not in fields}
        valid = parse_params(self.params, given)
        return await self.call(valid.model_dump(include=set(given)), progress)
