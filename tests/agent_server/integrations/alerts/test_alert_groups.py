"""Alerts become tickets: grouped, told at Alertmanager's times, once, and ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from whystall.agent_server.integrations.alerts.silencing import add, expire
from whystall.tools.contract.errors import ErrorCode, ToolError

Make = Callable[..., dict[str, Any]]


def test_alerts_of_a_group_become_one_ticket(house: Any, firing: Make) -> None:
    receipt = house.post(*(firing(node=f"n{n}", severity="critical") for n in range(5)), firing("Other"))
    assert (receipt.received, receipt.new, receipt.groups) == (6, 6, 2)
    assert house.later(29) == []
    told = house.later(2)
    assert {(f.what, f.notified, f.new) for f in told} == {("first", 5, True), ("first", 1, True)}
    disk = next(t for t in house.tickets() if t.human.title.startswith("DiskSlow"))
    assert disk.origin == "alert"
    assert disk.human.title == "DiskSlow: DiskSlow is bad"
    assert disk.severity.value == "critical"
    assert disk.labels == {"alertname": "DiskSlow", "severity": "critical"}
    assert all(f'node="n{n}"' in disk.human.description for n in range(5))
    assert {s.alert.labels["node"] for s in house.kb.alerts.find(ticket=disk.id)} == {f"n{n}" for n in range(5)}


@pytest.mark.parametrize("named", [{"xid": "79"}, {"err": "XID error 79"}])
def test_a_ticket_has_what_the_vendor_asks_for_after_an_xid(house: Any, firing: Make, named: dict[str, str]) -> None:
    house.post(firing("GpuError", node="n1", **named), firing("Other", node="n1"))
    house.later(31)
    gpu, other = (
        next(t for t in house.tickets() if t.human.title.startswith(name)).human.description
        for name in ("GpuError", "Other")
    )
    assert "Xid 79" in gpu
    assert "NVIDIA" in gpu
    assert "NVIDIA" not in other


def test_a_ticket_about_slow_steps_names_the_comparison_with_stored_runs(house: Any, firing: Make) -> None:
    house.post(firing("TrainingStepTimeHigh", node="n1"), firing("Other", node="n1"))
    house.later(31)
    steps, other = (
        next(t for t in house.tickets() if t.human.title.startswith(name)).human.description
        for name in ("TrainingStepTimeHigh", "Other")
    )
    assert "--baseline" in steps
    assert "--baseline" not in other


def test_a_ticket_states_where_to_run_what_and_is_classified_without_it(house: Any, firing: Make) -> None:
    house.post(firing("KubeNodeNotReady", node="n1", severity=""))
    house.later(31)
    (ticket,) = house.tickets()
    assert "On n1: `whystall diagnose --log /var/crash`" in ticket.human.description
    assert ticket.severity.value == "minor"  # the words of the advice, a crash, are not the alert's


def test_the_same_body_again_changes_nothing(house: Any, firing: Make) -> None:
    body = [firing(node="a"), firing(node="b")]
    house.post(*body)
    again = house.post(*body)
    assert (again.new, again.repeated, again.groups) == (0, 2, 0)
    house.later(31)
    for _ in range(3):
        assert house.post(*body).groups == 0
        assert house.later(600) == []
    assert [t.occurrences for t in house.tickets()] == [1]
    assert [s.times for s in house.kb.alerts.find()] == [5, 5]


def test_an_alert_that_is_old_when_it_comes_waits_only_for_its_burst(house: Any, firing: Make, start: float) -> None:
    house.post(firing(start=start - 31))
    house.now += 1
    house.post(firing(start=start - 31, node="b"))
    assert [(f.what, f.notified) for f in house.later(1)] == [("first", 2)]


def test_what_joins_later_is_counted_at_the_next_interval(house: Any, firing: Make) -> None:
    house.post(firing(node="a"))
    house.later(31)
    house.post(firing(node="a"), firing(node="b", start=house.now))
    assert house.later(290) == []
    assert [(f.what, f.notified, f.ticket) for f in house.later(20)] == [("more", 1, "1")]
    assert [t.occurrences for t in house.tickets()] == [2]
    assert 'node="b"' in house.kb.tickets.events("1")[-1].detail


def test_what_fires_on_is_told_again_but_not_counted(house: Any, firing: Make) -> None:
    house.post(firing())
    house.later(31)
    assert [f.what for f in house.later(4 * 3600 + 300)] == ["repeat"]
    assert [t.occurrences for t in house.tickets()] == [1]


def test_the_ticket_ends_when_no_alert_fires(house: Any, firing: Make) -> None:
    house.post(firing(node="a"), firing(node="b"))
    house.later(31)
    house.post(firing(node="a", status="resolved"))
    assert house.later(400) == []
    assert house.tickets()[0].state == "open"
    house.post(firing(node="b", status="resolved"))
    assert [f.what for f in house.later(400)] == ["over"]
    ticket = house.tickets()[0]
    assert (ticket.state, ticket.card) == ("resolved", None)
    assert house.kb.alerts.counts()["groups"] == 0


def test_a_receiver_may_keep_its_tickets(open_house: Any, firing: Make) -> None:
    house = open_house("route: {receiver: r}\nreceivers: [{name: r, resolved: keep}]\n")
    house.post(firing())
    house.later(31)
    house.post(firing(status="resolved"))
    assert [f.what for f in house.later(400)] == ["over"]
    assert house.tickets()[0].state == "open"


def test_an_alert_that_fires_again_is_another_occurrence(house: Any, firing: Make) -> None:
    house.post(firing())
    house.later(31)
    house.post(firing(status="resolved"))
    house.later(400)
    house.post(firing(start=house.now))
    house.later(31)
    assert [(t.state, t.occurrences) for t in house.tickets()] == [("resolved", 1), ("open", 1)]


def test_an_alert_that_flaps_within_an_interval_is_counted_in_its_ticket(house: Any, firing: Make) -> None:
    house.post(firing())
    house.later(31)
    house.post(firing(status="resolved"))
    house.post(firing(start=house.now))
    assert [f.what for f in house.later(400)] == ["first"]
    assert [(t.state, t.occurrences) for t in house.tickets()] == [("open", 2)]


def test_resolved_before_firing_makes_no_ticket(house: Any, firing: Make) -> None:
    house.post(firing(status="resolved"))
    late = house.post(firing())
    assert (late.new, late.late, late.groups) == (1, 1, 0)
    assert house.later(3600) == []
    assert house.tickets() == []
    assert len(house.kb.alerts.find()) == 2


def test_an_old_start_is_believed_again_after_a_while(house: Any, firing: Make) -> None:
    """Alertmanager resolves what Prometheus stopped repeating; it fires again with its old start."""
    house.post(firing())
    house.later(31)
    house.post(firing(status="resolved"))
    house.later(3600)
    assert house.post(firing()).groups == 1
    house.later(31)
    assert [t.state for t in house.tickets()] == ["resolved", "open"]


def test_what_was_over_before_it_was_told_is_not_told(house: Any, firing: Make) -> None:
    house.post(firing())
    house.now += 10
    house.post(firing(status="resolved"))
    assert house.later(3600) == []
    assert house.tickets() == []


def test_a_sender_without_times_is_understood(house: Any) -> None:
    bare = {"status": "firing", "labels": {"alertname": "X"}}
    house.post(bare)
    house.later(31)
    assert house.post(bare).new == 0
    house.post({**bare, "status": "resolved"})
    house.later(400)
    house.post(bare)
    house.later(31)
    assert [t.state for t in house.tickets()] == ["resolved", "open"]


def test_clocks_that_are_wrong(house: Any, firing: Make, start: float) -> None:
    house.post(firing(node="ahead", start=start + 7 * 86_400), firing(node="behind", start=start - 7 * 86_400))
    house.later(31)
    (ticket,) = house.tickets()
    assert ticket.created <= "2027-01-15T08:01:00Z"
    house.now -= 86_400  # the clock of this machine is set back: nothing waits for a day
    house.post(firing(node="new", start=start))
    assert [f.what for f in house.later(301)] == ["more"]


def test_silences_hold_back_and_let_go(house: Any, firing: Make) -> None:
    silence = add(house.kb, 'node=~"n[0-9]"', house.now + 7200, "ann", "disks", house.now)
    house.post(firing(node="n1"))
    assert [(f.what, f.muted) for f in house.later(31)] == [("held", 1)]
    house.post(firing(node="n1"), firing(node="other"))
    assert [(f.notified, f.muted) for f in house.later(301) if f.what == "first"] == [(1, 1)]
    expire(house.kb, silence.id, "ann", house.now)
    assert [(f.what, f.notified, f.muted) for f in house.later(301)] == [("more", 1, 0)]
    assert [e.what for e in house.kb.audit.entries(what="silence")] == ["silence.added", "silence.expired"]


def test_a_ticket_ends_while_its_alert_is_silenced(house: Any, firing: Make) -> None:
    house.post(firing())
    house.later(31)
    add(house.kb, "alertname=DiskSlow", house.now + 86_400, "ann", "", house.now)
    house.post(firing(status="resolved"))
    house.later(400)
    assert house.tickets()[0].state == "resolved"


@pytest.mark.parametrize("text", ["", "{}", 'a=~".*"', 'a!="x"', "a=", "node"])
def test_a_silence_names_what_it_silences(house: Any, text: str) -> None:
    with pytest.raises(ToolError) as caught:
        add(house.kb, text, house.now + 60, "ann", "", house.now)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT


def test_mute_times_and_maintenance(open_house: Any, firing: Make) -> None:
    house = open_house(
        """
