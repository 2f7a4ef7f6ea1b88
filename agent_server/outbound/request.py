"""An HTTP request as a value: built by pure code, shown by ``--dry-run``, sent by `client`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Method = Literal["GET", "POST", "PUT", "PATCH"]


@dataclass(frozen=True)
class Request:
    """A request. `secrets`: parts of `url` and `headers` that never appear in a dry run, the audit log or an error.
    `repeatable`: idempotent.
    """

    method: Method
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    repeatable: bool = False


@dataclass(frozen=True)
class Response:
    """A response of any status; `body` is limited in size and decompressed."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the parsed body; None if it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


def as_json(value: Any) -> bytes:
    """Return `value` as the body of a request."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
