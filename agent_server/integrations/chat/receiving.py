"""Receive the callbacks of chat vendors: verify them and store each message once, as a task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from whystall.agent_server.integrations.messages import Answered, Incoming, Refused, Vendor
from whystall.agent_server.stores import Stores
from whystall.tools.contract.errors import ToolError

KEPT_S = 8 * 86_400.0
"""How long handled requests are kept for deduplication: longer than any vendor repeats them."""
TASK = "chat"


@dataclass(frozen=True)
class Reply:
    """The HTTP response to a callback. `code`: ``taken``, ``repeated``, ``replayed``, an `Answered.why` or a
    `Refused.code`; `detail`: for the log only.
    """

    status: int
    body: bytes
    content_type: str
    code: str
    detail: str = ""


def headers_by_name(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return ASGI headers by lower-case name; repeated ones are joined by commas (RFC 9110, 5.2), which makes a
    repeated signature invalid.
    """
    found: dict[str, str] = {}
    for name, value in headers:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def take(
    kb: Stores,
    vendor: Vendor,
    headers: Iterable[tuple[bytes, bytes]],
    query: Mapping[str, str],
    body: bytes,
    now: float,
) -> Reply:
    """Verify a callback and store its message as a task of kind ``chat``, once even if it is repeated.

    A refused callback stores nothing, so that a flood does not fill the database. Raises `ToolError`: database,
    disk_full (nothing was stored; the vendor repeats it).
    """
    try:
        received = vendor.receive(headers_by_name(headers), query, body, now)
    except Refused as refused:
        return _refusal(refused.status, refused.code, refused.detail)
    except ToolError as error:  # a secret cannot be read, so nothing can be verified
        return _refusal(503, "not_set_up", error.message)
    if isinstance(received, Answered):
        if received.proof:
            kb.handled_requests.first(f"chat:{vendor.name}:proof", received.proof, now)
        return Reply(200, received.body, received.content_type, received.why)
    try:
        code = _store(kb, vendor, received, now)
    except _ReplayedError:
        code = "replayed"
    return Reply(200, vendor.accepted.body, vendor.accepted.content_type, code)


class _ReplayedError(Exception):
    """The signature was used for another message before."""


def _store(kb: Stores, vendor: Vendor, received: Incoming, now: float) -> str:
    source = f"chat:{vendor.name}"
    with kb.transaction():
        if not kb.handled_requests.first(source, received.event, now):
            return "repeated"
        if received.proof and not kb.handled_requests.first(f"{source}:proof", received.proof, now):
            raise _ReplayedError  # and roll back the event
        payload = {
            "incoming": received.model_dump(mode="json"),
            "conversation": f"{vendor.name}:{received.place.conversation}",
        }
        kb.tasks.add(TASK, f"{source}:{received.event}", payload)
        detail = {"event": received.event, "text": received.text[:200]}
        kb.audit.put(source, "message.received", received.sender, "ok", detail)
    return "taken"


def _refusal(status: int, code: str, detail: str) -> Reply:
    return Reply(status, f'{{"error":"{code}"}}'.encode(), "application/json", code, detail)
