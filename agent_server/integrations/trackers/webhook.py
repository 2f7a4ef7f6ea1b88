"""Any program that takes JSON, signed as Standard Webhooks say:
https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md.

``webhook-id`` and ``Idempotency-Key`` are the same each time a revision is sent: who remembers it does nothing twice.
"""

from __future__ import annotations

from typing import Any

from whystall.agent_server.outbound.request import Request, as_json
from whystall.agent_server.outbound.standard_webhooks import signed
from whystall.agent_server.settings.sections.trackers import WebhookSink
from whystall.knowledge_base.tickets.models import Event, Ticket


def notice(
    settings: WebhookSink,
    secret: str,
    authorization: str,
    ticket: Ticket,
    events: list[Event],
    text: str,
    nonce: str,
    now: float,
) -> Request:
    """What is sent of `ticket` as it is now. `events`: what happened since the last time; `text`: it as Markdown."""
    body: dict[str, Any] = {
        "type": "ticket.opened" if any(event.what == "opened" for event in events) else "ticket.changed",
        "ticket": ticket.model_dump(mode="json", exclude={"diagnosis", "verifications"}),
        "diagnosis": ticket.diagnosis.id if ticket.diagnosis else None,
        "events": [event.model_dump(mode="json") for event in events],
        "text": text,
    }
    content = as_json(body)
    id = f"{nonce}-{ticket.revision}"
    timestamp = str(int(now))
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": id,
        "webhook-id": id,
        "webhook-timestamp": timestamp,
    }
    if secret:
        headers |= signed(secret, id, timestamp, content)
    if authorization:
        headers["Authorization"] = authorization
    secrets = tuple(s for s in (secret, authorization, headers.get("webhook-signature", "")) if s)
    return Request("POST", settings.url, headers, content, secrets, repeatable=True)
