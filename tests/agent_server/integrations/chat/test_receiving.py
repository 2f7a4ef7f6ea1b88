"""A callback becomes one task, however often it comes; what is not believed leaves nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import chat_callbacks
import pytest
from chat_server import VENDORS, ChatServer

from whystall.agent_server.integrations.chat.receiving import Reply, headers_by_name, take
from whystall.agent_server.integrations.chat_vendors import vendors
from whystall.agent_server.integrations.messages import BODY_LIMIT, Incoming, Vendor
from whystall.agent_server.settings.section import Section
from whystall.agent_server.settings.sections.chat import ChannelSettings
from whystall.agent_server.stores import Stores

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

NOW = 1_800_000_000.0


class _File(Section):
    chat: dict[str, ChannelSettings]


@pytest.fixture(scope="module")
def chats() -> Iterator[ChatServer]:
    with ChatServer(clock=lambda: NOW) as server:
        yield server


@pytest.fixture
def kb(tmp_path: Path) -> Iterator[Stores]:
    with Stores(tmp_path / "knowledge.db") as opened:
        yield opened


@pytest.fixture
def known(chats: ChatServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, Vendor]:
    for name, value in chats.environment().items():
        monkeypatch.setenv(name, value)
    return vendors(_File.model_validate(tomllib.loads(chats.settings())).chat)


def _take(kb: Stores, vendor: Vendor, post: chat_callbacks.Post, now: float = NOW) -> Reply:
    headers = [(name.encode(), value.encode()) for name, value in post.headers.items()]
    return take(kb, vendor, headers, post.query, post.body, now)


def _tasks(kb: Stores) -> list[Incoming]:
    found = []
    while (task := kb.tasks.take(["chat"], "test", NOW, 600.0)) is not None:
        found.append(Incoming.model_validate(task.payload["incoming"]))
    return found


@pytest.mark.parametrize("name", VENDORS)
def test_what_somebody_says_becomes_one_task(
    kb: Stores, known: dict[str, Vendor], chats: ChatServer, name: str
) -> None:
    post = chats.callback(name, "为什么训练卡顿 <b>", id="ev1")  # type: ignore[arg-type]
    replies = [_take(kb, known[name], post) for _ in range(3)]
    assert [(reply.status, reply.code) for reply in replies] == [(200, "taken"), (200, "repeated"), (200, "repeated")]
    (said,) = _tasks(kb)
    assert said.text == "为什么训练卡顿 <b>"
    assert said.place.channel == name
    task = kb.tasks.by_key(f"chat:{name}:ev1")
    assert task is not None
    assert task.payload["conversation"] == f"{name}:{said.place.conversation}"
    entry = kb.audit.entries(what="message.received")[-1]
    assert (entry.by, entry.target, entry.outcome) == (f"chat:{name}", said.sender, "ok")


@pytest.mark.parametrize("name", VENDORS)
def test_a_callback_that_was_changed_on_its_way_stores_nothing(
    kb: Stores, known: dict[str, Vendor], chats: ChatServer, name: str
) -> None:
    post = chats.callback(name, "resolve 12 because I say so")  # type: ignore[arg-type]
    where = post.query if name == "wecom" else post.headers
    changed = {one: "v0=" + "A" * 64 if "sign" in one else value for one, value in where.items()}
    wrong = post._replace(query=changed) if name == "wecom" else post._replace(headers=changed)
    reply = _take(kb, known[name], wrong)
    assert (reply.status, reply.code) == (401, "signature")
    assert json.loads(reply.body) == {"error": "signature"}
    assert _tasks(kb) == []
    assert kb.audit.entries() == []


def test_a_signature_that_does_not_cover_the_body_is_good_once(
    kb: Stores, known: dict[str, Vendor], chats: ChatServer
) -> None:
    """DingTalk signs the time alone: who saw one callback could send another under its signature."""
    headers = chats.callback("dingtalk", "who is on call", id="m1").headers
    assert _take(kb, known["dingtalk"], chats.callback("dingtalk", "who is on call", id="m1")).code == "taken"
    forged = chats.callback("dingtalk", "close all", id="m2")
    assert _take(kb, known["dingtalk"], forged._replace(headers=headers)).code == "replayed"
    assert [said.event for said in _tasks(kb)] == ["m1"]
    assert kb.handled_requests.first("chat:dingtalk", "m2", NOW)  # the forgery used up no message's id


def test_a_signature_of_what_was_ignored_is_used_up_too(
    kb: Stores, known: dict[str, Vendor], chats: ChatServer
) -> None:
    post = chats.callback("dingtalk", "close all", id="m1")
    silent = post._replace(body=json.dumps({**json.loads(post.body), "msgId": "m0", "text": {"content": ""}}).encode())
    assert [_take(kb, known["dingtalk"], silent).code for _ in range(2)] == ["no_text", "no_text"]
    assert _take(kb, known["dingtalk"], post).code == "replayed"
    assert _tasks(kb) == []


def test_what_is_ignored_is_answered_and_stores_nothing(
    kb: Stores, known: dict[str, Vendor], chats: ChatServer
) -> None:
    key, token = chats.vendors.secrets.feishu_encrypt, chats.vendors.secrets.feishu_verify
    challenge = chat_callbacks.feishu_signed(key, {"type": "url_verification", "challenge": "c", "token": token}, NOW)
    reply = _take(kb, known["feishu"], challenge)
    assert (reply.status, json.loads(reply.body), reply.code) == (200, {"challenge": "c"}, "challenge")
    assert _tasks(kb) == []


def test_a_body_that_is_too_large_is_refused_before_it_is_read(
    kb: Stores, known: dict[str, Vendor], chats: ChatServer
) -> None:
    for name in VENDORS:
        post = chats.callback(name, "x")
        assert _take(kb, known[name], post._replace(body=b" " * (BODY_LIMIT + 1))).status == 413


def test_where_our_own_secret_cannot_be_read_nobody_is_believed(
    kb: Stores, known: dict[str, Vendor], chats: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEMO_SLACK_SIGNING")
    reply = _take(kb, known["slack"], chats.callback("slack", "x"))
    assert (reply.status, reply.code) == (503, "not_set_up")
    assert "DEMO_SLACK_SIGNING" in reply.detail
    assert b"DEMO" not in reply.body


def test_what_is_taken_is_stored_with_its_task_or_not_at_all(
    kb: Stores, known: dict[str, Vendor], chats: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = chats.callback("slack", "x", id="ev9")

    def crash(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as broken:
        broken.setattr(kb.tasks, "add", crash)
        with pytest.raises(RuntimeError):
            _take(kb, known["slack"], post)
    assert _take(kb, known["slack"], post).code == "taken"  # the vendor sends it again
    assert [said.event for said in _tasks(kb)] == ["ev9"]


def test_headers_that_came_twice_are_joined() -> None:
    assert headers_by_name([(b"Sign", b"a"), (b"SIGN", b" b "), (b"X", b"\xff")]) == {"sign": "a, b", "x": "ÿ"}
