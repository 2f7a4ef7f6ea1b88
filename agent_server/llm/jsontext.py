"""JSON from strangers."""

from __future__ import annotations

import json
from typing import Any


class NotJson(ValueError):
    """The text is no JSON, or nested so deeply that it means harm."""


def parsed(text: str | bytes) -> Any:
    """What `text` says. Bytes that are no UTF-8 are replaced: servers cut characters in two.

    Strings of the value may hold lone surrogates, which cannot be written again: see `whole`.
    """
    try:
        return json.loads(text.decode("utf-8-sig", "replace") if isinstance(text, bytes) else text)
    except (ValueError, RecursionError):
        raise NotJson("no JSON") from None


def whole(text: str) -> str:
    """`text` with the halves of characters (surrogates) joined, and those without a partner replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
