"""Bodies of senders that are older, newer, careless or hostile."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from whystall.agent_server.integrations.alerts import incoming_alert
from whystall.agent_server.integrations.alerts.payload import BODY_LIMIT, VALUES, find, read
from whystall.agent_server.settings.sections.alerts import Form
from whystall.tools.contract.errors import ErrorCode, ToolError

Make = Callable[..., dict[str, Any]]
NOW = 1_800_000_000.0


def one(item: dict[str, Any], wanted: frozenset[str] = frozenset(), **body: Any) -> incoming_alert.IncomingAlert:
    batch = read(json.dumps({"alerts": [item], **body}).encode(), "alertmanager", {}, wanted, NOW)
    ((_, found),) = batch.parse(0, 1)
    assert isinstance(found, incoming_alert.IncomingAlert), found
    return found


def other(body: Any, form: Form | None = None) -> list[incoming_alert.IncomingAlert | str]:
    forms = {"zabbix": form} if form is not None else {}
    batch = read(json.dumps(body).encode(), "zabbix" if form is not None else "generic", forms, frozenset(), NOW)
    return [found for _, found in batch.parse(0, len(batch.items))]


# --- Alertmanager ----------------------------------------------------------------------------------------------------


def test_the_documented_body(firing: Make) -> None:
    """docs/configuration.md, "webhook_config", with its newest key."""
    body = {
        "version": "4",
        "groupKey": '{}:{alertname="X"}',
        "truncatedAlerts": 3,
        "status": "firing",
        "receiver": "whystall",
        "groupLabels": {"alertname": "X"},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://am",
        "notification_reason": "first notification",
        "alerts": [firing("X", node="a")],
    }
    batch = read(json.dumps(body).encode(), "alertmanager", {}, frozenset(), NOW)
    ((_, found),) = batch.parse(0, 9)
    assert isinstance(found, incoming_alert.IncomingAlert)
    assert batch.truncated == 3
    assert (found.labels, found.status, found.starts) == ({"alertname": "X", "node": "a"}, "firing", NOW)
    assert (found.ends, found.sender_group, found.url) == (None, '{}:{alertname="X"}', "http://prometheus/graph")


def test_the_lines_of_an_annotation_are_kept_and_those_of_a_label_are_not() -> None:
    found = one({"labels": {"alertname": "X\ny"}, "annotations": {"description": "first\r\n\x1b[31msecond"}})
    assert found.annotations["description"].splitlines()[0] == "first"
    assert "\x1b" not in found.annotations["description"]
    assert "\n" not in found.labels["alertname"]


def test_what_is_missing_is_made_up_for() -> None:
    found = one({"labels": {"alertname": "X"}})
    assert (found.status, found.starts, found.ends, found.url) == ("firing", None, None, "")
    assert found.fingerprint == one({"labels": {"alertname": "X"}, "new key": [1]}).fingerprint
    assert found.fingerprint != one({"labels": {"alertname": "Y"}}).fingerprint
    assert one({"labels": {"a": "b"}, "endsAt": "2020-01-01T00:00:00Z"}).status == "resolved"
    assert one({"labels": {"a": "b"}, "endsAt": "2100-01-01T00:00:00Z"}).status == "firing"
    assert one({"labels": {"a": "b"}, "status": "RESOLVED"}).status == "resolved"


@pytest.mark.parametrize(
    "item",
    [
        None,
        "x",
        [],
        {},
        {"labels": {}},
        {"labels": []},
        {"labels": "x"},
        {"labels": {"a": ""}},
        {"labels": {"a": {"b": "c"}}},
        {"labels": {"a": "b"}, "status": "on fire"},
        {"labels": {"a": "b"}, "status": {"x": 1}},
        {"labels": {"a": "b"}, "annotations": 5},
    ],
    ids=repr,
)
def test_one_bad_alert_does_not_keep_out_the_others(house: Any, firing: Make, item: Any) -> None:
    receipt = house.post(firing(), item)
    assert (receipt.received, receipt.new, receipt.refused) == (2, 1, 1)
    assert receipt.refusals[0].index == 1
    assert [e.what for e in house.kb.audit.entries()] == ["alerts.refused"]
    with pytest.raises(ToolError):
        house.post(item)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'{"alerts": {}}',
        b'{"alerts": null}',
        b"\xff{}",
        b"[" * 100_000,
        b'{"alerts":' * 5000,
        b'{"alerts": [' + b"1" * 5000 + b"e9999]}",
        b" " * (BODY_LIMIT + 1),
        b'{"alerts":[' + b"{}," * VALUES + b"{}]}",
    ],
    ids=[
        "empty",
        "cut",
        "null",
        "list",
        "no alerts",
        "object",
        "none",
        "no UTF-8",
        "deep",
        "deeper",
        "number",
        "large",
        "many",
    ],
)
def test_what_is_no_body(house: Any, raw: bytes) -> None:
    with pytest.raises(ToolError) as caught:
        house.intake.receive(raw, NOW)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert "\n" not in str(caught.value)
    assert house.kb.alerts.find() == []


def test_an_empty_list_is_taken(house: Any) -> None:
    assert house.post().received == 0


HOSTILE = {
    "alertname": "<script>alert(1)</script>",
    "mention": "@all <!channel> <at user_id='all'></at> [~admin] @here",
    "template": "{{ config }} ${jndi:ldap://x} {% raw %} %s %(x)s",
    "sql": "'; DROP TABLE alerts; --",
    "markdown": "](http://evil) ![x](http://evil/x.png) `code` **b** | a | b |",
    "slash": "/close\n/assign @root",
    "control": "\x1b[31mred\x00\r\n\u202egnp.exe\u2028\ud800",
    "quotes": "\"\\'`",
    "empty": "",
    'na"me}': "x",
    "名字": "训练卡顿",
}


def test_hostile_labels_are_kept_and_inert(house: Any) -> None:
    bad = {"status": "firing", "labels": HOSTILE, "annotations": {k: v for k, v in HOSTILE.items() if v}}
    house.post({**bad, "generatorURL": "javascript:alert(1)", "fingerprint": "'; DROP TABLE tickets; --\n"})
    (told,) = house.later(31)
    (ticket,) = house.tickets()
    (stored,) = house.kb.alerts.find(ticket=told.ticket)
    assert "empty" not in stored.alert.labels
    assert stored.alert.url == ""
    for text in [*stored.alert.labels.values(), *stored.alert.labels, stored.alert.fingerprint, ticket.human.title]:
        assert text.isprintable()
    assert all(part.isprintable() for part in ticket.human.description.splitlines())
    assert stored.alert.labels["sql"] == HOSTILE["sql"]
    assert house.kb.tickets.get("1").labels["名字"] == "训练卡顿"


def test_a_message_shows_hostile_text_as_code(open_house: Any) -> None:
    house = open_house(
        "route: {receiver: r}\nreceivers: [{name: r, chat: [{channel: ops}]}]\n",
        chat={"ops": {"kind": "webhook", "secret": {"env": "X"}, "url": "https://chat.example.com/", "to": "room"}},
    )
    house.post({"labels": {"alertname": "@all <!channel> **x**", "severity": "](http://evil)"}})
    house.later(31)
    (said_,) = house.kb.messages.latest()
    text = said_.message["text"]
    assert "`@all <!channel> **x**`" in text
    outside = "".join(text.split("`")[::2])
    assert not any(mark in outside for mark in ("@all", "<!", "http", "]("))


def test_large_alerts_are_cut_and_say_so(house: Any) -> None:
    labels = {"alertname": "Big", **{f"label{n}": "v" * 50 for n in range(10_000)}}
    huge = {"labels": {**labels, "wide": "x" * 1_000_000}, "annotations": {"description": "y" * 1_000_000}}
    found = one(huge, frozenset({"label9999"}))
    assert found.labels["alertname"] == "Big"
    assert "label9999" in found.labels  # some route looks at it
    assert len(found.labels) <= incoming_alert.LABELS
    assert sum(map(len, [*found.labels, *found.labels.values()])) <= incoming_alert.LABEL_CHARS
    assert len(found.annotations["description"]) == incoming_alert.ANNOTATION_VALUE
    assert found.cut == ("labels", "values")
    house.post(huge)
    house.later(31)
    assert "too many" in house.tickets()[0].human.description


def test_alerts_that_differ_only_where_they_are_cut_stay_two() -> None:
    wide = "x" * 5000
    assert one({"labels": {"a": wide + "1"}}).fingerprint != one({"labels": {"a": wide + "2"}}).fingerprint


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0001-01-01T00:00:00Z", None),
        ("2027-01-15T08:00:00Z", NOW),
        ("2027-01-15T16:00:00.123456789+08:00", NOW + 0.123456),
        ("", None),
        ("soon", None),
        ("9999-12-31T23:59:59Z", None),
        ("2027-13-45T00:00:00Z", None),
        (NOW, NOW),
        (NOW * 1e3, NOW),
        (NOW * 1e6, NOW),
        (int(NOW) * 10**9, NOW),
        (str(int(NOW)), NOW),
        (-1, None),
        (0, None),
        (True, None),
        (float("inf"), None),
        (10**30, None),
        ([], None),
        ("1" * 100_000, None),
    ],
    ids=lambda v: repr(v)[:30],
)
def test_times(value: Any, expected: float | None) -> None:
    found = incoming_alert.time_of(value)
    assert found == expected or (expected is not None and found == pytest.approx(expected, abs=1e-3))


# --- other senders ---------------------------------------------------------------------------------------------------


def test_plain_json_needs_no_settings(house: Any) -> None:
    body = {"name": "DiskSlow", "severity": "P1", "message": "slow", "labels": {"node": "a", "n": 3}, "timestamp": NOW}
    assert house.intake.receive(json.dumps(body).encode(), house.now, "generic").new == 1
    assert house.intake.receive(json.dumps({**body, "state": "OK"}).encode(), house.now, "generic").resolved == 1
    (found,) = other(body)
    assert isinstance(found, incoming_alert.IncomingAlert)
    assert found.labels == {"alertname": "DiskSlow", "severity": "P1", "node": "a", "n": "3"}
    assert found.annotations == {"summary": "slow"}
    assert found.sender == "generic"


def test_one_a_list_or_a_list_within() -> None:
    bare = {"name": "X"}
    assert len(other(bare)) == len(other([bare])) == len(other({"alerts": [bare]})) == 1
    assert other([bare, 5, {}])[1:] == ["it is no object", "it has neither a name nor labels"]


def test_a_mapping_finds_its_parts() -> None:
    form = Form(
        alerts="data.events",
        status="trigger.value",
        values={"1": "firing", "0": "resolved"},
        name="trigger.name",
        labels={"*": "tags", "node": 'hosts.0."host.name"', "team": "owner"},
        starts="clock",
        fingerprint="trigger.id",
    )
    event = {
        "trigger": {"id": 17, "name": "Disk", "value": "1"},
        "tags": {"zone": "z", "list": ["a", "b"], "deep": {"x": [1]}},
        "hosts": [{"host.name": "n1"}],
        "clock": str(int(NOW)),
    }
    (found,) = other({"data": {"events": [event]}}, form)
    assert isinstance(found, incoming_alert.IncomingAlert)
    assert found.labels == {"alertname": "Disk", "zone": "z", "list": "a,b", "node": "n1", "deep": '{"x": [1]}'}
    assert (found.fingerprint, found.status, found.starts) == ("zabbix:17", "firing", NOW)
    event["trigger"]["value"] = 0  # type: ignore[index]
    (over,) = other({"data": {"events": event}}, form)
    assert isinstance(over, incoming_alert.IncomingAlert)
    assert over.status == "resolved"
    with pytest.raises(ToolError) as caught:
        other({"data": {}}, form)
    assert "data.events" in caught.value.message


def test_an_unknown_form(house: Any) -> None:
    with pytest.raises(ToolError) as caught:
        house.intake.receive(b"{}", house.now, "nagios")
    assert caught.value.code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize(
    ("path", "expected"),
    [("a.b", 1), ("a.x", None), ("l.1", "y"), ("l.9", None), ("l.x", None), ('"c.d"', 2), ("a.b.c", None), ("", {})],
)
def test_paths(path: str, expected: Any) -> None:
    value = {"a": {"b": 1}, "l": ["x", "y"], "c.d": 2}
    assert find(value, path) == (value if expected == {} else expected)
