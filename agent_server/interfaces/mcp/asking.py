"""Asking the user of a client before a tool runs (elicitation), in the way of the client's protocol version.

From 2026-07-28 on the call is answered with the questions, and repeated by the client with the answers and an encrypted
state (multi-round-trip requests, SEP-2322). Before, the server sends ``elicitation/create`` and waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

Arguments = dict[str, Any]
_Context = ServerRequestContext[Any, Any]
PATIENCE_S = 45.0
"""How long an answer is awaited before 2026-07-28, s: many clients end a call after 60 s."""
_TITLED_SINCE = "2025-11-25"  # choices with titles as `oneOf` (SEP-1330)
_ROUNDS = 4  # of questions in one call, before 2026-07-28


@dataclass(frozen=True)
class Questions:
    """Forms to fill in: a text, and a flat JSON schema of the content, by key. `state`: returned with the answers."""

    forms: Mapping[str, tuple[str, Mapping[str, Any]]]
    state: str


@dataclass(frozen=True)
class Answers:
    """Answers by key, as the client sent them: the content may not match the schema, keys may be missing or unknown.

    `state`: of the questions, unchanged by the client; None if it sent none.
    """

    results: Mapping[str, types.ElicitResult]
    state: str | None


Prepare = Callable[[Arguments, "Answers | None"], Awaitable["Arguments | Questions"]]
"""Returns the arguments to call a tool with, or what must be asked first. Called with None, then with the answers."""


def can_be_asked(ctx: _Context) -> bool:
    """Return whether the client of this request shows forms to its user; an empty capability declares forms."""
    capabilities = ctx.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


async def prepared(
    ctx: _Context,
    params: types.CallToolRequestParams,
    arguments: Arguments,
    prepare: Prepare,
    patience_s: float,
) -> Arguments | types.InputRequiredResult:
    """Return the arguments to call with, after the user was asked; or the result that asks the client.

    If the client does not answer within `patience_s`, or incorrectly, all questions count as cancelled. Raises what
    `prepare` raises.
    """
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        outcome = await prepare(arguments, _returned(params))
        return _asking(outcome) if isinstance(outcome, Questions) else outcome
    answers: Answers | None = None
    for _ in range(_ROUNDS):
        outcome = await prepare(arguments, answers)
        if not isinstance(outcome, Questions):
            return outcome
        titled = ctx.protocol_version >= _TITLED_SINCE
        forms = {key: (text, schema if titled else untitled(schema)) for key, (text, schema) in outcome.forms.items()}
        results = {key: await _sent(ctx, _request(*form), patience_s) for key, form in forms.items()}
        answers = Answers(results, outcome.state)
    return arguments


def _returned(params: types.CallToolRequestParams) -> Answers | None:
    """Return the answers in a repeated call; None if it is the first."""
    if params.input_responses is None and params.request_state is None:
        return None
    given = params.input_responses or {}
    results = {key: one for key, one in given.items() if isinstance(one, types.ElicitResult)}
    return Answers(results, params.request_state)


def _request(message: str, schema: Mapping[str, Any]) -> types.ElicitRequest:
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=message, requested_schema=dict(schema)),
    )


def untitled(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` with choices as earlier versions define them, ``enum`` and ``enumNames``."""
    fields: dict[str, Any] = {}
    for name, field in schema["properties"].items():
        choices = field.get("oneOf")
        rest = {key: value for key, value in field.items() if key != "oneOf"}
        if choices is not None:
            rest |= {"enum": [one["const"] for one in choices], "enumNames": [one["title"] for one in choices]}
        fields[name] = rest
    return {**schema, "properties": fields}


def _asking(questions: Questions) -> types.InputRequiredResult:
    requests: types.InputRequests = {key: _request(*form) for key, form in questions.forms.items()}
    return types.InputRequiredResult(input_requests=requests, request_state=questions.state)


async def _sent(ctx: _Context, request: types.ElicitRequest, patience_s: float) -> types.ElicitResult:
    try:
        return await ctx.session.send_request(
            request,
            types.ElicitResult,
            request_read_timeout_seconds=patience_s,
            metadata=ServerMessageMetadata(related_request_id=ctx.request_id),
        )
    except (MCPError, ValidationError):  # refused, no channel, too late, or no answer to this question
        return types.ElicitResult(action="cancel")
