"""Helpers for requests to chat vendors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whystall.agent_server.integrations.messages import SendError
from whystall.agent_server.outbound.request import Response
from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.sections.chat import safe_url
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

_LIMIT = 200


def json_answer(response: Response) -> dict[str, Any]:
    """Return the JSON object of a `response` of any status; raises `SendError`."""
    value = response.json()
    if isinstance(value, dict):
        return value
    if response.status >= 400:
        raise SendError(f"http_{response.status}", one_line(response.body.decode("utf-8", "replace")))
    raise SendError("bad_answer", "no JSON object")


def one_line(text: object) -> str:
    """Return a vendor's error text as one cleaned line."""
    return clean(" ".join(str(text).split()), _LIMIT)


def number(value: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of `names` that is an integer in `value`."""
    for name in names:
        found = value.get(name)
        if isinstance(found, int) and not isinstance(found, bool):
            return found
    return None


def webhook_url(secret: Secret, name: str) -> str:
    """Read the webhook address in the setting `name`; raises `ToolError` (bad_argument)."""
    try:
        return safe_url(secret.read(name))
    except ValueError as error:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name}: {error}", "copy the address from the chat") from None
