"""Alerts as Alertmanager sends them, for questions in chats."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from typing import Any

from whystall.agent_server.integrations.alerts.groups import Groups
from whystall.agent_server.integrations.alerts.intake import Intake
from whystall.agent_server.integrations.alerts.routefile import from_text

ROUTES = from_text(b"route: {receiver: r, group_by: [alertname, node]}\nreceivers: [{name: r}]\n")
NFS = ("NFSServerNotResponding", "critical", "node8", "server 10.0.3.5 does not respond, 14 tasks in D state")
XID = ("XidErrors", "critical", "node7", "GPU 3: Xid 79")
DISK = ("NodeDiskLatencyHigh", "warning", "node12", "write latency 85 ms")
SLOW = ("CheckpointSlow", "warning", "node8", "checkpoint took 6 min")


def fire(chat: Any, *alerts: tuple[str, str, str, str], hours: float = 1, ended: bool = False) -> None:
    """Receive alerts that began `hours` ago, and file their tickets."""
    now = time.time()
    starts = datetime.fromtimestamp(now - 3600 * hours, timezone.utc).isoformat()
    body = [
        {
            "status": "resolved" if ended else "firing",
            "labels": {"alertname": name, "severity": severity, "instance": f"{host}:9100"},
            "annotations": {"description": text, "runbook_url": f"https://runbooks.example/{name}"},
            "startsAt": starts,
            **({"endsAt": datetime.fromtimestamp(now - 60, timezone.utc).isoformat()} if ended else {}),
        }
        for name, severity, host, text in alerts
    ]
    Intake(chat.kb, chat.settings, ROUTES).receive(json.dumps({"version": "4", "alerts": body}).encode(), now - 60)
    groups = Groups(chat.kb, chat.settings, ROUTES)
    while groups.work(now):  # one call may end before all are filed
        pass
