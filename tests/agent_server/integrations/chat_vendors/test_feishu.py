"""Feishu: signatures, encryption, challenges, events, and both ways of sending."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from whystall.agent_server.integrations.chat_vendors.feishu import Feishu, decrypt, event_signature, sign
from whystall.agent_server.integrations.messages import (
    Answered,
    Incoming,
    Outgoing,
    Picture,
    Place,
    Refused,
    SendError,
    SendSteps,
)
from whystall.agent_server.outbound.request import Request, Response
from whystall.agent_server.settings.sections.chat import FeishuSettings

NOW = 1_800_000_000.0
KEY = "encrypt-key"
APP = {"app_id": "cli_a", "app_secret": {"env": "FS_APP"}}
MESSAGE = Outgoing(title="标题", text="正文", lang="zh")
PICTURE = Picture(b"\x89PNG\r\n--x", "x.png", "alt")


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("FS_KEY", KEY),
        ("FS_TOKEN", "verify-me"),
        ("FS_APP", "app-s3cret"),
        ("FS_URL", "https://open.feishu.cn/open-apis/bot/v2/hook/h00k-id"),
        ("FS_SIGN", "test"),
    ):
        monkeypatch.setenv(name, value)


def _made(**more: Any) -> Feishu:
    given = more or {"encrypt_key": {"env": "FS_KEY"}, "verification_token": {"env": "FS_TOKEN"}}
    return Feishu("ops", FeishuSettings.model_validate({"kind": "feishu", **given}))


def _encrypted(said: object, key: str = KEY) -> bytes:
    text = json.dumps(said).encode()
    pad = 16 - len(text) % 16
    iv = os.urandom(16)
    made = Cipher(algorithms.AES(hashlib.sha256(key.encode()).digest()), modes.CBC(iv)).encryptor()
    raw = iv + made.update(text + bytes([pad]) * pad) + made.finalize()
    return json.dumps({"encrypt": base64.b64encode(raw).decode()}).encode()


def _headers(body: bytes, at: float = NOW, key: str = KEY) -> dict[str, str]:
    timestamp = str(int(at))
    return {
        "x-lark-request-timestamp": timestamp,
        "x-lark-request-nonce": "n0nce",
        "x-lark-signature": event_signature(timestamp, "n0nce", key, body),
    }


def _event(header: Mapping[str, Any] = {}, message: Mapping[str, Any] = {}, **sender: Any) -> dict[str, Any]:
    return {
        "schema": "2.0",
        "header": {
            "event_id": "ev1",
            "event_type": "im.message.receive_v1",
            "create_time": str(int(NOW * 1000)),
            "token": "verify-me",
            **header,
        },
        "event": {
            "sender": {"sender_id": {"open_id": "ou_x"}, "sender_type": "user", **sender},
            "message": {
                "message_id": "om_1",
                "chat_id": "oc_1",
                "chat_type": "group",
                "message_type": "text",
                "content": json.dumps({"text": "@_user_1 ask @_user_2 为什么训练卡顿 @_all"}),
                "mentions": [
                    {"key": "@_user_1", "id": {"open_id": "ou_bot"}, "name": "whystall"},
                    {"key": "@_user_2", "id": {"open_id": "ou_y"}, "name": "Li"},
                ],
                **message,
            },
        },
    }


def _take(said: object, feishu: Feishu | None = None, at: float = NOW) -> Incoming | Answered:
    body = _encrypted(said)
    return (feishu or _made()).receive(_headers(body, at), {}, body, NOW)


def test_vectors_of_the_documents() -> None:
    assert sign("test", "1700000000") == "eSJQnOl8XqPTMPHWz9e5IzeHS/tqoc68g2967ekIPmg="
    assert decrypt("P37w+VZImNgPEO1RBhJ6RtKl7n6zymIbEG1pReEzghk=", "test key") == b"hello world"


def test_an_event_is_read() -> None:
    said = _take(_event())
    assert isinstance(said, Incoming)
    assert (said.event, said.sender, said.text) == ("ev1", "ou_x", "ask @Li 为什么训练卡顿")
    assert said.place == Place(channel="ops", conversation="oc_1", thread="om_1")
    assert not said.direct
    assert not said.proof  # the signature covers the body


def test_rich_text_and_one_to_one() -> None:
    content = {"title": "", "content": [[{"tag": "text", "text": "why is"}, {"tag": "at", "user_id": "@_user_2"}], [7]]}
    message = {"chat_type": "p2p", "message_type": "post", "content": json.dumps(content), "mentions": None}
    said = _take(_event(message=message))
    assert isinstance(said, Incoming)
    assert said.text == "why is"
    assert said.direct


@pytest.mark.parametrize("skew", [-3601.0, 3601.0])
def test_a_signature_ends_after_an_hour_on_both_sides(skew: float) -> None:
    with pytest.raises(Refused) as refused:
        _take(_event(), at=NOW + skew)
    assert refused.value.code == "too_old"


_BODY = _encrypted(_event())
_OTHERS = _encrypted(_event(), key="another")
_NOT_OURS = _encrypted(_event(header={"token": "another"}))


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, _BODY),
        (_headers(_BODY, key="another"), _BODY),
        (_headers(_BODY), _BODY + b" "),
        ({**_headers(_BODY), "x-lark-request-nonce": ""}, _BODY),
        ({**_headers(_BODY), "x-lark-request-nonce": "a, a"}, _BODY),
        ({**_headers(_BODY), "x-lark-request-timestamp": "soon"}, _BODY),
        (_headers(_OTHERS), _OTHERS),
        (_headers(_NOT_OURS), _NOT_OURS),
        (_headers(b'{"encrypt": 3}'), b'{"encrypt": 3}'),
        (_headers(b'{"encrypt": "%%%"}'), b'{"encrypt": "%%%"}'),
        (_headers(b'{"encrypt": "AAAA"}'), b'{"encrypt": "AAAA"}'),
        (_headers(json.dumps(_event()).encode()), json.dumps(_event()).encode()),
        ({}, json.dumps({"type": "url_verification", "challenge": "c", "token": "verify-me"}).encode()),
    ],
    ids=range(13),
)
def test_what_is_not_proven_is_refused(headers: dict[str, str], body: bytes) -> None:
    with pytest.raises(Refused) as refused:
        _made().receive(headers, {}, body, NOW)
    assert refused.value.code in ("signature", "malformed")
    assert refused.value.status in (400, 401)


def test_the_challenge_is_answered_to_who_knows_the_key() -> None:
    body = _encrypted({"type": "url_verification", "challenge": "c-1", "token": "verify-me"})
    said = _made().receive({}, {}, body, NOW)
    assert isinstance(said, Answered)
    assert (said.why, json.loads(said.body)) == ("challenge", {"challenge": "c-1"})


def test_a_token_alone_proves_a_recent_event() -> None:
    feishu = _made(verification_token={"env": "FS_TOKEN"})
    assert isinstance(feishu.receive({}, {}, json.dumps(_event()).encode(), NOW), Incoming)
    for header, code in (
        ({"token": "another"}, "signature"),
        ({"token": None}, "signature"),
        ({"create_time": str(int((NOW - 9 * 3600) * 1000))}, "too_old"),
        ({"create_time": "x"}, "too_old"),
    ):
        with pytest.raises(Refused) as refused:
            feishu.receive({}, {}, json.dumps(_event(header=header)).encode(), NOW)
        assert refused.value.code == code


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (_event(header={"event_type": "im.chat.updated_v1"}), "other_event"),
        (_event(sender_type="app"), "own_message"),
        (_event(message={"mentions": []}), "not_for_us"),
        (_event(message={"message_type": "image", "content": '{"image_key":"x"}'}), "no_text"),
        (_event(message={"content": '{"text":"@_user_1 "}'}), "no_text"),
    ],
    ids=range(5),
)
def test_what_concerns_nobody_is_answered_and_no_more(said: object, why: str) -> None:
    answered = _take(said)
    assert isinstance(answered, Answered)
    assert answered.why == why


def test_where_our_own_id_is_known_others_are_not_taken_for_us() -> None:
    feishu = _made(encrypt_key={"env": "FS_KEY"}, bot="ou_bot")
    assert isinstance(_take(_event(), feishu), Incoming)
    other = {"mentions": [{"key": "@_user_1", "id": {"open_id": "ou_y"}, "name": "Li"}]}
    answered = _take(_event(message=other), feishu)
    assert isinstance(answered, Answered)
    assert answered.why == "not_for_us"


# --- sending ----------------------------------------------------------------------------------------------------------


def _answer(saying: SendSteps, value: object, status: int = 200) -> Request:
    return saying.send(Response(status, {}, json.dumps(value).encode()))


TOKEN = {"code": 0, "tenant_access_token": "t-123456789", "expire": 7200}
GROUP = Place(channel="ops", conversation="oc_1")


def test_an_app_says_it_with_its_token_and_picture() -> None:
    feishu = _made(**APP)
    saying = feishu.send(GROUP, MESSAGE, PICTURE, "key", NOW)
    asked = next(saying)
    assert asked.url == "https://open.feishu.cn/open-apis/auth/v3/tenant_access_token/internal"
    assert json.loads(asked.body) == {"app_id": "cli_a", "app_secret": "app-s3cret"}
    assert asked.secrets == ("app-s3cret",)
    upload = _answer(saying, TOKEN)
    assert upload.url.endswith("/im/v1/images")
    boundary = upload.headers["Content-Type"].partition("boundary=")[2].encode()
    parts = upload.body.split(b"--" + boundary)
    assert parts[0] == b""
    assert b'name="image_type"\r\n\r\nmessage\r\n' in parts[1]
    assert parts[2].endswith(b"\r\n\r\n" + PICTURE.png + b"\r\n")
    assert parts[3] == b"--\r\n"
    sent = _answer(saying, {"code": 0, "data": {"image_key": "img_1"}})
    assert sent.url.endswith("/im/v1/messages?receive_id_type=chat_id")
    assert sent.headers["Authorization"] == "Bearer t-123456789"
    body = json.loads(sent.body)
    assert body["receive_id"] == "oc_1"
    assert len(body["uuid"]) <= 50
    post = json.loads(body["content"])["zh_cn"]
    assert post["title"] == "标题"
    assert post["content"] == [[{"tag": "text", "text": "正文"}], [{"tag": "img", "image_key": "img_1"}]]
    with pytest.raises(StopIteration):
        _answer(saying, {"code": 0})


def test_the_same_message_has_the_same_uuid_and_the_token_is_kept() -> None:
    feishu = _made(**APP)
    bodies = []
    for at in (NOW, NOW + 10):
        saying = feishu.send(GROUP, MESSAGE, None, "key", at)
        first = next(saying)
        bodies.append(json.loads((_answer(saying, TOKEN) if "tenant" in first.url else first).body))
    assert bodies[0] == bodies[1]
    assert "tenant" in next(feishu.send(GROUP, MESSAGE, None, "key", NOW + 7000)).url  # it is about to end
    assert "tenant" in next(feishu.send(GROUP, MESSAGE, None, "key", NOW - 9000)).url  # the clock was set back


def test_a_picture_that_is_not_taken_does_not_keep_the_message() -> None:
    saying = _made(**APP).send(GROUP, MESSAGE, PICTURE, "key", NOW)
    next(saying)
    _answer(saying, TOKEN)
    sent = _answer(saying, {"code": 99991672, "msg": "no scope im:resource"}, 400)
    assert sent.url.endswith("/im/v1/messages?receive_id_type=chat_id")
    assert "img" not in sent.body.decode()


def test_an_answer_replies_and_where_that_was_taken_back_says_it_to_all() -> None:
    saying = _made(**APP).send(GROUP.model_copy(update={"thread": "om_1"}), MESSAGE, None, "key", NOW)
    next(saying)
    assert _answer(saying, TOKEN).url.endswith("/im/v1/messages/om_1/reply")
    again = _answer(saying, {"code": 230011, "msg": "withdrawn"}, 400)
    assert json.loads(again.body)["receive_id"] == "oc_1"


@pytest.mark.parametrize(
    ("answer", "code", "again"),
    [
        ({"code": 230002, "msg": "bot not in chat"}, "230002", False),
        ({"code": 99991400, "msg": "too many"}, "99991400", True),
        ({"code": 99991663, "msg": "token expired"}, "99991663", True),
        ({"msg": "?"}, "None", False),
    ],
)
def test_only_code_0_says_that_it_was_taken(answer: dict[str, Any], code: str, again: bool) -> None:
    feishu = _made(**APP)
    saying = feishu.send(GROUP, MESSAGE, None, "key", NOW)
    next(saying)
    _answer(saying, TOKEN)
    with pytest.raises(SendError) as unsaid:
        _answer(saying, answer, 400)
    assert (unsaid.value.code, unsaid.value.again) == (code, again)
    if code == "99991663":  # the next try asks for another one
        assert "tenant" in next(feishu.send(GROUP, MESSAGE, None, "key", NOW)).url


@pytest.mark.parametrize(("to", "kind"), [("ou_1", "open_id"), ("on_1", "union_id"), ("a@b.cn", "email")])
def test_a_person_is_written_to_by_what_the_id_is(to: str, kind: str) -> None:
    saying = _made(**APP).send(Place(channel="ops", conversation=to), MESSAGE, None, "key", NOW)
    next(saying)
    assert _answer(saying, TOKEN).url.endswith(f"receive_id_type={kind}")


def _send_to_robot(**more: Any) -> Feishu:
    return _made(webhook={"env": "FS_URL"}, sign={"env": "FS_SIGN"}, **more)


def test_a_robot_signs_in_the_body() -> None:
    feishu = _send_to_robot()
    home = feishu.home()
    assert home is not None
    saying = feishu.send(home, MESSAGE, PICTURE, "key", 1_700_000_000.7)
    request = next(saying)
    body = json.loads(request.body)
    assert (body["timestamp"], body["sign"]) == ("1700000000", "eSJQnOl8XqPTMPHWz9e5IzeHS/tqoc68g2967ekIPmg=")
    assert body["content"]["post"]["zh_cn"]["content"] == [[{"tag": "text", "text": "正文"}]]
    assert "h00k-id" in request.secrets
    with pytest.raises(StopIteration):
        _answer(saying, {"StatusCode": 0, "StatusMessage": "success"})


def test_a_robot_speaks_to_no_other_group() -> None:
    with pytest.raises(SendError, match="no_way"):
        next(_send_to_robot().send(GROUP, MESSAGE, None, "key", NOW))
    assert next(_send_to_robot(to="oc_1").send(GROUP, MESSAGE, None, "key", NOW)).url.endswith("h00k-id")


def _elements(text: str) -> list[list[dict[str, Any]]]:
    feishu = _send_to_robot()
    home = feishu.home()
    assert home is not None
    body = json.loads(next(feishu.send(home, Outgoing(title="t", text=text), None, "k", NOW)).body)
    made: list[list[dict[str, Any]]] = body["content"]["post"]["en_us"]["content"]
    return made


def test_markdown_becomes_paragraphs_of_elements() -> None:
    made = _elements("# Verdict\n- **sure** `a.bin`\n  - deeper [page](https://w.example/x)\n\n1. one\n> said")
    assert made == [
        [{"tag": "text", "text": "Verdict", "style": ["bold"]}],
        [
            {"tag": "text", "text": "• "},
            {"tag": "text", "text": "sure", "style": ["bold"]},
            {"tag": "text", "text": " "},
            {"tag": "text", "text": "a.bin"},
        ],
        [
            {"tag": "text", "text": "\u3000• "},
            {"tag": "text", "text": "deeper "},
            {"tag": "a", "text": "page", "href": "https://w.example/x"},
        ],
        [{"tag": "text", "text": " "}],
        [{"tag": "text", "text": "1. "}, {"tag": "text", "text": "one"}],
        [{"tag": "text", "text": "┃ "}, {"tag": "text", "text": "said"}],
    ]


def test_a_first_line_that_repeats_the_title_is_not_said_twice() -> None:
    assert _elements("**t**\n\nmore") == [[{"tag": "text", "text": "more"}]]
    assert _elements("t") == [[{"tag": "text", "text": "t"}]]  # a message is never empty


def test_text_of_strangers_is_inert_and_cannot_pass_for_ours() -> None:
    made = _elements('`<at user_id="all">x</at>` [x](javascript:alert) `all is well, nothing to do`')
    text = "".join(element["text"] for element in made[0])
    assert {element["tag"] for element in made[0]} == {"text"}
    assert "<at" not in text
    assert '"all is well, nothing to do"' in text  # a name that reads as prose stands in quotes


@pytest.mark.parametrize("text", ["字" * 30_000, "行\n" * 9000, '"' * 20_000], ids=["one", "many", "escaped"])
def test_what_is_too_long_is_cut_and_says_so(text: str) -> None:
    feishu = _send_to_robot()
    home = feishu.home()
    assert home is not None
    request = next(feishu.send(home, Outgoing(title="t", text=text, lang="zh"), None, "k", NOW))
    assert len(request.body) <= 20_000
    assert "此处截断" in request.body.decode()


def test_nobody_learns_whether_a_padding_was_right() -> None:
    feishu, told = _made(encrypt_key={"env": "FS_KEY"}), set()
    raw = bytearray(base64.b64decode(json.loads(_BODY)["encrypt"]))
    raw[0] ^= 1  # what it decrypts to is no JSON
    for last in range(256):  # one of them is a right padding
        raw[-17] = last
        with pytest.raises(Refused) as refused:
            feishu.receive({}, {}, json.dumps({"encrypt": base64.b64encode(raw).decode()}).encode(), NOW)
        told.add((refused.value.status, refused.value.code))
    assert told == {(401, "signature")}
