"""Any program that accepts JSON, signed by Standard Webhooks:
https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md.

``webhook-id`` and ``Idempotency-Key`` are the same whenever a revision is sent again, for deduplication.
"""

from __future__ import annotations

from typing import Any

from whystall.agent_server.integrations.messages import Refused
from whystall.agent_server.integrations.trackers.issue import Phase, TrackerEvent
from whystall.agent_server.integrations.trackers.json_values import json_text
from whystall.agent_server.integrations.trackers.tracker import Notification, WebhookRequest
from whystall.agent_server.integrations.trackers.verification import check_standard_webhook, unverifiable
from whystall.agent_server.outbound.request import Request, as_json
from whystall.agent_server.outbound.standard_webhooks import signature_headers
from whystall.agent_server.settings.sections.trackers import WebhookSink
from whystall.knowledge_base.ticket_models import ClosedAs

_TEXT = 4000  # characters
_ACTIONS: dict[str, Phase] = {"reopen": "open", "acknowledge": "acknowledged", "resolve": "over", "close": "over"}
_CLOSED_AS: tuple[ClosedAs, ...] = ("fixed", "no_fault", "wont_fix", "cannot_reproduce", "stale")


class Webhook:
    """The receiver of `settings`."""

    def __init__(self, name: str, settings: WebhookSink) -> None:
        self.name = name
        self._settings = settings

    def remote_ref(self, nonce: str) -> str:
        """Return the prefix of the ids of its webhooks."""
        return nonce

    def read_secrets(self) -> None:
        self._read("secret")
        self._read("authorization")

    def requests(self, notification: Notification) -> list[Request]:
        """Return the webhook for the current revision: the ticket, its new events, and its text as Markdown."""
        secret, authorization = self._read("secret"), self._read("authorization")
        ticket, events = notification.ticket, notification.events
        body: dict[str, Any] = {
            "type": "ticket.opened" if any(event.what == "opened" for event in events) else "ticket.changed",
            "ticket": ticket.model_dump(mode="json", exclude={"diagnosis", "verifications"}),
            "diagnosis": ticket.diagnosis.id if ticket.diagnosis else None,
            "events": [event.model_dump(mode="json") for event in events],
            "text": notification.text,
        }
        content = as_json(body)
        id, timestamp = f"{notification.sent.nonce}-{ticket.revision}", str(int(notification.now))
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": id,
            "webhook-id": id,
            "webhook-timestamp": timestamp,
        }
        if secret:
            headers |= signature_headers(secret, id, timestamp, content)
        if authorization:
            headers["Authorization"] = authorization
        secrets = tuple(s for s in (secret, authorization, headers.get("webhook-signature", "")) if s)
        return [Request("POST", self._settings.url, headers, content, secrets, repeatable=True)]

    def verify(self, webhook: WebhookRequest) -> None:
        if self._settings.secret is None:
            raise unverifiable()
        check_standard_webhook(self._read("secret"), webhook)

    def parse(self, webhook: WebhookRequest, body: dict[str, Any]) -> TrackerEvent | None:
        """Return the requested action: ``{"ticket": "12", "action": "resolve", "by": "ann", "text": "restarted"}``.

        Actions are acknowledge, resolve, close (with ``closed_as``), reopen and comment.
        """
        action, ticket = json_text(body.get("action"), 50), json_text(body.get("ticket"), 20)
        by, text = json_text(body.get("by"), 200), json_text(body.get("text"), _TEXT)
        key = webhook.headers.get("webhook-id", "")[:200]
        if not ticket:
            raise Refused(400, "malformed", "no ticket")
        if action == "comment" and text:
            return TrackerEvent(key=key, ticket=ticket, by=by, comment=key, text=text)
        if action not in _ACTIONS:
            raise Refused(400, "malformed", "no action")
        named, phase = json_text(body.get("closed_as"), 50), _ACTIONS[action]
        closed_as = next((as_ for as_ in _CLOSED_AS if as_ == named), "wont_fix" if action == "close" else None)
        if phase != "over":
            closed_as = None
        return TrackerEvent(key=key, ticket=ticket, by=by, phase=phase, closed_as=closed_as, text=text)

    def _read(self, field: str) -> str:
        secret = getattr(self._settings, field)
        return str(secret.read(f"sinks.{self.name}.{field}")) if secret is not None else ""
