"""Typed access to untrusted JSON of trackers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from whystall.knowledge_base.times import moment

_LARGEST = 10**18  # of a number that identifies something


def json_object(value: Any) -> dict[str, Any]:
    """Return `value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def json_list(value: Any) -> list[Any]:
    """Return `value` if it is a JSON list, else an empty one."""
    return value if isinstance(value, list) else []


def json_objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in `value` if it is a JSON list."""
    return [row for row in json_list(value) if isinstance(row, dict)]


def json_text(value: Any, limit: int = 2000) -> str:
    """Return a string or an integer as text of at most `limit` characters; empty for anything else.

    A lone surrogate, which JSON can hold and SQLite cannot store, becomes a question mark.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    text = str(value)[:limit] if isinstance(value, str) or abs(value) < _LARGEST else ""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def tracker_time(text: str) -> datetime | None:
    """Parse a time of a tracker: ``2026-01-01T00:00:00Z``; Jira writes ``+0000``, older GitLab webhooks `` UTC``."""
    text = text.replace(" UTC", "Z")
    zoned = len(text) > 5 and text[-5] in "+-" and text[-4:].isdigit()
    return moment(f"{text[:-2]}:{text[-2:]}" if zoned else text)
