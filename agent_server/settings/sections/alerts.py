"""``[alerts]``: who may send alerts, in which formats, and the file of the routing tree."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from whystall.agent_server.journal.alerts import Status
from whystall.agent_server.settings.paths import Located
from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.section import Section

_Paths = str | list[str]
# Usual names of the parts of an alert; of those that an alert has, the first counts.
_STATUS = ("status", "state", "trigger_status", "event_status", "notification_type")
_NAME = (
    *("alertname", "name", "alert_name", "alertName", "alarmName", "alarm_name", "ruleName", "rule_name", "event_name"),
    *("trigger_name", "service_desc", "告警名称", "规则名称", "告警规则", "规则", "title", "subject", "标题"),
)
_SEVERITY = (
    *("severity", "priority", "level", "trigger_severity", "event_severity", "alarmLevel", "alarm_level", "alertLevel"),
    *("alert_level", "级别", "告警级别", "等级", "告警等级", "严重程度", "优先级"),
)
_SUMMARY = ("summary", "message", "annotations.summary", "annotations.message", "msg", "output")
_DESCRIPTION = ("description", "details", "annotations.description", "detail", "opdata", "描述", "详情")
_HOST = (
    *("host.name", "host.host", "host", "hostname", "host_name", "node", "instanceName", "instance_name"),
    *("主机", "主机名", "节点", "机器", "服务器", "实例", "交换机"),
)
_LABELS: dict[str, _Paths] = {"*": ["labels", "tags"], "host": list(_HOST), "instance": ["instance", "endpoint"]}


class Form(Section):
    """Where a sender's own JSON holds the parts of an alert (``[alerts.forms.NAME]``).

    Each is a path of names and indices joined by dots (``event.tags.0``; quote a name that contains dots), or a list of
    paths, of which the first that exists counts. `alerts`: the list of alerts; empty: the body is one alert or a list
    of them. All other paths start at one alert. `labels`: label -> paths; the label ``*`` takes all fields of objects.
    `values`: the sender's status -> ``firing`` or ``resolved``. `fingerprint`: the sender's deduplication key; without
    it the labels are.

    The defaults are names that Grafana's, Zabbix', Nagios' and cloud vendors' notifications usually have, and those of
    lines in alerts that are written for a chat robot.
    """

    alerts: str = ""
    status: _Paths = Field(default_factory=lambda: list(_STATUS))
    values: dict[str, Status] = Field(default_factory=dict)
    name: _Paths = Field(default_factory=lambda: list(_NAME))
    severity: _Paths = Field(default_factory=lambda: list(_SEVERITY))
    summary: _Paths = Field(default_factory=lambda: list(_SUMMARY))
    description: _Paths = Field(default_factory=lambda: list(_DESCRIPTION))
    starts: _Paths = Field(default_factory=lambda: ["startsAt", "starts_at", "timestamp", "time"])
    ends: _Paths = Field(default_factory=lambda: ["endsAt", "ends_at"])
    fingerprint: _Paths = Field(default_factory=lambda: ["fingerprint"])
    url: _Paths = Field(default_factory=lambda: ["generatorURL", "url", "link", "ruleUrl"])
    labels: dict[str, _Paths] = Field(default_factory=lambda: dict(_LABELS))


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
