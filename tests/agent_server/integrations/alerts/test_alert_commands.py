"""``whystall route``, ``silence`` and ``alerts``, as a person types them."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whystall.agent_server.integrations.alerts.intake import Intake
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.command_tree import build
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.stores import Stores
from whystall.tools.contract.errors import ErrorCode, ToolError

Run = Callable[..., str]

ROUTES = """\
route:
  receiver: default
  routes:
    - matchers: [team="web"]
      receiver: web
    - matchers: ['severity=~"critical|page"']
      receiver: training
      continue: true
      group_by: [alertname, node]
      mute_time_intervals: [nights]
    - matchers: [severity="critical"]
      receiver: pager
    - receiver: web
time_intervals:
  - {name: nights, time_intervals: [{times: [{start_time: "00:00", end_time: "06:00"}], location: Asia/Shanghai}]}
inhibit_rules:
  - {source_matchers: [alertname="NodeDown"], target_matchers: [severity="critical"], equal: [node]}
receivers: [{name: default}, {name: web, ticket: false}, {name: training, triage: true}, {name: pager, resolved: keep}]
"""
ALERT = {"labels": {"alertname": "StepSlow", "severity": "critical", "node": "gpu-12"}}
NIGHT, DAY = "2026-11-22T17:00Z", "2026-11-22T03:00Z"


@pytest.fixture
def routes(tmp_path: Path) -> str:
    (tmp_path / "routes.yaml").write_text(ROUTES)
    return str(tmp_path / "routes.yaml")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command here, with a state directory and settings of its own; what it printed."""
    (tmp_path / "whystall.toml").write_text('[oncall]\ntimezone = "Asia/Shanghai"\n')
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    monkeypatch.setenv("WHYSTALL_CONFIG", str(tmp_path / "whystall.toml"))

    def command(*words: str, stdin: Any = None) -> str:
        if stdin is not None:
            body = json.dumps(stdin).encode()
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body)))
        build(words)(list(words), prog_name="whystall", standalone_mode=False)
        console.deliver()
        return capsys.readouterr().out

    return command


def test_the_way_of_an_alert_and_why_no_other(run: Run, routes: str) -> None:
    said = run("route", "test", "-", "--routes", routes, "--at", DAY, stdin=ALERT)
    lines = [line.strip() for line in said.splitlines()]
    assert 'x route.routes[0] (line 4) {team="web"}: does not match' in lines
    assert 'team="web": the alert has no label team' in lines
    assert any(line.startswith("=> route.routes[1] (line 6)") and "receiver training" in line for line in lines)
    assert any(line.startswith("=> route.routes[2]") and "receiver pager" in line for line in lines)
    assert any(line.startswith("- route.routes[3]") and "route.routes[2] matched the alert" in line for line in lines)
    assert "group: alertname=StepSlow, node=gpu-12" in lines
    assert lines.count("now: would be notified") == 2


def test_an_alert_of_another_sender_is_read_as_such_although_it_has_labels(run: Run, routes: str) -> None:
    alert = {"title": "磁盘满", "severity": "critical", "labels": {"host": "n3"}}
    for body in (alert, [alert]):
        said = run("route", "test", "-", "--routes", routes, "--at", DAY, stdin=body)
        assert said.startswith("alert 磁盘满 (firing)")
        assert "receiver pager" in said


def test_the_same_in_chinese_and_for_programs(run: Run, routes: str) -> None:
    said = run("route", "test", "-", "--routes", routes, "--at", NIGHT, "--lang", "zh", stdin=ALERT)
    assert "告警没有标签 team" in said
    assert "当前：不通知，该路由在 nights 期间静音" in said
    (found,) = json.loads(run("route", "test", "-", "--routes", routes, "--at", NIGHT, "--json", stdin=[ALERT]))
    assert [t["receiver"] for t in found["targets"]] == ["training", "pager"]
    assert [t["held"] and t["held"]["kind"] for t in found["targets"]] == ["mute", None]
    assert [s["outcome"] for s in found["steps"]] == ["passed", "failed", "ended", "ended", "skipped"]
    assert found["steps"][1]["missed"] == [{"matcher": 'team="web"', "label": "team", "value": ""}]


def test_silences_and_inhibition_are_told(run: Run, routes: str) -> None:
    run("silence", "add", "node=~gpu-.*", "severity=critical", "--for", "2h", "--because", "disks", "--by", "ann")
    assert "now: not notified, silence 1 is active" in run("route", "test", "-", "--routes", routes, stdin=ALERT)
    assert '{node=~"gpu-.*", severity="critical"}' in run("silence", "list")
    assert "已结束" in run("silence", "expire", "1", "--lang", "zh")
    assert "No silences." in run("silence", "list")
    assert "disks" in run("silence", "list", "--all")
    with pytest.raises(ToolError):
        run("silence", "expire", "1")
    down = {"labels": {"alertname": "NodeDown", "node": "gpu-12"}, "fingerprint": "f0"}
    said = run("route", "test", "-", "--routes", routes, "--at", DAY, stdin={"alerts": [ALERT, down]})
    assert "inhibited by rule line 17 while alert f0 fires" in said


def test_without_a_file_of_routes(run: Run) -> None:
    assert "No routing tree is set up" in run("route", "test", "-", stdin={"name": "X", "state": "ok"})
    assert "alertname, cluster, namespace, job" in run("route", "show")


def test_the_tree(run: Run, routes: str) -> None:
    said = run("route", "show", "--routes", routes)
    assert '  route.routes[1] (line 6) {severity=~"critical|page"} (continue) -> training' in said
    assert "receiver pager: ticket, kept when its alerts are resolved" in said
    assert "静音" not in said
    shown = json.loads(run("route", "show", "--routes", routes, "--json"))
    assert [r["receiver"] for r in shown["routes"]] == ["default", "web", "training", "pager", "web"]


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (("route", "test", "-"), []),
        (("route", "test", "-"), "x"),
        (("route", "test", "-"), {"alerts": [5]}),
        (("route", "test", "-", "--at", "soon"), ALERT),
        (("route", "test", "/nonexistent"), None),
        (("route", "test", "-", "--routes", "/nonexistent"), ALERT),
        (("silence", "add", "a=b"), None),
        (("silence", "add", "a=b", "--for", "2h", "--to", "2027-01-01T00:00"), None),
        (("silence", "add", "a=b", "--to", "2020-01-01T00:00"), None),
        (("silence", "add", "a=b", "--for", "9999d"), None),
        (("silence", "add", "nonsense", "--for", "2h"), None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_bad_arguments(run: Run, words: tuple[str, ...], stdin: Any) -> None:
    with pytest.raises(ToolError) as caught:
        run(*words, stdin=stdin)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert caught.value.remedy


def test_what_came_in(run: Run, tmp_path: Path) -> None:
    assert "0 kept, 0 firing in 0 groups" in run("alerts", "list")
    with Stores(tmp_path / "knowledge.db") as kb:
        hostile = {"labels": {"alertname": "A\x1b[31m", "x": "\u202eevil"}}
        Intake(kb, Settings()).receive({"alerts": [ALERT, hostile]}, 1_800_000_000.0)
    said = run("alerts", "list")
    assert "2 kept, 2 firing in 2 groups" in said
    assert "StepSlow" in said
    assert "\x1b" not in said
    assert "\u202e" not in said
    (found,) = json.loads(run("alerts", "list", "--name", "StepSlow", "--json"))["alerts"]
    assert found["labels"]["node"] == "gpu-12"
    with pytest.raises(ToolError):
        run("alerts", "list", "--ticket", "9")
