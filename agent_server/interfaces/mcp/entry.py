"""One tool of the MCP server: schemas, validation and call come from one declaration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from whystall.agent_server.interfaces.mcp.asking import Arguments, Prepare
from whystall.agent_server.interfaces.mcp.calls import Progress
from whystall.agent_server.interfaces.mcp.schemas import Schema, input_schema
from whystall.agent_server.settings.sections.access import Scope
from whystall.knowledge_base.models import Lang
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import Params, parse_params

TEXT_LIMITS: Mapping[Lang, int] = {"en": 3900, "zh": 2200}
"""Characters of a text: with the next calls below 1,500 tokens, at 3 bytes of UTF-8 each."""
TEXT_LIMIT = 4500
Answer = tuple[BaseModel, str]
# Not offered to clients: a cluster's answers are loaded as code; a model costs money and receives
# observations; nor may a client have files written on the job's disk.
_OPERATORS = frozenset({"scheduler", "jobs", "llm", "calibrate", "directory"})
# Sent by the centre of a fleet only: accepted, and not listed.
_CENTRE = frozenset({"connections"})


@dataclass(frozen=True)
class Entry:
    """One MCP tool. `call` gets the given arguments, validated as `params`.

    `repeatable`: idempotent. `text_limit`: characters of its text. `task`: a long call becomes a task for clients that
    can fetch it. `scope`: that a caller over HTTP needs; None: that of the argument ``uri``. `prepare`: asks the user,
    where the client can. `view`: URI of the page that shows its result in clients with MCP Apps (`apps`).
    """

    name: str
    title: str
    description: str
    params: type[Params]
    call: Callable[[dict[str, Any], Progress], Awaitable[Answer]]
    read_only: bool = True
    repeatable: bool = False
    text_limit: int = TEXT_LIMIT
    task: bool = True
    scope: Scope | None = "observe"
    prepare: Prepare | None = None
    view: str | None = None

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """Return the scope without which no call is permitted."""
        return () if self.scope is None else (self.scope,)

    @property
    def arguments(self) -> Schema:
        """Return the input schema."""
        return input_schema(self.params, without=_OPERATORS | _CENTRE)

    def checked(self, arguments: Arguments) -> Arguments:
        """Return the given `arguments`, validated. Raises `ToolError`, for unknown ones with the list of valid ones."""
        fields = [name for name in self.params.model_fields if name not in _OPERATORS]
        if refused := next((name for name in arguments if name in _OPERATORS), None):
            message = f"{refused} is reserved for the operator of the server"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"valid: {', '.join(fields)}")
        given = {name: value for name, value in arguments.items() if value is not None or name not in fields}
        return parse_params(self.params, given).model_dump(include=set(given))

    async def answer(self, arguments: Arguments, progress: Progress) -> Answer:
        """Validate `arguments` and call. Raises `ToolError`."""
        return await self.call(self.checked(arguments), progress)
