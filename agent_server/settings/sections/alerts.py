"""``[alerts]``: who may send alerts, in which formats, and the file of the routing tree."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from whystall.agent_server.journal.alerts import Status
from whystall.agent_server.settings.paths import Located
from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.section import Section

_Paths = str | list[str]


class Form(Section):
    """Where a sender's own JSON holds the parts of an alert (``[alerts.forms.NAME]``).

    Each is a path of names and indices joined by dots (``event.tags.0``; quote a name that contains dots), or a list of
    paths, of which the first that exists counts. `alerts`: the list of alerts; empty: the body is one alert or a list
    of them. All other paths start at one alert. `labels`: label -> path; the label ``*`` takes all fields of an object.
    `values`: the sender's status -> ``firing`` or ``resolved``. `fingerprint`: the sender's deduplication key; without
    it the labels are.
    """

    alerts: str = ""
    status: _Paths = Field(default_factory=lambda: ["status", "state"])
    values: dict[str, Status] = Field(default_factory=dict)
    name: _Paths = Field(default_factory=lambda: ["alertname", "name", "title"])
    severity: _Paths = Field(default_factory=lambda: ["severity", "priority", "level"])
    summary: _Paths = Field(default_factory=lambda: ["summary", "message"])
    description: _Paths = Field(default_factory=lambda: ["description", "details"])
    starts: _Paths = Field(default_factory=lambda: ["startsAt", "starts_at", "timestamp", "time"])
    ends: _Paths = Field(default_factory=lambda: ["endsAt", "ends_at"])
    fingerprint: _Paths = Field(default_factory=lambda: ["fingerprint"])
    url: _Paths = Field(default_factory=lambda: ["generatorURL", "url", "link"])
    labels: dict[str, str] = Field(default_factory=lambda: {"*": "labels"})


class AlertsSettings(Section):
    """Incoming alerts; off without a `token`.

    `token`: bearer token of senders. `routes`: YAML file of the routing tree; None: one route to one receiver that
    makes tickets. `forms`: senders other than Alertmanager, for ``POST /alerts/generic/NAME``; ``generic`` is
    predefined. `keep_days`: how long alerts are kept after they ended. `related_minutes`: alerts of the same object
    that start within this time are linked as related. `flood`: new groups that notify one receiver within ten minutes;
    further ones share one ticket. `quiet_hours`: an alert counts as firing for this long after its sender's last
    update; Alertmanager repeats every four hours by default (``repeat_interval``).
    """

    token: Secret | None = None
    routes: Located | None = None
    forms: dict[str, Form] = Field(default_factory=dict)
    keep_days: Annotated[int, Field(ge=1, le=3650)] = 30
    related_minutes: Annotated[int, Field(ge=0, le=10_080)] = 60
    flood: Annotated[int, Field(ge=1, le=100_000)] = 30
    quiet_hours: Annotated[float, Field(ge=1, le=8760)] = 72.0
