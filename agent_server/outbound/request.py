"""A request to the server of another, as a value: made by pure code, shown by ``--dry-run``, sent by `client`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Method = Literal["GET", "POST", "PUT", "PATCH"]


@dataclass(frozen=True)
class Request:
    """What is sent. `secrets`: what of `url` and `headers` nobody is shown, neither in a dry run, nor in the audit log,
    nor in an error. `repeatable`: sending it twice does no more than sending it once.
    """

    method: Method
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    repeatable: bool = False


@dataclass(frozen=True)
class Response:
    """What came back, whatever its status; `body` is bounded and unpacked."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON; None where it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


def as_json(value: Any) -> bytes:
    """`value` as the body of a request."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
