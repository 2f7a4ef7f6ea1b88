"""Shows requests without their secrets."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from urllib.parse import quote

from whystall.agent_server.outbound.request import Request
from whystall.agent_server.outbound.transport import redact_parts
from whystall.tools.contract.text import clean

_LINE_LIMIT = 2000
_BODY_LIMIT = 200_000


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return `text` with ``***`` for every secret and every longer part of one, also percent-encoded."""
    forms = {form for secret in secrets for form in (secret, quote(secret, safe="")) if form}
    ordered = sorted(forms, key=lambda form: (-len(form), form))
    for form in ordered:  # whole ones first: removing parts first would leave the rest of a secret
        text = text.replace(form, "***")
    for form in ordered:
        text = redact_parts(text, form)
    return text


def request_text(request: Request) -> str:
    """Return `request` as ``--dry-run`` prints it: method and address, headers, an empty line, the indented body."""
    lines = [f"{request.method} {request.url}", *(f"{name}: {value}" for name, value in request.headers.items())]
    head = [clean(redact(line, request.secrets), _LINE_LIMIT) for line in lines]
    text = request.body.decode("utf-8", "replace")
    with contextlib.suppress(ValueError, RecursionError):
        text = json.dumps(json.loads(text), ensure_ascii=False, indent=2)
    text = redact(text, request.secrets)
    body = [clean(line, _BODY_LIMIT) for line in text.split("\n")] if text else []
    return "\n".join([*head, *([""] if body else []), *body])
