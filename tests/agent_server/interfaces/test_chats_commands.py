"""``whystall chats``: what is set up, what went wrong, and a test message, against the vendors' stand-ins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chat_server import VENDORS, ChatServer

from whystall.agent_server.integrations.chat.sending import queue
from whystall.agent_server.integrations.messages import Outgoing, Place
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli import main as cli
from whystall.agent_server.stores import Stores

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def chats(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    with ChatServer() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def run(chats: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    path = tmp_path / "whystall.toml"
    deaf = f'[chat.deaf]\nkind = "slack"\napi = "{chats.url}/slack"\nbot_token = {{env = "DEMO_SLACK_BOT"}}\n'
    path.write_text(chats.settings() + deaf, "utf-8")
    path.chmod(0o600)
    monkeypatch.setenv("WHYSTALL_CONFIG", str(path))
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))

    def command(*words: str) -> tuple[int, str, str]:
        status = cli._command(["chats", *words])
        console.deliver()
        return status, *capsys.readouterr()

    return command


@pytest.mark.parametrize("name", VENDORS)
def test_a_test_message_arrives_and_is_logged(run: Run, chats: ChatServer, tmp_path: Path, name: str) -> None:
    status, out, err = run("test", name, "--lang", "zh")
    assert (status, err) == (0, "")
    assert out.startswith(f"{name}：已发出")
    (said,) = chats.messages
    assert "whystall chats test" in json.dumps(said.content, ensure_ascii=False)
    assert chats.vendors.refused == []
    with Stores(tmp_path / "home" / "knowledge.db") as kb:
        assert [(entry.by, entry.outcome) for entry in kb.audit.entries(what="message.sent")] == [("cli", "ok")]


@pytest.mark.parametrize("name", VENDORS)
def test_a_dry_run_shows_all_but_the_secrets_and_sends_nothing(run: Run, chats: ChatServer, name: str) -> None:
    status, out, _ = run("test", name, "--dry-run")
    assert status == 0
    assert "POST http://127.0.0.1" in out
    assert "This is a test of" in out
    for secret in vars(chats.vendors.secrets).values():
        assert secret in ("cli_demo", "ww0123456789abcdef") or secret not in out
    assert chats.vendors.requests == []


def test_a_dry_run_follows_the_app_of_dingtalk_to_its_end(run: Run, chats: ChatServer) -> None:
    status, out, _ = run("test", "dingtalk", "--to", "manager4220", "--dry-run")
    assert status == 0
    assert out.count("POST http://127.0.0.1") == 2
    assert "oToMessages/batchSend" in out
    assert chats.vendors.secrets.dingtalk_app not in out


@pytest.mark.parametrize(("to", "method"), [("XiaoWang", "message/send"), ("group:demochat", "appchat/send")])
def test_a_dry_run_follows_the_app_of_wecom_to_its_end(run: Run, chats: ChatServer, to: str, method: str) -> None:
    status, out, _ = run("test", "wecom", "--to", to, "--dry-run")
    assert status == 0
    assert "GET http://127.0.0.1" in out
    assert f"/cgi-bin/{method}?access_token=***" in out
    assert chats.vendors.secrets.wecom_app not in out
    assert chats.vendors.requests == []


def test_what_a_vendor_refuses_is_one_line(run: Run, chats: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEMO_SLACK_BOT", "xoxb-not-this-one")
    status, out, err = run("test", "slack")
    assert (status, out) == (1, "")
    assert err == "error: io_error: slack: invalid_auth; see its settings and secrets, or try again\n"


@pytest.mark.parametrize(("words", "says"), [(["nobody"], "known: deaf, dingtalk"), (["deaf"], "give --to ID")])
def test_what_cannot_be_tried_says_why(run: Run, words: list[str], says: str) -> None:
    status, _, err = run("test", *words)
    assert status != 0
    assert says in err


def test_to_is_where_it_is_said(run: Run, chats: ChatServer) -> None:
    assert run("test", "deaf", "--to", "C77")[0] == 0
    assert [said.conversation for said in chats.messages] == ["C77"]


def test_the_list_tells_what_each_does_and_what_went_wrong(run: Run, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with Stores(tmp_path / "home" / "knowledge.db") as kb:
        for name in ("slack", "gone"):
            queue(kb.messages, name, Place(channel=name, conversation="x"), Outgoing(title="Verdict", text="x"))
        taken = kb.messages.take(1e9, 60.0, "slack")
        assert taken is not None
        kb.messages.failed(taken.n, "not_in_channel: invite it")
    listed = {one["name"]: one for one in json.loads(run("list", "--json")[1])}
    facts = {name: (one["receives"], one["notified"], one["waiting"], one["failed"]) for name, one in listed.items()}
    assert facts == {
        "dingtalk": (True, True, 0, 0),
        "feishu": (True, True, 0, 0),
        "slack": (True, True, 0, 1),
        "wecom": (True, True, 0, 0),
        "deaf": (False, False, 0, 0),
        "gone": (False, False, 1, 0),
    }
    lines = run("list")[1].splitlines()
    assert (
        "Verdict: not_in_channel: invite it" in lines[lines.index(next(x for x in lines if x.startswith("slack"))) + 1]
    )
    assert "设置中已没有" in run("list", "--lang", "zh")[1]
