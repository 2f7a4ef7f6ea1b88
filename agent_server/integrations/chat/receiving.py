"""A callback of a chat: believed or refused, stored once with what follows from it, answered at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from whystall.agent_server.integrations.messages import Answered, Incoming, Refused, Vendor
from whystall.agent_server.stores import Stores
from whystall.tools.contract.errors import ToolError

KEPT_S = 8 * 86_400.0
"""For so long what was taken has to be remembered (`HandledRequests.forget`): longer than a vendor repeats it."""
TASK = "chat"


@dataclass(frozen=True)
class Reply:
    """The answer of HTTP to a callback. `code` says what became of it: ``taken``, ``repeated``, ``replayed``, a reason
    of `Answered.why`, or one of `Refused`; `detail` is for our own log alone.
    """

    status: int
    body: bytes
    content_type: str
    code: str
    detail: str = ""


def lowered(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers as ASGI has them, by names in lower case; one that came more often is joined by commas (RFC 9110, 5.2),
    so that of two signatures neither is taken.
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
    """Take the callback of `vendor`: what a person says becomes a task of kind ``chat``, once, however often it comes.
    What is not believed stores nothing: the door counts it, or a flood would be a flood of entries.

    `now`: seconds since the epoch. Raises `ToolError`: database, disk_full (nothing was stored: it comes again).
    """
    try:
        said = vendor.receive(lowered(headers), query, body, now)
    except Refused as refused:
        return _refusal(refused.status, refused.code, refused.detail)
    except ToolError as error:  # a secret of ours cannot be read: nobody can be believed
        return _refusal(503, "not_set_up", error.message)
    if isinstance(said, Answered):
        if said.proof:
            kb.handled_requests.first(f"chat:{vendor.name}:proof", said.proof, now)
        return Reply(200, said.body, said.content_type, said.why)
    try:
        code = _store(kb, vendor, said, now)
    except _ReplayedError:
        code = "replayed"
    return Reply(200, vendor.accepted.body, vendor.accepted.content_type, code)


class _ReplayedError(Exception):
    """A proof that was used for another message before."""


def _store(kb: Stores, vendor: Vendor, said: Incoming, now: float) -> str:
    source = f"chat:{vendor.name}"
    with kb.transaction():
        if not kb.handled_requests.first(source, said.event, now):
            return "repeated"
        if said.proof and not kb.handled_requests.first(f"{source}:proof", said.proof, now):
            raise _ReplayedError  # the event is not seen either: it was nobody's
        payload = {
            "incoming": said.model_dump(mode="json"),
            "conversation": f"{vendor.name}:{said.place.conversation}",
        }
        kb.tasks.add(TASK, f"{source}:{said.event}", payload)
        kb.audit.put(source, "message.received", said.sender, "ok", {"event": said.event, "text": said.text[:200]})
    return "taken"


def _refusal(status: int, code: str, detail: str) -> Reply:
    return Reply(status, f'{{"error":"{code}"}}'.encode(), "application/json", code, detail)