route: {receiver: r, routes: [{matchers: [kind=night], receiver: r, mute_time_intervals: [morning]}]}
time_intervals: [{name: morning, time_intervals: [{times: [{start_time: "08:00", end_time: "09:00"}]}]}]
maintenance: [{name: lab, matchers: [cluster=lab], time_intervals: [morning]}]
receivers: [{name: r}]
"""
    )
    house.post(firing(kind="night"), firing(kind="day"), firing(cluster="lab"))
    told = house.later(31)
    assert sorted((f.what, f.notified, f.muted) for f in told) == [("first", 1, 1), ("held", 0, 1)]
    later = house.later(3700)
    assert sorted((f.what, f.notified) for f in later if f.notified) == [("first", 1), ("more", 1)]


def test_inhibition_needs_something_in_common(open_house: Any, firing: Make) -> None:
    house = open_house(
        """
route: {receiver: r, group_by: ['...']}
inhibit_rules: [{source_matchers: [alertname=NodeDown], target_matchers: [severity=warning], equal: [node]}]
receivers: [{name: r}]
"""
    )
    house.post(
        firing("NodeDown", node="a"),
        firing("NodeDown", severity="warning"),  # no node, and one of those that are held back
        firing("Slow", node="a", severity="warning"),
        firing("Slow", node="b", severity="warning"),
        firing("Slow", severity="warning", team="no node"),
    )
    house.later(31)
    told = [s.alert.labels for t in house.tickets() for s in house.kb.alerts.find(ticket=t.id)]
    assert {"alertname": "Slow", "node": "a", "severity": "warning"} not in told
    assert len(told) == 4
    house.post(firing("NodeDown", status="resolved", node="a"))
    house.later(400)
    assert len(house.tickets()) == 5


@pytest.mark.parametrize("length", [1000, 1001, 1024, 5000])
def test_no_label_is_too_long_for_its_ticket(house: Any, firing: Make, length: int) -> None:
    house.post(firing(node="x" * length), firing(node="y"), firing(**{"z" * length: "v"}))
    house.later(31)
    assert [t.occurrences for t in house.tickets()] == [1]


def test_truncation_is_told(house: Any, firing: Make) -> None:
    assert house.post(firing(), truncatedAlerts=17).truncated == 17
    house.later(31)
    assert "17 more alerts" in house.tickets()[0].human.description


def test_other_alerts_of_the_same_node_are_related(house: Any, firing: Make) -> None:
    house.post(firing("DiskSlow", node="gpu03"))
    house.later(31)
    house.post(firing("StepTime", instance="gpu03:9100", start=house.now))
    house.post(firing("Elsewhere", node="gpu04", start=house.now))
    house.later(31)
    disk, *others = house.tickets()
    step = next(t for t in others if t.human.title.startswith("StepTime"))
    assert [(link.kind, link.ticket) for link in step.links if "node:gpu03" in link.why] == [("related", disk.id)]
    elsewhere = next(t for t in others if t.human.title.startswith("Elsewhere"))
    assert not any(why.startswith("node:") for link in elsewhere.links for why in link.why)
    assert [t.state for t in house.tickets()] == ["open"] * 3


def test_a_triage_and_a_message_are_wanted_once(open_house: Any, firing: Make) -> None:
    house = open_house(
        "route: {receiver: r}\nreceivers: [{name: r, triage: true, lang: zh, chat: [{channel: ops}]}]\n",
        chat={"ops": {"kind": "webhook", "secret": {"env": "X"}, "url": "https://chat.example.com/", "to": "room"}},
    )
    house.post(firing(node="a"))
    house.later(31)
    house.post(firing(node="b", start=house.now))
    house.later(400)
    task = house.kb.tasks.by_key("triage:1:alerts")
    assert task is not None
    assert task.payload["places"][0]["conversation"] == "room"
    assert task.payload["lang"] == "zh"
    said = house.kb.messages.latest()
    assert [m.message["title"].split(":")[0] for m in said] == ["告警", "新增告警"]
    assert "工单 1" in said[0].message["text"]


def test_a_ticket_that_somebody_resolved_too_early_comes_again(house: Any, firing: Make) -> None:
    house.post(firing())
    house.later(31)
    house.kb.tickets.resolve("1", "turned off", "ann")
    assert [f.what for f in house.later(4 * 3600 + 300)] == ["repeat"]
    assert [t.state for t in house.tickets()] == ["resolved", "open"]


def test_a_ticket_that_somebody_closed_is_left_alone(house: Any, firing: Make) -> None:
    house.post(firing())
    house.later(31)
    house.kb.tickets.close("1", "wont_fix", "ann")
    assert house.later(9 * 3600) == []
    assert len(house.tickets()) == 1


def test_two_groups_with_one_ticket_end_it_together(open_house: Any, firing: Make) -> None:
    house = open_house("route: {receiver: r, group_by: [alertname]}\nreceivers: [{name: r}]\n")
    house.post(firing("A"), firing("B"))
    house.later(31)
    house.kb.tickets.duplicate("2", "1", "engine")
    house.post(firing("A", status="resolved"))
    house.later(400)
    assert house.kb.tickets.get("1").state == "open"
    house.post(firing("B", status="resolved"))
    house.later(400)
    assert house.kb.tickets.get("1").state == "resolved"


def test_an_alert_nobody_speaks_of_is_not_told_for_ever(house: Any, firing: Make) -> None:
    house.post(firing())
    house.later(31)
    told = house.later(10 * 86_400)
    assert {f.what for f in told} == {"repeat"}
    assert len(told) <= 18  # 72 hours of 4 each
    assert house.tickets()[0].state == "open"  # nobody said that it is over
    assert house.groups.next_due(house.now) is None


def test_labels_that_change_leave_the_group(house: Any, firing: Make) -> None:
    house.post(firing("A", fingerprint="f"))
    house.later(31)
    house.post(firing("B", fingerprint="f", start=house.now))
    house.later(400)
    assert [(t.human.title[:1], t.state) for t in house.tickets()] == [("A", "resolved"), ("B", "open")]


@pytest.mark.parametrize(
    "changed",
    ["group_by: [alertname], routes: [{matchers: [node=a], receiver: r}]", "group_by: [alertname, node]"],
    ids=["another route", "another grouping"],
)
def test_other_routes_move_what_fires(house: Any, firing: Make, changed: str) -> None:
    house.post(firing(node="a"), firing())
    house.later(31)
    house.restart(f"route: {{receiver: r, {changed}}}\nreceivers: [{{name: r}}]\n")
    house.post(firing(node="a"), firing())
    house.later(5 * 3600)
    live = [t for t in house.tickets() if t.state == "open"]
    assert len(live) == 1
    house.post(firing(node="a", status="resolved"), firing(status="resolved"))
    house.later(3600)
    assert {t.state for t in house.tickets()} == {"resolved"}
    assert house.kb.alerts.counts()["groups"] == 0


def test_a_group_that_cannot_be_told_holds_up_no_other(
    house: Any, firing: Make, caplog: pytest.LogCaptureFixture
) -> None:
    house.post(firing("A"), firing("B"))
    with house.kb._file.write() as db:
        db.execute("UPDATE alerts SET body = '{}' WHERE name = 'A'")
    assert sorted(f.what for f in house.later(40)) == ["first", "put_off"]
    assert [t.human.title[:1] for t in house.tickets()] == ["B"]
    assert [e.what for e in house.kb.audit.entries(what="alerts")] == ["alerts.put_off"]
    assert "cannot be processed" in caplog.text
    assert house.groups.next_due(house.now) == pytest.approx(house.now + 50, abs=2)


def test_a_chat_that_nobody_can_be_told_in_is_refused(open_house: Any) -> None:
    with pytest.raises(ToolError) as caught:
        open_house(
            "route: {receiver: r}\nreceivers: [{name: r, chat: [{channel: ops}]}]\n",
            chat={"ops": {"kind": "dingtalk", "app_secret": {"env": "X"}}},
        )
    assert "which has no conversation" in caught.value.message


def test_what_was_left_out_later_is_told_too(house: Any, firing: Make) -> None:
    house.post(firing(node="a"))
    house.later(31)
    house.post(firing(node="b", start=house.now), truncatedAlerts=9)
    house.later(400)
    assert house.kb.tickets.events("1")[-1].detail.endswith("truncatedAlerts: 9")


def test_what_is_long_over_is_forgotten_and_what_fires_is_not(house: Any, firing: Make) -> None:
    house.post(firing("A"), firing("B"))
    house.later(31)
    house.post(firing("A", status="resolved"))
    house.later(400)
    assert house.groups.forget(house.now) == 0
    house.now += 31 * 86_400
    assert house.groups.forget(house.now) == 2
    assert [s.alert.name for s in house.kb.alerts.find()] == ["B"]


def test_three_weeks_of_repetition_are_one_ticket(house: Any, firing: Make) -> None:
    """Alertmanager says every four hours what still fires; so do we, and nothing is opened or counted by it."""
    for _ in range(6 * 21):
        house.post(firing())
        house.later(4 * 3600)
    assert [(t.state, t.occurrences) for t in house.tickets()] == [("open", 1)]
    assert len(house.kb.alerts.find()) == 1


def test_a_message_has_the_description_and_the_language_of_its_chat(open_house: Any, firing: Make) -> None:
    chats = {
        name: {"kind": "webhook", "secret": {"env": "X"}, "url": "https://chat.example.com/", "to": "room", **more}
        for name, more in {"ops": {"lang": "zh"}, "eu": {}}.items()
    }
    routes = "route: {receiver: r}\nreceivers: [{name: r, chat: [{channel: ops}, {channel: eu}]}]\n"
    house = open_house(routes, chat=chats)
    last = firing(node="last", severity="critical")
    last["annotations"]["description"] = "fell off the bus"
    house.post(*(firing(node=f"n{n}", severity="warning") for n in range(25)), last)
    house.later(31)
    texts = {m.channel: m.message["text"] for m in house.kb.messages.latest()}
    assert "告警" in texts["ops"]
    assert "Alerts firing: 26" in texts["eu"]
    listed = [line for line in texts["eu"].splitlines() if line.startswith("- ")]
    assert "last" in listed[0]  # criticals first, although it came last
    assert "fell off the bus" in texts["eu"]
