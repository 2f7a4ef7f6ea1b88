"""WeCom: what is believed, what is refused, and what is sent to a server that speaks its interface."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import chat_callbacks
import pytest
from chat_server import ChatServer
from chat_vendors import Answer

from whystall.agent_server.integrations.chat.sending import send_all
from whystall.agent_server.integrations.chat_vendors import wecom_callback
from whystall.agent_server.integrations.chat_vendors.wecom import PARTS, WeCom, markdown
from whystall.agent_server.integrations.messages import (
    BODY_LIMIT,
    Answered,
    Incoming,
    Outgoing,
    Picture,
    Place,
    Refused,
    SendError,
)
from whystall.agent_server.outbound.client import Client
from whystall.agent_server.settings.sections.chat import WeComSettings, aes_key
from whystall.tools.contract.errors import ToolError

NOW = 1_800_000_000.0
# of Tencent's sample, https://github.com/sbzhu/weworkapi_python (callback/Sample.py)
KEYS = chat_callbacks.WeComKeys(
    "hJqcu3uJ9Tn2gXPmxx2w9kkCkCE2EPYo", "6qkdMrq68nTKduznJYO1A37W2oEgpkMUvkttRToqhUt", "ww1436e0e65a779aee"
)
ECHO = "fsi1xnbH4yQh0+PJxcOdhhK6TDXkjMyhEPA7xB2TGz6b+g7xyAbEkRxN/3cNXW9qdqjnoVzEtpbhnFyq6SVHyA=="
ECHO_SIGNED = {
    "msg_signature": "012bc692d0a58dd4b10f8dfe5c4ac00ae211ebeb",
    "timestamp": "1476416373",
    "nonce": "47744683",
    "echostr": ECHO,
}
MESSAGE = (
    "Kl7kjoSf6DMD1zh7rtrHjFaDapSCkaOnwu3bqLc5tAybhhMl9pFeK8NslNPVdMwmBQTNoW4mY7AIjeLvEl3NyeTkAgGzBhzTtRLNshw2AEew+kkY"
    "cD+Fq72Kt00fT0WnN87hGrW8SqGc+NcT3mu87Ha3dz1pSDi6GaUA6A0sqfde0VJPQbZ9U+3JWcoD4Z5jaU0y9GSh010wsHF8KZD24YhmZH4ch4Ka"
    "7ilEbjbfvhKkNL65HHL0J6EYJIZUC2pFrdkJ7MhmEbU2qARR4iQHE7wy24qy0cRX3Mfp6iELcDNfSsPGjUQVDGxQDCWjayJOpcwocugux082f49H"
    "KYg84EpHSGXAyh+/oxwaWbvL6aSDPOYuPDGOCI8jmnKiypE+"
)
MESSAGE_SIGNED = {
    "msg_signature": "0c3914025cb4b4d68103f6bfc8db550f79dcf48e",
    "timestamp": "1476422779",
    "nonce": "1597212914",
}
SAID = {"FromUserName": "ann", "MsgType": "text", "Content": "谁在值班", "MsgId": "m1", "AgentID": 1000002}


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WW_TOKEN", KEYS.token)
    monkeypatch.setenv("WW_AES", KEYS.aes_key)


def _made(**more: Any) -> WeCom:
    given = {"corp_id": KEYS.corp, "token": {"env": "WW_TOKEN"}, "encoding_aes_key": {"env": "WW_AES"}} | more
    return WeCom("ops", WeComSettings.model_validate({"kind": "wecom", **given}))


def _body(encrypted: str) -> bytes:
    return f"<xml><Encrypt><![CDATA[{encrypted}]]></Encrypt></xml>".encode()


def _receive(
    message: bytes, keys: chat_callbacks.WeComKeys = KEYS, at: float = NOW, **more: Any
) -> Incoming | Answered:
    encrypted, query = chat_callbacks.wecom_signed(keys, message, at)
    return _made(**more).receive({}, query, _body(encrypted), NOW)


def _refused(receive: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as refused:
        receive()
    return refused.value


# --- receiving --------------------------------------------------------------------------------------------------------


def test_the_challenge_of_tencents_sample_is_answered_in_plain_text() -> None:
    answered = _made().receive({}, ECHO_SIGNED, b"", 1476416373.0)
    assert answered == Answered(b"1288432023552776189", "text/plain", "challenge")


def test_the_message_of_tencents_sample_is_read() -> None:
    said = _made().receive({}, MESSAGE_SIGNED, _body(MESSAGE), 1476422779.0)
    assert isinstance(said, Incoming)
    assert (said.event, said.sender, said.text, said.direct) == ("1456453720", "ChenJiaShun", "你好", True)
    assert said.place == Place(channel="ops", conversation="ChenJiaShun")


@pytest.mark.parametrize("name", ["encrypt", "Encrypt"])
def test_json_is_read_as_xml_is(name: str) -> None:
    encrypted, query = chat_callbacks.wecom_signed(
        KEYS, json.dumps(SAID | {"MsgId": 4561255354251345929}).encode(), NOW
    )
    said = _made().receive({}, query, json.dumps({name: encrypted, "agentid": "1"}).encode(), NOW)
    assert isinstance(said, Incoming)
    assert (said.event, said.sender, said.text) == ("4561255354251345929", "ann", "谁在值班")


def test_a_message_cannot_be_had_as_a_challenge() -> None:
    """The query of a callback is in the logs of proxies, and would sign its ciphertext as echostr too."""
    refused = _refused(lambda: _made().receive({}, {**MESSAGE_SIGNED, "echostr": MESSAGE}, b"", 1476422779.0))
    assert (refused.status, refused.code) == (401, "signature")


@pytest.mark.parametrize("skew", [-299.0, 299.0])
def test_clocks_may_differ_by_five_minutes(skew: float) -> None:
    assert isinstance(_receive(json.dumps(SAID).encode(), at=NOW + skew), Incoming)


@pytest.mark.parametrize("skew", [-302.0, 302.0, -86_400.0])
def test_older_or_further_ahead_is_refused(skew: float) -> None:
    refused = _refused(lambda: _receive(json.dumps(SAID).encode(), at=NOW + skew))
    assert (refused.status, refused.code) == (401, "too_old")


@pytest.mark.parametrize(
    "changed",
    [
        {"msg_signature": "0" * 40},
        {"msg_signature": ""},
        {"msg_signature": "签名"},
        {"nonce": "1"},
        {"nonce": ""},
        {"timestamp": str(int(NOW) + 1)},
        {"timestamp": "now"},
        {"timestamp": "9" * 5000},
    ],
    ids=range(8),
)
def test_what_is_not_signed_is_refused(changed: dict[str, str]) -> None:
    encrypted, query = chat_callbacks.wecom_signed(KEYS, json.dumps(SAID).encode(), NOW)
    refused = _refused(lambda: _made().receive({}, {**query, **changed}, _body(encrypted), NOW))
    assert (refused.status, refused.code) == (401, "signature")


def _signed(packed: bytes) -> tuple[str, dict[str, str]]:
    return chat_callbacks.wecom_encrypted(KEYS, packed, NOW)


def _resigned(encrypted: str) -> tuple[str, dict[str, str]]:
    sign = wecom_callback.signature(KEYS.token, str(int(NOW)), "n", encrypted)
    return encrypted, {"msg_signature": sign, "timestamp": str(int(NOW)), "nonce": "n"}


_TEXT = b"r" * 16 + (2).to_bytes(4, "big") + b"{}" + KEYS.corp.encode()  # 40 bytes
UNREADABLE: dict[str, tuple[str, dict[str, str]]] = {
    "no base64": _resigned("%%%"),
    "not ASCII": _resigned("签名"),
    "half a block": _resigned("QUFB"),
    "padding 0": _signed(_TEXT + b"\0" * 24),
    "padding 33": _signed(_TEXT + b"!" * 24),
    "padding uneven": _signed(_TEXT + b"\x17" + b"\x18" * 23),
    "padding only": _signed(b"\x20" * 32),
    "length beyond": _signed(b"r" * 16 + b"\xff" * 4 + b"{}" + KEYS.corp.encode() + b"\x18" * 24),
    "no message": chat_callbacks.wecom_signed(KEYS, b"", NOW),
    "neither JSON nor XML": chat_callbacks.wecom_signed(KEYS, b"hello", NOW),
    "DTD inside": chat_callbacks.wecom_signed(KEYS, b"<!DOCTYPE xml><xml></xml>", NOW),
    "another key": chat_callbacks.wecom_signed(
        chat_callbacks.WeComKeys(KEYS.token, "7" + KEYS.aes_key[1:], KEYS.corp), json.dumps(SAID).encode(), NOW
    ),
    "another receiver": chat_callbacks.wecom_signed(
        chat_callbacks.WeComKeys(KEYS.token, KEYS.aes_key, "ww0000000000000000"), json.dumps(SAID).encode(), NOW
    ),
    "no receiver": chat_callbacks.wecom_signed(
        chat_callbacks.WeComKeys(KEYS.token, KEYS.aes_key, ""), json.dumps(SAID).encode(), NOW
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_whatever_cannot_be_decrypted_is_refused_alike(name: str) -> None:
    encrypted, query = UNREADABLE[name]
    refused = _refused(lambda: _made().receive({}, query, _body(encrypted), NOW))
    assert (refused.status, refused.code) == (401, "signature")
    other = "receiver" in name
    assert refused.detail == (
        "it is for another receiver than corp_id" if other else "it cannot be decrypted with encoding_aes_key"
    )


_BOMB = b'<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><xml><Encrypt>&b;</Encrypt></xml>'
_FILE = b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><xml><Encrypt>&a;</Encrypt></xml>'


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (_BOMB, "malformed"),
        (_FILE, "malformed"),
        (b"<xml><Encrypt>&undeclared;</Encrypt></xml>", "malformed"),
        (b"<xml><Encrypt>a</Encrypt><Encrypt>b</Encrypt></xml>", "malformed"),
        (b"<xml><Encrypt>a", "malformed"),
        (b"<a>" * 50_000, "malformed"),
        (b"<xml>" + b"".join(b"<a%d/>" % n for n in range(1000)) + b"</xml>", "malformed"),
        (b"\xff\xfe<\0x\0", "malformed"),
        (b'{"encrypt": ', "malformed"),
        (b'{"a":' * 50_000, "malformed"),
        (b"<xml></xml>", "signature"),
        (b'{"encrypt": "\\ud800"}', "signature"),
        (b'{"encrypt": {}}', "signature"),
        (b" " * (BODY_LIMIT + 1), "too_large"),
        (b"", "signature"),
    ],
    ids=range(15),
)
def test_a_body_that_is_none_is_refused(body: bytes, code: str) -> None:
    _, query = chat_callbacks.wecom_signed(KEYS, b"{}", NOW)
    assert _refused(lambda: _made().receive({}, query, body, NOW)).code == code


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"MsgType": "event", "Event": "enter_agent"}, "other_event"),
        ({"MsgType": "event", "Event": "click", "EventKey": "k"}, "other_event"),
        ({"MsgType": "image"}, "no_text"),
        ({"Content": " \n "}, "no_text"),
        ({"Content": {"a": 1}}, "no_text"),
    ],
)
def test_what_says_nothing_gets_an_empty_answer(more: dict[str, Any], why: str) -> None:
    assert _receive(json.dumps(SAID | more).encode()) == Answered(b"", "text/plain", why)


def test_only_those_who_may_talk_are_heard() -> None:
    answered = _receive(json.dumps(SAID).encode(), senders=["boss"])
    assert answered == Answered(b"", "text/plain", "unknown_sender")


@pytest.mark.parametrize("sender", ["@all", "ann|bob", "group:x", "", " ann"])
def test_a_sender_that_is_no_person_is_not_answered(sender: str) -> None:
    assert _refused(lambda: _receive(json.dumps(SAID | {"FromUserName": sender}).encode())).code == "malformed"


def test_text_is_made_inert() -> None:
    said = _receive("<xml><FromUserName>ann</FromUserName><MsgType>text</MsgType><MsgId>1</MsgId>"
                    "<Content>a &lt;b&gt;\u202e c</Content><X><Content>no</Content></X></xml>".encode())  # fmt: skip
    assert isinstance(said, Incoming)
    assert said.text == "a <b>\\u202e c"


def test_a_key_that_is_none_is_not_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WW_AES", "short")
    with pytest.raises(ToolError, match=r"chat\.ops\.encoding_aes_key: an EncodingAESKey has 43 letters"):
        _receive(json.dumps(SAID).encode())
    assert len(aes_key(KEYS.aes_key)) == 32


# --- sending ----------------------------------------------------------------------------------------------------------


class _Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def chats(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    with ChatServer(clock=clock) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server


def _app(chats: ChatServer, **more: Any) -> WeCom:
    app = {"api": chats.url, "corp_id": chats.vendors.secrets.wecom_corp, "agent_id": 1000002}
    return _made(**app, corp_secret={"env": "DEMO_WECOM_APP"}, **more)


def _send(chat: WeCom, to: str, text: str, clock: _Clock, key: str = "k") -> int:
    async def main() -> int:
        async with Client(timeout=5.0) as client:
            steps = chat.send(
                Place(channel="ops", conversation=to), Outgoing(title="T", text=text), None, key, clock.now
            )
            return await send_all(client, steps)

    return anyio.run(main)


def _requests(chats: ChatServer) -> list[str]:
    return [path.removeprefix("/cgi-bin/") for path in chats.vendors.requests]


def test_people_and_groups_are_told_by_the_app_with_one_token(chats: ChatServer, clock: _Clock) -> None:
    app = _app(chats)
    assert _send(app, "XiaoWang", "**hi** `a`", clock) == 2
    assert _send(app, "group:demochat", "x", clock) == 1
    clock.now += 6899
    _send(app, "zhang.san", "y", clock)
    clock.now += 2
    _send(app, "zhang.san", "z", clock)
    assert chats.vendors.refused == []
    assert [(said.conversation, said.content) for said in chats.messages][:2] == [
        ("XiaoWang", "#### T\n**hi** `a`"),
        ("demochat", "#### T\nx"),
    ]
    assert _requests(chats) == [
        *("gettoken", "message/send", "appchat/send", "message/send", "gettoken", "message/send"),
    ]


@pytest.mark.parametrize("code", [40014, 42001])
def test_a_token_that_was_revoked_is_renewed(chats: ChatServer, clock: _Clock, code: int) -> None:
    app = _app(chats)
    _send(app, "XiaoWang", "x", clock)
    chats.vendors.faults.append(Answer(json.dumps({"errcode": code, "errmsg": "expired"}).encode()))
    with pytest.raises(SendError) as unsent:
        _send(app, "XiaoWang", "y", clock)
    assert (unsent.value.again, unsent.value.wait) == (True, 0.0)
    _send(app, "XiaoWang", "y", clock)
    assert _requests(chats) == ["gettoken", "message/send", "message/send", "gettoken", "message/send"]


@pytest.mark.parametrize(
    ("answer", "code", "again"),
    [
        ({"errcode": 45009, "errmsg": "freq"}, "45009", True),
        ({"errcode": -1, "errmsg": "busy"}, "-1", True),
        ({"errcode": 60020, "errmsg": "not allow to access from your ip"}, "60020", False),
        ({"errcode": 0, "errmsg": "ok", "invaliduser": "xiaowang"}, "invalid_user", False),
        ({"errcode": 0, "errmsg": "ok", "unlicenseduser": "xiaowang"}, "invalid_user", False),
        ({"errcode": "0"}, "None", False),
        ([], "bad_answer", False),
    ],
    ids=range(7),
)
def test_only_errcode_0_for_everybody_says_that_it_was_taken(
    chats: ChatServer, clock: _Clock, answer: object, code: str, again: bool
) -> None:
    app = _app(chats)
    _send(app, "XiaoWang", "x", clock)
    chats.vendors.faults.append(Answer(json.dumps(answer).encode()))
    with pytest.raises(SendError) as unsent:
        _send(app, "XiaoWang", "y", clock)
    assert (unsent.value.code, unsent.value.again) == (code, again)


def test_who_is_unknown_is_said(chats: ChatServer, clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SendError, match="81013"):
        _send(_app(chats), "nobody", "x", clock)
    monkeypatch.setenv("DEMO_WECOM_APP", "wrong")
    with pytest.raises(SendError, match="40001: invalid credential"):
        _send(_app(chats), "XiaoWang", "x", clock)


def test_the_robot_tells_its_own_group_only(chats: ChatServer, clock: _Clock) -> None:
    robot = _made(webhook={"env": "DEMO_WECOM_WEBHOOK"})
    home = robot.home()
    assert home is not None
    _send(robot, home.conversation, "- one\n- two\n\n> q\nend", clock)
    assert [said.conversation for said in chats.messages] == ["group robot"]
    assert chats.messages[0].content == "#### T\n• one\n• two\n\n> q\n\nend"
    with pytest.raises(SendError, match="no_way"):
        _send(robot, "XiaoWang", "x", clock)
    assert _requests(chats) == ["webhook/send"]


def test_a_long_message_comes_in_parts_that_are_cut_at_the_end(chats: ChatServer, clock: _Clock) -> None:
    text = "\n".join(f"- 第{n}行：" + "数据加载器在等待页缓存" * 5 for n in range(100))
    assert _send(_app(chats), "XiaoWang", text, clock) == 1 + PARTS
    shown = [str(said.content) for said in chats.messages]
    assert all(1500 < len(part.encode()) <= 2048 for part in shown)
    lines = "\n".join(shown).split("\n")
    kept = [line for line in lines if line.startswith("• ")]
    assert kept == ["• " + line[2:] for line in text.split("\n")[: len(kept)]]
    assert f"cut here: {100 - len(kept)} more lines" in lines[-1]


def test_a_line_that_is_too_long_is_continued() -> None:
    text = "".join(chr(0x4E00 + n) for n in range(1200))
    first, second, *rest = markdown(Outgoing(title="T", text=text), None, 2048)
    assert rest == []
    assert first.removeprefix("#### T\n").replace("\n", "") + second == text


def test_the_parts_that_were_taken_are_not_sent_again(chats: ChatServer, clock: _Clock) -> None:
    app = _app(chats)
    _send(app, "XiaoWang", "x", clock)
    text = "\n".join(f"- {n}: {'x' * 100}" for n in range(40))
    chats.vendors.faults += [Answer(b'{"errcode":0}'), Answer(b'{"errcode":-1}')]
    with pytest.raises(SendError):
        _send(app, "XiaoWang", text, clock, "long")
    assert _send(app, "XiaoWang", text, clock, "long") == PARTS - 1
    whole = markdown(Outgoing(title="T", text=text), None, 2048)
    assert [said.content for said in chats.messages][1:] == whole[1:]
    assert _send(app, "XiaoWang", text, clock, "long") == PARTS  # a new message


def test_nothing_mentions_or_links_but_our_own_links() -> None:
    text = '<@ann> <font color="warning">x</font> @all [a](https://evil.example) [ok](https://w.example/1)'
    message = Outgoing(title="<@all>", text=text.replace("[a]", "\\[a\\]"))
    (shown,) = markdown(message, Picture(b"", "v.png", "verdict", "https://w.example/v.png"), 2048)
    assert "<@" not in shown
    assert "<font" not in shown
    assert "](https://evil" not in shown
    assert "[ok](https://w.example/1)" in shown
    assert shown.endswith("\n\n[verdict](https://w.example/v.png)")
