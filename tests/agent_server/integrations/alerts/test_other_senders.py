"""Alerts of senders without settings: their usual fields, and texts that they write for the robot of a chat."""

from __future__ import annotations

import json
from typing import Any

import pytest

from whystall.agent_server.integrations.alerts.incoming_alert import IncomingAlert
from whystall.agent_server.integrations.alerts.payload import read
from whystall.agent_server.integrations.alerts.related import hosts_of, severity_of, things_of

NOW = 1_800_000_000.0


def one(body: Any, form: str = "generic") -> IncomingAlert:
    ((_, found),) = read(json.dumps(body).encode(), form, {}, frozenset(), NOW).parse(0, 9)
    assert isinstance(found, IncomingAlert), found
    return found


ZABBIX = {"event_name": "Load is high", "trigger_severity": "High", "trigger_status": "PROBLEM", "host": "cn-42"}
NAGIOS = {"hostname": "ib-sw-4", "service_desc": "symbol errors", "state": "CRITICAL", "output": "88213 on port 17"}
GRAFANA = {"title": "[Alerting] idle", "ruleName": "GPU idle", "state": "alerting", "tags": {"host": "gpu-3"}}
CLOUD = {"alarmName": "RDMA 重传", "alarmLevel": "重要", "instanceName": "i-gpu-31"}
NESTED = {"name": "eth2 errors", "severity": "Warning", "host": {"name": "stor-11", "ip": "10.0.0.9"}}


@pytest.mark.parametrize(
    ("body", "name", "severity", "host"),
    [
        (ZABBIX, "Load is high", "major", "cn-42"),
        (NAGIOS, "symbol errors", "critical", "ib-sw-4"),
        (GRAFANA, "GPU idle", None, "gpu-3"),
        (CLOUD, "RDMA 重传", "major", "i-gpu-31"),
        (NESTED, "eth2 errors", "minor", "stor-11"),
    ],
    ids=lambda value: value.get("host", "") if isinstance(value, dict) else str(value),
)
def test_usual_fields_are_read(body: dict[str, Any], name: str, severity: str | None, host: str) -> None:
    found = one(body)
    graded = severity_of(found.labels)
    assert found.labels["alertname"] == name
    assert (graded.value if graded is not None else None) == severity
    assert hosts_of(things_of(found.labels)) == [host]
    assert found.status == "firing"


def test_hosts_of_one_alert_name_are_different_alerts() -> None:
    first, second = one(ZABBIX), one({**ZABBIX, "host": "cn-43"})
    assert first.fingerprint != second.fingerprint
    assert one({**ZABBIX, "trigger_status": "OK"}).fingerprint == first.fingerprint


@pytest.mark.parametrize("begin", ["Problem: ", "[Alerting] ", "[FIRING:1] "])
def test_a_state_before_the_name_is_not_part_of_it(begin: str) -> None:
    found = one({"title": f"{begin}Load is high", "host": "cn-42"})
    over = one({"title": "Resolved in 5m 2s: Load is high", "host": "cn-42"})
    assert (found.labels["alertname"], found.status, over.status) == ("Load is high", "firing", "resolved")
    assert found.fingerprint == over.fingerprint
    assert one({"title": "Disk: slow", "host": "cn-42"}).labels["alertname"] == "Disk: slow"


FEISHU = {"msg_type": "text", "content": {"text": "【P1 告警】存储\n规则：mds 慢请求\n主机：ceph-3\n时间：2026-11-30"}}
DINGTALK = {
    "msgtype": "markdown",
    "markdown": {"title": "[严重] PFC 风暴", "text": "### [严重] PFC 风暴\n- 主机: leaf-21"},
}
CARD = {
    "msg_type": "interactive",
    "card": {
        "header": {"title": {"tag": "plain_text", "content": "🔥 [紧急] NPU 掉卡"}},
        "elements": [
            {"tag": "div", "text": {"tag": "lark_md", "content": "**节点**: npu-15\n[图](https://x.example)"}}
        ],
    },
}
WECOM = {"msgtype": "markdown", "markdown": {"content": "**[FIRING:1] NodeDown**\n> host: gpu-3\n> level: warning"}}


@pytest.mark.parametrize(
    ("body", "name", "severity", "host"),
    [
        (FEISHU, "mds 慢请求", "critical", "ceph-3"),
        (DINGTALK, "PFC 风暴", "critical", "leaf-21"),
        (CARD, "NPU 掉卡", "critical", "npu-15"),
        (WECOM, "NodeDown", "minor", "gpu-3"),
    ],
    ids=["feishu", "dingtalk", "card", "wecom"],
)
def test_a_text_for_a_robot_is_an_alert(body: dict[str, Any], name: str, severity: str, host: str) -> None:
    found = one(body)
    graded = severity_of(found.labels)
    assert graded is not None
    assert (found.labels["alertname"], graded.value, found.status) == (name, severity, "firing")
    assert hosts_of(things_of(found.labels)) == [host]
    assert name in found.annotations["description"]


@pytest.mark.parametrize("text", ["[恢复] gpu-31 NotReady", "【已恢复】gpu-31", "[RESOLVED] gpu-31\nhost: gpu-31"])
def test_a_text_that_states_the_end_is_resolved(text: str) -> None:
    assert one({"msgtype": "text", "text": {"content": text}}).status == "resolved"


EMPTY = {"msg_type": "text", "content": {"text": " \n"}}


@pytest.mark.parametrize("body", [{"msgtype": "text"}, EMPTY, {"msgtype": 5}])
def test_a_robot_body_without_text_is_refused(body: dict[str, Any]) -> None:
    ((_, found),) = read(json.dumps(body).encode(), "generic", {}, frozenset(), NOW).parse(0, 9)
    assert found == "it has neither a name nor labels"


def test_labels_and_annotations_with_chinese_names() -> None:
    labels = {"alertname": "节点内存不足", "主机": "gpu-88", "级别": "严重"}
    found = one({"alerts": [{"labels": labels, "annotations": {"描述": "可用内存低于 2%"}}]}, "alertmanager")
    graded = severity_of(found.labels)
    assert graded is not None
    assert graded.value == "critical"
    assert hosts_of(things_of(found.labels)) == ["gpu-88"]
    assert found.annotations == {"description": "可用内存低于 2%"}
