"""Reads what vendors answer to a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whystall.agent_server.integrations.messages import SendError
from whystall.agent_server.outbound.request import Response
from whystall.tools.contract.text import clean

_LIMIT = 200


def json_object(response: Response) -> dict[str, Any]:
    """The JSON object of a `response`, whatever its status; `SendError` where there is none."""
    value = response.json()
    if isinstance(value, dict):
        return value
    if response.status >= 400:
        raise SendError(f"http_{response.status}", words(response.body.decode("utf-8", "replace")))
    raise SendError("bad_answer", "no JSON object")


def words(text: object) -> str:
    """What a vendor says of an error, in one line."""
    return clean(" ".join(str(text).split()), _LIMIT)


def number(value: Mapping[str, Any], *names: str) -> int | None:
    """The first of `names` that is a whole number in `value`."""
    for name in names:
        found = value.get(name)
        if isinstance(found, int) and not isinstance(found, bool):
            return found
    return None
