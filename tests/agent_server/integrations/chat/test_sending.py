"""Messages reach the vendors' stand-ins, in order, once where the vendor takes an id, and with patience."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from chat_server import VENDORS, ChatServer
from chat_vendors import Answer

from whystall.agent_server.integrations.chat.sending import ATTEMPTS, LEASE_S, Sender, queue
from whystall.agent_server.integrations.chat_vendors import vendors
from whystall.agent_server.integrations.messages import Outgoing, Picture, Place, Vendor
from whystall.agent_server.outbound.client import Client
from whystall.agent_server.settings.section import Section
from whystall.agent_server.settings.sections.chat import ChannelSettings
from whystall.agent_server.stores import Stores

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

NOW = 1_800_000_000.0
PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 64
HOME = {"dingtalk": "", "feishu": "oc_demo", "slack": "C0DEMO", "wecom": ""}


_PUBLIC = ("cli_demo", "ww0123456789abcdef")  # ids, no secrets


class _File(Section):
    chat: dict[str, ChannelSettings]


class _Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class _Shelf:
    """A shelf with one picture."""

    def load(self, uri: str, alt: str, now: float) -> Picture | None:
        return Picture(PNG, "verdict.png", alt) if uri == "whystall://artifacts/1.png" else None


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def chats(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    with ChatServer(clock=clock) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def kb(tmp_path: Path) -> Iterator[Stores]:
    with Stores(tmp_path / "knowledge.db") as opened:
        yield opened


def _known(chats: ChatServer) -> dict[str, Vendor]:
    return vendors(_File.model_validate(tomllib.loads(chats.settings())).chat)


def _run(
    kb: Stores, chats: ChatServer, clock: _Clock, name: str, then: Callable[[], None] | None = None
) -> float | None:
    """Send what is due in `name`, once more after `then`."""

    async def main() -> float | None:
        async with Client(timeout=5.0) as client:
            sender = Sender(kb, _known(chats), client, clock, _Shelf())
            due = await sender.due(name)
            if then is not None:
                then()
                due = await sender.due(name)
            return due

    return anyio.run(main)


def _put(kb: Stores, name: str, key: str = "k", text: str = "x", picture: str | None = None, **place: object) -> None:
    to = Place.model_validate({"channel": name, "conversation": HOME[name], **place})
    queue(kb.messages, key, to, Outgoing(title="Verdict", text=text, picture=picture, lang="zh"))


def _state(kb: Stores, key: str = "k") -> tuple[str, int]:
    message = kb.messages.by_key(key)
    assert message is not None
    return message.state, message.attempts


@pytest.mark.parametrize("name", VENDORS)
def test_a_message_is_taken_by_its_vendor_once(kb: Stores, chats: ChatServer, clock: _Clock, name: str) -> None:
    _put(kb, name, text='**已确认**：`<at user_id="all"> <!channel> @all`', picture="whystall://artifacts/1.png")
    assert _run(kb, chats, clock, name) is None
    assert _run(kb, chats, clock, name) is None
    assert chats.vendors.refused == []
    (said,) = chats.messages
    assert (said.vendor, said.by, said.mentions) == (name, "us", [])
    assert "已确认" in json.dumps(said.content, ensure_ascii=False)
    # DingTalk fetches pictures, and nobody outside reaches us here; WeCom gets a link.
    assert len(said.pictures) == (0 if name in ("dingtalk", "wecom") else 1)
    if said.pictures:
        assert chats.vendors.images[said.pictures[0].removeprefix("/images/")] == PNG
    assert _state(kb) == ("sent", 1)
    entry = kb.audit.entries(what="message.sent")[-1]
    assert (entry.outcome, entry.target) == ("ok", f"{name}:{HOME[name]}")
    log = json.dumps([e.model_dump() for e in kb.audit.entries()])
    assert not any(secret in log for secret in vars(chats.vendors.secrets).values() if secret not in _PUBLIC)


@pytest.mark.parametrize("name", VENDORS)
def test_an_answer_goes_where_it_was_asked(kb: Stores, chats: ChatServer, clock: _Clock, name: str) -> None:
    post = chats.callback(name, "谁在值班")  # type: ignore[arg-type]
    said = _known(chats)[name].receive(post.headers, post.query, post.body, NOW)
    queue(kb.messages, "k", said.place, Outgoing(title="T", text="Wang"))  # type: ignore[union-attr]
    _run(kb, chats, clock, name)
    assert chats.vendors.refused == []
    (answer,) = chats.messages
    where = {"dingtalk": "训练值班群", "feishu": "reply to om_", "slack": "C0DEMO (thread ", "wecom": "XiaoWang"}[name]
    assert answer.conversation.startswith(where)


def test_a_person_is_told_in_dingtalk_by_the_app(kb: Stores, chats: ChatServer, clock: _Clock) -> None:
    _put(kb, "dingtalk", text="字" * 9000, conversation="manager4220")
    _run(kb, chats, clock, "dingtalk")
    assert chats.vendors.refused == []
    assert [said.conversation for said in chats.messages] == ["manager4220"]


def test_messages_of_a_conversation_keep_their_order(kb: Stores, chats: ChatServer, clock: _Clock) -> None:
    for number in range(5):
        _put(kb, "dingtalk", f"k{number}", f"line {number}")
    _run(kb, chats, clock, "dingtalk")
    assert [str(said.content).rpartition(" ")[2] for said in chats.messages] == list("01234")


def test_a_busy_vendor_is_left_alone_for_as_long_as_it_asks(kb: Stores, chats: ChatServer, clock: _Clock) -> None:
    _put(kb, "slack")
    chats.vendors.faults.append(Answer(b"{}", 429, headers={"Retry-After": "30"}))
    due = _run(kb, chats, clock, "slack")
    assert due is not None
    assert NOW + 30 <= due <= NOW + 31
    assert chats.messages == []
    clock.now = due
    assert _run(kb, chats, clock, "slack") is None
    assert len(chats.messages) == 1
    assert _state(kb) == ("sent", 2)


def test_a_pause_holds_for_the_whole_chat(kb: Stores, chats: ChatServer, clock: _Clock) -> None:
    _put(kb, "feishu", "a")
    busy = json.dumps({"code": 99991400, "msg": "request trigger frequency limit"}).encode()
    chats.vendors.faults.append(Answer(busy, 400))

    def another() -> None:
        _put(kb, "feishu", "b", conversation="oc_other")

    due = _run(kb, chats, clock, "feishu", another)
    assert due == NOW + 10
    assert chats.messages == []


@pytest.mark.parametrize(
    "fault",
    [Answer(b"", 500), Answer(b"<html>bad gateway", 502), Answer(b'{"errcode":-1,"errmsg":"busy"}')],
    ids=["error", "gateway", "busy"],
)
def test_what_may_pass_is_tried_again(kb: Stores, chats: ChatServer, clock: _Clock, fault: Answer) -> None:
    _put(kb, "dingtalk")
    chats.vendors.faults.append(fault)
    due = _run(kb, chats, clock, "dingtalk")
    assert due is not None
    assert due > NOW
    clock.now = due
    _run(kb, chats, clock, "dingtalk")
    assert len(chats.messages) == 1


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("dingtalk", Answer(b'{"errcode":310000,"errmsg":"sign not match"}')),
        ("dingtalk", Answer(b"not json")),
        ("feishu", Answer(b'{"code":10014,"msg":"app secret invalid"}')),
        ("slack", Answer(b'{"ok":false,"error":"channel_not_found"}')),
        ("slack", Answer(b"", 302, headers={"Location": "http://127.0.0.1/"})),
    ],
    ids=range(5),
)
def test_what_cannot_pass_is_given_up_and_holds_up_nobody(
    kb: Stores, chats: ChatServer, clock: _Clock, name: str, fault: Answer
) -> None:
    _put(kb, name, "a")
    _put(kb, name, "b")
    chats.vendors.faults.append(fault)
    due = _run(kb, chats, clock, name)
    if due is not None:  # Slack takes one message a second
        clock.now = due
        _run(kb, chats, clock, name)
    assert _state(kb, "a")[0] == "failed"
    assert _state(kb, "b")[0] == "sent"
    outcomes = [entry.outcome for entry in kb.audit.entries(what="message.sent")]
    assert len(outcomes) == 2
    assert outcomes[-1] == "ok"


def test_a_message_whose_sender_was_killed_is_sent_again_and_shown_once_where_the_vendor_takes_an_id(
    kb: Stores, chats: ChatServer, clock: _Clock
) -> None:
    _put(kb, "feishu")
    _run(kb, chats, clock, "feishu")
    with kb._file.write() as db:  # as if it had been killed before it noted that it was sent
        db.execute("UPDATE messages SET state = 'sending', lease = ?", [NOW + LEASE_S])
    assert _run(kb, chats, clock, "feishu") == NOW + LEASE_S
    kb.messages.release(NOW)
    _run(kb, chats, clock, "feishu")
    assert _state(kb) == ("sent", 2)
    assert len(chats.messages) == 1


def test_the_pace_of_a_vendor_is_kept(kb: Stores, chats: ChatServer, clock: _Clock) -> None:
    for number in range(25):
        _put(kb, "dingtalk", f"k{number}")
    due = _run(kb, chats, clock, "dingtalk", lambda: None)
    assert len(chats.messages) == 18
    assert due == NOW + 60
    assert chats.vendors.refused == []


def test_a_clock_that_is_set_back_silences_nobody(kb: Stores, chats: ChatServer, clock: _Clock) -> None:
    for number in range(19):
        _put(kb, "dingtalk", f"k{number}")

    def back() -> None:
        clock.now = NOW - 86_400

    _run(kb, chats, clock, "dingtalk", back)
    assert len(chats.messages) == 19


def test_patience_ends(kb: Stores, chats: ChatServer, clock: _Clock) -> None:
    _put(kb, "slack")
    with kb._file.write() as db:
        db.execute("UPDATE messages SET attempts = ?", [ATTEMPTS - 1])
    chats.vendors.faults.append(Answer(b"", 503))
    _run(kb, chats, clock, "slack")
    assert _state(kb) == ("failed", ATTEMPTS)


def test_a_secret_that_is_missing_is_waited_for(
    kb: Stores, chats: ChatServer, clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put(kb, "slack")
    monkeypatch.delenv("DEMO_SLACK_BOT")
    due = _run(kb, chats, clock, "slack")
    assert due is not None
    message = kb.messages.by_key("k")
    assert message is not None
    assert "DEMO_SLACK_BOT" in message.error
    monkeypatch.setenv("DEMO_SLACK_BOT", chats.vendors.secrets.slack_bot)
    clock.now = due
    _run(kb, chats, clock, "slack")
    assert _state(kb)[0] == "sent"


def test_messages_of_chats_that_are_no_longer_set_up_are_given_up(kb: Stores, chats: ChatServer, clock: _Clock) -> None:
    queue(kb.messages, "k", Place(channel="gone", conversation="x"), Outgoing(title="T", text="x"))
    _put(kb, "slack", "stays")

    async def main() -> int:
        async with Client() as client:
            return Sender(kb, _known(chats), client, clock).give_up_removed()

    assert anyio.run(main) == 1
    assert _state(kb)[0] == "failed"
    assert _state(kb, "stays")[0] == "queued"


def test_a_picture_that_is_gone_or_fails_again_and_again_does_not_keep_the_words(
    kb: Stores, chats: ChatServer, clock: _Clock
) -> None:
    _put(kb, "slack", "a", picture="whystall://artifacts/gone.png")
    _run(kb, chats, clock, "slack")
    assert [said.pictures for said in chats.messages] == [[]]
    clock.now += 10
    _put(kb, "slack", "b", picture="whystall://artifacts/1.png")
    with kb._file.write() as db:
        db.execute("UPDATE messages SET attempts = 3 WHERE key = 'b'")
    _run(kb, chats, clock, "slack")
    assert [said.pictures for said in chats.messages] == [[], []]
