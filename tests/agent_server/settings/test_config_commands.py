"""``whystall config`` and ``whystall audit``: what is wrong is found before it is needed, and no secret is shown."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli import main as cli
from whystall.agent_server.stores import Stores

EXAMPLES = Path(__file__).parents[3] / "examples"
SECRETS = (
    "WHYSTALL_CALENDAR", "WHYSTALL_ALERTS", "GITLAB_TOKEN", "GITLAB_WEBHOOK", "DINGTALK_SECRET", "DINGTALK_WEBHOOK",
)  # fmt: skip
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process; status, standard output and standard error."""
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))

    def command(*words: str) -> tuple[int, str, str]:
        status = cli._command(list(words))
        console.deliver()
        return status, *capsys.readouterr()

    return command


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example of a settings file, somewhere else, with its secrets in the environment."""
    for name in ("whystall.toml", "routes.yaml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    for name in SECRETS:
        monkeypatch.setenv(name, f"s3cret-{name}")
    path = tmp_path / "whystall.toml"
    path.chmod(0o600)
    monkeypatch.setenv("WHYSTALL_CONFIG", str(path))
    return path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_the_example_holds_together(run: Run, example: Path) -> None:
    status, out, _ = run("config", "check")
    assert (status, out) == (
        0,
        f"settings of {example}\non: alerts (POST /alerts/alertmanager)\non: trackers (tracker (gitlab))\n"
        "on: chats (ops (dingtalk))\non: on-call schedules (training, platform)\n"
        "on: calendars (GET /oncall/NAME.ics)\noff: metrics, OpenTelemetry, profiles, language model\n"
        "nothing is wrong\n",
    )
    status, out, _ = run("config", "check", "--lang", "zh")
    assert status == 0
    assert out.endswith("语言模型\n没有发现错误\n")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("keep_days ＝ 30", "that line holds '＝'"),
        ("lang = “en”", "that line holds '“'"),
        ("keep_days: 30", "with = in place of :"),
        ("[users.王伟]", 'write the names of people in name = "..."'),
        ('lang = "en', "write text in quotes"),
    ],
)
def test_slips_of_the_keyboard_are_named(run: Run, example: Path, line: str, hint: str) -> None:
    example.write_bytes(b"\xef\xbb\xbf" + f"[server]\n{line}\n".encode())
    status, _, err = run("config", "check")
    assert status == 2
    assert "at line 2," in err
    assert hint in err


def test_an_editor_may_mark_the_file_as_utf_8(run: Run, example: Path) -> None:
    example.write_bytes(b"\xef\xbb\xbf" + example.read_bytes())
    assert run("config", "check")[0] == 0


def test_alerts_that_are_routed_and_not_let_in_are_warned_of(run: Run, example: Path) -> None:
    text = example.read_text("utf-8")
    example.write_text(text.replace('token = {env = "WHYSTALL_ALERTS"}', ""), "utf-8")
    status, out, _ = run("config", "check")
    assert status == 0
    assert "warning: [alerts] token" in out
    assert "off: alerts" in out


def test_the_example_says_who_is_on_call(run: Run, example: Path) -> None:
    status, out, _ = run("oncall", "who", "--at", "2026-03-30T09:00:00+02:00")
    assert (status, out) == (
        0,
        "platform: Jana Müller (mueller); layer 1; until 2026-03-31 00:00+08:00\n"
        "training: 王伟 (wang), wang.wei@example.com, +86 10 5555 0100; "
        "turn of rotation training-week; until 2026-04-06 09:00+08:00\n"
        "times in Asia/Shanghai\n",
    )
    at = ("--at", "2026-03-30T09:00:00+02:00")
    assert run("oncall", "who", "training", *at) == run("oncall", "who", "--schedule", "training", *at)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('sinks = ["tracker"]', 'sinks = ["traker"]', "[tickets] sinks: there is no [sinks.traker]"),
        ('chats = {ops = "m', 'chats = {opps = "m', "[users.wang] chats: there is no [chat.opps]"),
        ('{tracker = "jmueller"}', '{jira = "jmueller"}', "[users.mueller] trackers: there is no [sinks.jira]"),
        ("[users.okafor]", "[users.okafo]", "[oncall] groups.storage: there is no user 'okafor'; write [users.okafor]"),
        ("[users.okafor]", "[users.storage]", "[users.storage]: a group has this name too; rename one"),
        ('categories = ["storage"]', 'categories = ["disk"]', "no ticket has the category 'disk'"),
        ('network = "platform"', 'net = "platform"', "[oncall] categories: no ticket has the category 'net'"),
        ("labels = {cluster", 'severities = ["page"]\nlabels = {cluster', "severities: no ticket has 'page'"),
        ('routes = "routes.yaml"', 'routes = "no.yaml"', "no.yaml"),
        ('{env = "GITLAB_TOKEN"}', '{env = "NOWHERE"}', "[sinks.tracker] token: the variable NOWHERE is not set"),
        ('{env = "GITLAB_TOKEN"}', '{file = "whystall.toml"}', "[sinks.tracker] token: not one printable line"),
        ('{env = "WHYSTALL_ALERTS"}', '{file = "gone"}', "[alerts] token: cannot read"),
        ('kind = "gitlab"', 'kind = "gitlap"', "[sinks] tracker"),
        ("# [llm]", '[llm]\nbase_url = "http://127.0.0.1:9"', "WHYSTALL_LLM_MODEL is not set"),
    ],
)
def test_what_leads_nowhere_is_found(run: Run, example: Path, old: str, new: str, fault: str) -> None:
    edit(example, old, new)
    status, out, _ = run("config", "check", "--json")
    faults = json.loads(out)["faults"]
    assert status == 1
    assert any(fault in line for line in faults), faults
    status, out, _ = run("config", "check")
    assert status == 1
    assert f"wrong: {faults[0]}" in out


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("channel: ops", "channel: opps", "names the chat 'opps'"),
        ("schedule: training", "schedule: nights", "names the schedule 'nights'"),
        ("triage: true", "triage: true\n    sinks: [jira]", "names the tracker 'jira'"),
        ("receiver: training", "receiver: trainin", "no receiver is called 'trainin'"),
    ],
)
def test_what_routes_name_is_found(run: Run, example: Path, old: str, new: str, fault: str) -> None:
    edit(example.parent / "routes.yaml", old, new)
    status, out, _ = run("config", "check", "--json")
    assert status == 1
    assert any(fault in line and "routes.yaml" in line for line in json.loads(out)["faults"]), out


def test_every_fault_is_told_at_once(run: Run, example: Path) -> None:
    for n, name in enumerate(("tickets", "triage", "alerts", "oncall", "server")):
        edit(example, f"[{name}]", f"[{name}]\nwrong{n} = 1")
    status, out, _ = run("config", "check")
    assert status == 1
    assert out.count("there is no such setting") == 5


def test_gaps_and_idle_rotations_are_only_warned_of(run: Run, example: Path) -> None:
    edit(example, 'rotation = "platform-nights"', 'users = ["okafor"]\nto = "12:00"')
    status, out, _ = run("config", "check", "--json")
    assert status == 0
    said = json.loads(out)
    assert said["faults"] == []
    assert [line.partition(":")[0] for line in said["warnings"]] == [
        "[oncall.schedules.platform]",
        "[oncall.rotations.platform-nights]",
    ]


@pytest.mark.parametrize(
    ("old", "new", "warning"),
    [
        ('{ops = "manager5117"}', '{ops = "manager4220"}', "[users.mueller] chats: ops has the same id for wang"),
        ('chats = {ops = "manager6038"}', "", "[users] okafor: no chat is known"),
        ('lang = "zh"', 'lang = "zh"\nllm = true', "[chat.ops] llm: no language model is set up"),
        ("per_hour = 30", "llm = true", "[triage] llm: no language model is set up"),
    ],
)
def test_what_is_rarely_meant_is_warned_of(run: Run, example: Path, old: str, new: str, warning: str) -> None:
    edit(example, old, new)
    status, out, _ = run("config", "check", "--json")
    assert status == 0, out
    assert any(warning in line for line in json.loads(out)["warnings"]), out


def test_secrets_that_let_in_too_much_are_warned_of(run: Run, example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not json.loads(run("config", "check", "--json")[1])["warnings"]
    monkeypatch.setenv("WHYSTALL_ALERTS", "hunter2")
    monkeypatch.setenv("GITLAB_WEBHOOK", "the-token-of-calendars")
    monkeypatch.setenv("WHYSTALL_CALENDAR", "the-token-of-calendars")
    edit(example, "[chat.ops]", '[chat.lark]\nkind = "feishu"\nmay_change = ["ou_1"]\n'
         'verification_token = {env = "DINGTALK_SECRET"}\n\n[chat.ops]')  # fmt: skip
    _, out, _ = run("config", "check", "--json")
    warnings = json.loads(out)["warnings"]
    assert "[alerts] token: it can be guessed" in " ".join(warnings)
    assert any(" is the same as [server] calendar_token" in line for line in warnings)
    assert any(line.startswith("[chat.lark] may_change: ") for line in warnings)
    assert not any(value in out for value in ("hunter2", "the-token-of-calendars"))


def test_a_key_of_wecom_that_cannot_be_one_is_found(run: Run, example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WECOM_TOKEN", "token-of-wecom-012345")
    monkeypatch.setenv("WECOM_AES_KEY", "not-a-key-of-wecom")
    edit(example, "[chat.ops]", '[chat.ww]\nkind = "wecom"\ncorp_id = "ww1"\n'
         'token = {env = "WECOM_TOKEN"}\nencoding_aes_key = {env = "WECOM_AES_KEY"}\n\n[chat.ops]')  # fmt: skip
    status, out, _ = run("config", "check", "--json")
    assert status != 0
    assert "[chat.ww] encoding_aes_key: an EncodingAESKey has 43 letters and digits; copy it" in out
    assert "not-a-key-of-wecom" not in out
    monkeypatch.setenv("WECOM_AES_KEY", "6qkdMrq68nTKduznJYO1A37W2oEgpkMUvkttRToqhUt")
    assert run("config", "check", "--json")[0] == 0


def test_a_schedule_that_nothing_goes_to_is_warned_of(run: Run, example: Path) -> None:
    example.write_text(
        '[users.ann]\n[oncall.schedules.s]\ntimezone = "UTC"\nlayers = [{users = ["ann"]}]\n', encoding="utf-8"
    )
    status, out, _ = run("config", "check")
    assert status == 0
    assert "warning: [oncall] schedule: no ticket goes to any schedule" in out


def test_without_a_settings_file_nothing_is_wrong(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WHYSTALL_CONFIG")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    status, out, _ = run("config", "check")
    assert (status, out.splitlines()[-1]) == (0, "nothing is wrong")
    assert f"no settings file {tmp_path}/whystall/whystall.toml" in out


def test_what_counts_is_shown_with_its_origin_and_without_secrets(
    run: Run, example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHYSTALL_TICKETS__LANG", "zh")
    monkeypatch.setenv("WHYSTALL_LLM_API_KEY", "s3cret-llm")
    edit(example, "# [llm]", '[llm]\nmodel = "m"\napi_key = "s3cret-table"\nkey = "s3cret-too"')
    status, out, _ = run("config", "show", "--json")
    assert status == 0
    assert "s3cret" not in out
    shown: dict[str, Any] = {row["place"]: (row["value"], row["origin"]) for row in json.loads(out)}
    assert shown["tickets.lang"] == ("zh", "WHYSTALL_TICKETS__LANG")
    assert shown["tickets.sinks"] == (["tracker"], str(example))
    assert shown["triage.engine"] == ("auto", "default")
    assert shown["sinks.tracker.token"] == ({"env": "GITLAB_TOKEN"}, str(example))
    assert shown["oncall.schedules.platform.layers[0].from"] == ("09:00", str(example))
    assert shown["oncall.schedules.platform.layers[1].from"] == ("00:00", "default")
    assert shown["oncall.schedules.training.escalation[0].after"] == ("15m", str(example))
    assert shown["llm.model"] == ("m", str(example))
    assert shown["llm.api_key"] == ({"env": "WHYSTALL_LLM_API_KEY"}, "WHYSTALL_LLM_API_KEY")
    status, out, _ = run("config", "show", "sinks", "--changed")
    assert {line.partition(".")[0] for line in out.splitlines()} == {"sinks"}
    assert "default" not in out
    assert run("config", "show", "sin")[1] == "Nothing is set there.\n"


def test_the_log_is_listed(run: Run, tmp_path: Path) -> None:
    assert run("audit") == (0, "Nothing was sent or changed.\n", "")
    assert run("audit", "--lang", "zh")[1] == "没有任何发送或改动。\n"
    with Stores(tmp_path / "home" / "knowledge.db") as kb:
        for n in range(3):
            kb.audit.put("ann", "ticket.resolved", f"ticket:{n}", detail={"because": 'a "b"\x1b[31m\nc'})
        kb.audit.put("engine", "sink.create", "ticket:7", "unreachable")
    status, out, _ = run("audit", "--what", "ticket", "--limit", "2")
    assert status == 0
    assert [line.split("  ")[0] for line in out.splitlines()] == ["2", "3"]
    assert "\x1b" not in out
    assert "ann  ticket.resolved  ticket:2  ok  because=" in out
    assert [entry["n"] for entry in json.loads(run("audit", "--by", "engine", "--json")[1])] == [4]
    assert [entry["n"] for entry in json.loads(run("audit", "--after", "2", "--json")[1])] == [3, 4]


@pytest.mark.thorough
def test_what_needs_no_settings_does_not_load_them(tmp_path: Path) -> None:
    """Nor is it stopped by what is wrong with them."""
    broken = tmp_path / "whystall.toml"
    broken.write_text("[broken", encoding="ascii")
    program = """
import sys
from whystall.agent_server.interfaces.cli import main as cli
for words in (["--version"], ["tools"], ["audit"], ["tickets", "list"], ["kb", "search", "slow", "checkpoint"]):
    assert cli._command(words) == 0, words
for module in ("pydantic_settings", "whystall.agent_server.settings.model", "icalendar"):
    assert module not in sys.modules, module
"""
    env = {**os.environ, "WHYSTALL_CONFIG": str(broken), "WHYSTALL_HOME": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
