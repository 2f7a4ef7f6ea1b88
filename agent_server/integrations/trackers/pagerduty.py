"""PagerDuty's Events API v2: https://developer.pagerduty.com/docs/events-api-v2-overview.

An event with the `dedup_key` of an open alert updates that alert, so that sending twice has no effect. One race
remains: a ``trigger`` repeated because its response was lost, after people resolved the incident meanwhile, opens
another incident. Its webhooks name an incident by the `dedup_key` of its first alert: where alerts are grouped into
incidents, events concern only the ticket of that alert.
"""

from __future__ import annotations

import socket
from typing import Any, Literal

from whystall.agent_server.integrations.trackers.desired import phase_of
from whystall.agent_server.integrations.trackers.issue import Phase, TrackerEvent
from whystall.agent_server.integrations.trackers.json_values import json_object, json_text
from whystall.agent_server.integrations.trackers.text import one_line
from whystall.agent_server.integrations.trackers.tracker import Notification, WebhookRequest
from whystall.agent_server.integrations.trackers.verification import check_pagerduty_signature, unverifiable
from whystall.agent_server.outbound.request import Request, as_json
from whystall.agent_server.settings.sections.trackers import PagerDutySink
from whystall.tools.contract.findings import Severity

_SUMMARY = 1024
_DETAIL = 10_000  # characters; an event has at most 512 KB
_SEVERITIES = {Severity.CRITICAL: "critical", Severity.MAJOR: "error", Severity.MINOR: "warning", Severity.INFO: "info"}
_ACTIONS: dict[Phase, Literal["trigger", "acknowledge", "resolve"]] = {
    "open": "trigger",
    "acknowledged": "acknowledge",
    "over": "resolve",
}
_PHASES: dict[str, Phase] = {
    "incident.acknowledged": "acknowledged",
    "incident.resolved": "over",
    "incident.reopened": "open",
}


class PagerDuty:
    """The service of `settings`."""

    def __init__(self, name: str, settings: PagerDutySink) -> None:
        self.name = name
        self._settings = settings

    def remote_ref(self, nonce: str) -> str:
        """Return the `dedup_key`."""
        return f"whystall-{nonce}"

    def read_secrets(self) -> None:
        self._routing_key()

    def requests(self, notification: Notification) -> list[Request]:
        """Return the events that bring the alert to the state of its ticket."""
        ticket, sent = notification.ticket, notification.sent
        phase, before = phase_of(ticket), sent.phase
        if before is None and (phase == "over" or not self._severe(ticket.severity)):
            return []
        phases = [phase] if phase != before else []
        if before is None and phase == "acknowledged":
            phases = ["open", "acknowledged"]
        elif phase == before == "open" and (ticket.severity.value, notification.title) != (sent.severity, sent.title):
            phases = ["open"]  # updates severity and title
        elif before == "acknowledged" and phase == "open":
            phases = []  # no event takes an acknowledgement back
        return [self._event(notification, phase) for phase in phases]

    def verify(self, webhook: WebhookRequest) -> None:
        if self._settings.webhook_secret is None:
            raise unverifiable()
        secret = self._settings.webhook_secret.read(f"sinks.{self.name}.webhook_secret")
        check_pagerduty_signature(secret, webhook.headers.get("x-pagerduty-signature", ""), webhook.body)

    def parse(self, webhook: WebhookRequest, body: dict[str, Any]) -> TrackerEvent | None:
        """Return a change of state by a person: ``{"event": {"event_type": "incident.resolved", "data": {...}}}``.

        Changes without a person are echoes of our own events, or timers.
        """
        event = json_object(body.get("event"))
        agent = json_object(event.get("agent"))
        key, by = json_text(event.get("id"), 200), json_text(agent.get("summary"), 200)
        phase = _PHASES.get(json_text(event.get("event_type"), 100))
        remote = json_text(json_object(event.get("data")).get("incident_key"), 300)
        if not key or not remote or phase is None or agent.get("type") != "user_reference":
            return None
        return TrackerEvent(key=key, remote=remote, by=by, phase=phase, changed=json_text(event.get("occurred_at"), 40))

    def _severe(self, severity: Severity) -> bool:
        return severity.rank >= Severity(self._settings.min_severity).rank

    def _routing_key(self) -> str:
        return self._settings.routing_key.read(f"sinks.{self.name}.routing_key")

    def _event(self, notification: Notification, phase: Phase) -> Request:
        ticket, text, routing_key = notification.ticket, notification.text, self._routing_key()
        key = self.remote_ref(notification.sent.nonce)
        body: dict[str, Any] = {"routing_key": routing_key, "event_action": _ACTIONS[phase], "dedup_key": key}
        if phase == "open":
            body |= {
                "client": "whystall",
                "payload": {
                    "summary": one_line(notification.title, _SUMMARY),
                    "source": self._settings.source or socket.gethostname() or "whystall",
                    "severity": _SEVERITIES[ticket.severity],
                    "component": ticket.component[:255],
                    "class": ticket.category[:255],
                    "custom_details": {
                        "ticket": ticket.id,
                        "occurrences": ticket.occurrences,
                        "text": text if len(text) <= _DETAIL else text[: _DETAIL - 3] + "...",
                    },
                },
            }
        headers, url = {"Content-Type": "application/json"}, f"{self._settings.url}/v2/enqueue"
        return Request("POST", url, headers, as_json(body), (routing_key,), repeatable=True)
