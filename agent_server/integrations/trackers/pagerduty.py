"""PagerDuty's Events API v2: https://developer.pagerduty.com/docs/events-api-v2-overview.

An event with the `dedup_key` of an open alert belongs to that alert, so that nothing has to be looked for: what is sent
twice is there once. What stays uncertain: a ``trigger`` that is repeated because its answer was lost, after people have
resolved the incident meanwhile, opens another one. Its webhooks name an incident by the `dedup_key` of its first alert:
where alerts are grouped into incidents, news of an incident are those of that ticket alone.
"""

from __future__ import annotations

import socket
from typing import Any, Literal

from whystall.agent_server.integrations.trackers.issue import Phase
from whystall.agent_server.integrations.trackers.text import one_line
from whystall.agent_server.outbound.request import Request, as_json
from whystall.agent_server.settings.sections.trackers import PagerDutySink
from whystall.knowledge_base.tickets.models import Ticket
from whystall.tools.contract.findings import Severity

_SUMMARY = 1024
_DETAIL = 10_000  # characters; an event has at most 512 KB
_SEVERITIES = {Severity.CRITICAL: "critical", Severity.MAJOR: "error", Severity.MINOR: "warning", Severity.INFO: "info"}
_ACTIONS: dict[Phase, Literal["trigger", "acknowledge", "resolve"]] = {
    "open": "trigger",
    "acknowledged": "acknowledge",
    "over": "resolve",
}


def dedup_key(nonce: str) -> str:
    """What PagerDuty knows a ticket by."""
    return f"whystall-{nonce}"


def event(
    settings: PagerDutySink, routing_key: str, ticket: Ticket, nonce: str, phase: Phase, title: str, text: str
) -> Request:
    """The event that brings the alert of `ticket` into `phase`."""
    action = _ACTIONS[phase]
    body: dict[str, Any] = {"routing_key": routing_key, "event_action": action, "dedup_key": dedup_key(nonce)}
    if action == "trigger":
        body |= {
            "client": "whystall",
            "payload": {
                "summary": one_line(title, _SUMMARY),
                "source": settings.source or socket.gethostname() or "whystall",
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
    headers = {"Content-Type": "application/json"}
    return Request("POST", f"{settings.url}/v2/enqueue", headers, as_json(body), (routing_key,), repeatable=True)


def rings(settings: PagerDutySink, ticket: Ticket) -> bool:
    """Whether a ticket is severe enough to ring somebody."""
    return ticket.severity.rank >= Severity(settings.min_severity).rank
