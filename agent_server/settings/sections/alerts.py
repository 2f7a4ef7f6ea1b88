"""``[alerts]`` of the settings: who may send alerts, in which forms, and where the routing tree is."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from whystall.agent_server.journal.alerts import Status
from whystall.agent_server.settings.paths import Located
from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.section import Section

_Paths = str | list[str]


class Form(Section):
    """Where in a sender's own JSON the parts of an alert stand (``[alerts.forms.NAME]``).

    Every place is a path of names and numbers with dots between (``event.tags.0``; a name with dots in it in double
    quotes), or several, of which the first that is there counts. `alerts`: of the list of alerts; empty: the body is
    one alert, or a list of them; all other paths begin at one alert. `labels`: name of our label -> path; a path to an
    object with the name ``*`` takes all that is in it. `values`: what the sender calls a status -> ``firing`` or
    ``resolved``. `fingerprint`: where the sender says what makes an alert the same; else its labels do.
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
    """Alerts that come in. Off while there is no `token`.

    `token`: bearer token of senders. `routes`: YAML file with the routing tree; None: one route to one receiver that
    makes tickets. `forms`: of senders other than Alertmanager, for ``POST /alerts/generic/NAME``; ``generic`` is there
    unless it is defined otherwise. `keep_days`: how long alerts are kept after they are over.
    `related_minutes`: how far apart alerts of the same thing may begin to be linked as related. `flood`: groups that
    one receiver is told of for the first time within ten minutes; those beyond share one ticket. `quiet_hours`: how
    long after its sender last spoke of it an alert is still told as firing; Alertmanager repeats itself every four
    hours, unless its ``repeat_interval`` is longer.
    """

    token: Secret | None = None
    routes: Located | None = None
    forms: dict[str, Form] = Field(default_factory=dict)
    keep_days: Annotated[int, Field(ge=1, le=3650)] = 30
    related_minutes: Annotated[int, Field(ge=0, le=10_080)] = 60
    flood: Annotated[int, Field(ge=1, le=100_000)] = 30
    quiet_hours: Annotated[float, Field(ge=1, le=8760)] = 72.0
