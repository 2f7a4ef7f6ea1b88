"""The centre: another whystall server that keeps the tickets and diagnoses of many hosts (`interfaces.web.reports`).

Each report has the whole ticket and its number of revision, so that sending it again has no effect.
"""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import quote

from whystall.agent_server.integrations.trackers.issue import TrackerEvent
from whystall.agent_server.integrations.trackers.tracker import Notification, WebhookRequest
from whystall.agent_server.integrations.trackers.verification import unverifiable
from whystall.agent_server.outbound.request import Request, as_json
from whystall.agent_server.settings.sections.trackers import CentreSink
from whystall.agent_server.ticketing.host_reports import HostReport


class Centre:
    """The centre of `settings`."""

    def __init__(self, name: str, settings: CentreSink) -> None:
        self.name = name
        self._settings = settings

    def remote_ref(self, nonce: str) -> str:
        """Return what the centre knows the ticket by, with the name of this host."""
        return nonce

    def read_secrets(self) -> None:
        self._token()

    def requests(self, notification: Notification) -> list[Request]:
        """Return the report of the current revision."""
        host, token = self._settings.host or socket.gethostname(), self._token()
        ref, ticket = self.remote_ref(notification.sent.nonce), notification.ticket
        report = HostReport(ref=ref, title=notification.title, ticket=ticket)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        url = f"{self._settings.url}/reports/{quote(host, safe='')}"
        return [Request("POST", url, headers, as_json(report.model_dump(mode="json")), (token,), repeatable=True)]

    def verify(self, webhook: WebhookRequest) -> None:
        raise unverifiable()  # a centre sends nothing back

    def parse(self, webhook: WebhookRequest, body: dict[str, Any]) -> TrackerEvent | None:
        return None

    def _token(self) -> str:
        return self._settings.token.read(f"sinks.{self.name}.token")
