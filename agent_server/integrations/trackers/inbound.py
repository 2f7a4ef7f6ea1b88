"""Webhooks of trackers: verified and parsed by the module of each tracker."""

from __future__ import annotations

import json
from collections.abc import Mapping

from whystall.agent_server.integrations.messages import Answered, Refused
from whystall.agent_server.integrations.trackers.issue import TrackerEvent
from whystall.agent_server.integrations.trackers.json_values import json_object
from whystall.agent_server.integrations.trackers.registry import open_sink
from whystall.agent_server.integrations.trackers.tracker import WebhookRequest
from whystall.agent_server.settings.sections.trackers import SinkSettings

BODY_LIMIT = 8 << 20
"""Bytes of a webhook. GitHub sends up to 25 MB, but far less for an issue and a comment."""


def receive(
    name: str, settings: SinkSettings, headers: Mapping[str, str], query: Mapping[str, str], body: bytes, now: float
) -> list[TrackerEvent] | Answered:
    """Return the events in a webhook of the tracker `name`. `headers` in lower case; `now`: seconds since the epoch.

    Raises `Refused`; `ToolError` (bad_argument) if our secret cannot be read.
    """
    if len(body) > BODY_LIMIT:
        raise Refused(413, "too_large")
    if not settings.two_way:
        raise Refused(404, "off", "two_way is off")
    sink, webhook = open_sink(name, settings), WebhookRequest(headers, query, body, now)
    sink.verify(webhook)
    try:
        parsed = json_object(json.loads(body))
    except (ValueError, RecursionError):
        raise Refused(400, "malformed", "no JSON") from None
    if not parsed:
        raise Refused(400, "malformed", "no object of JSON")
    event = sink.parse(webhook, parsed)
    return [event] if event is not None else Answered()
