"""Parse JSON of unknown quality."""

from __future__ import annotations

import json
from typing import Any


class NotJson(ValueError):
    """The text is not JSON, or nested too deeply."""


def parse_json(text: str | bytes) -> Any:
    """Parse `text`, replacing bytes that are not UTF-8: servers cut characters in two. Raises `NotJson`.

    Strings may contain lone surrogates, which cannot be encoded: see `join_surrogates`.
    """
    try:
        return json.loads(text.decode("utf-8-sig", "replace") if isinstance(text, bytes) else text)
    except (ValueError, RecursionError):
        raise NotJson("no JSON") from None


def join_surrogates(text: str) -> str:
    """Return `text` with surrogate pairs joined, and lone surrogates replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
