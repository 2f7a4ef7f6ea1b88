"""DingTalk: what is believed, what is refused, and what is sent."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from whystall.agent_server.integrations.chat_vendors.dingtalk import DingTalk, sign
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
from whystall.agent_server.outbound.request import Request, Response
from whystall.agent_server.settings.sections.chat import DingTalkSettings
from whystall.tools.contract.errors import ToolError

NOW = 1_800_000_000.0
SECRET = "app-secret"
HOOK = "https://oapi.dingtalk.com/robot/sendBySession?session=s3cret"


@pytest.fixture
def dingtalk(monkeypatch: pytest.MonkeyPatch) -> DingTalk:
    monkeypatch.setenv("DT_APP", SECRET)
    monkeypatch.setenv("DT_URL", "https://oapi.dingtalk.com/robot/send?access_token=t0ken")
    monkeypatch.setenv("DT_SIGN", "SECtest")
    return _made()


def _made(**more: Any) -> DingTalk:
    given = {"app_secret": {"env": "DT_APP"}, "webhook": {"env": "DT_URL"}, "sign": {"env": "DT_SIGN"}} | more
    return DingTalk("ops", DingTalkSettings.model_validate({"kind": "dingtalk", **given}))


def _headers(at: float = NOW, secret: str = SECRET) -> dict[str, str]:
    timestamp = str(int(at * 1000))
    return {"timestamp": timestamp, "sign": sign(secret, timestamp)}


def _callback(**more: Any) -> bytes:
    said = {
        "conversationId": "cidAbc==",
        "conversationType": "2",
        "msgId": "msg1",
        "senderId": "$:LWCP_v1:$x",
        "senderStaffId": "user123",
        "senderNick": "杨",
        "chatbotUserId": "$:LWCP_v1:$bot",
        "isInAtList": True,
        "sessionWebhook": HOOK,
        "sessionWebhookExpiredTime": int((NOW + 5400) * 1000),
        "msgtype": "text",
        "text": {"content": "  为什么训练卡顿\n"},
    }
    return json.dumps({**said, **more}).encode()


def test_the_signature_is_that_of_the_documents() -> None:
    assert quote(sign("SECtest", "1700000000000"), safe="") == "aZLLrriXgn05YbwaGR7knYsLeJADjr9NwLaNNKpxh4g%3D"


def test_a_callback_is_read(dingtalk: DingTalk) -> None:
    said = dingtalk.receive(_headers(), {}, _callback(), NOW)
    assert isinstance(said, Incoming)
    assert (said.event, said.sender, said.sender_name, said.text) == ("msg1", "user123", "杨", "为什么训练卡顿")
    assert said.place == Place(channel="ops", conversation="cidAbc==", hook=HOOK, hook_until=NOW + 5400)
    assert not said.direct
    assert said.proof


@pytest.mark.parametrize("skew", [-3599.0, 0.0, 3599.0])
def test_clocks_may_differ_by_an_hour(dingtalk: DingTalk, skew: float) -> None:
    assert isinstance(dingtalk.receive(_headers(NOW + skew), {}, _callback(), NOW), Incoming)


@pytest.mark.parametrize("skew", [-3601.0, 3601.0, -86_400.0, 3e9])
def test_older_or_further_ahead_is_refused(dingtalk: DingTalk, skew: float) -> None:
    with pytest.raises(Refused) as refused:
        dingtalk.receive(_headers(NOW + skew), {}, _callback(), NOW)
    assert (refused.value.status, refused.value.code) == (401, "too_old")


_GOOD = _headers()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"timestamp": _GOOD["timestamp"]},
        {"sign": _GOOD["sign"]},
        {**_GOOD, "sign": ""},
        {**_GOOD, "sign": _GOOD["sign"][:-2]},
        {**_GOOD, "sign": f"{_GOOD['sign']}, {_GOOD['sign']}"},
        {**_GOOD, "sign": "签名"},
        {**_GOOD, "timestamp": "now"},
        {**_GOOD, "timestamp": "١٨٠٠٠٠٠٠٠٠٠٠٠"},
        {**_GOOD, "timestamp": f"{_GOOD['timestamp']}, {_GOOD['timestamp']}"},
        {**_GOOD, "timestamp": "-" + _GOOD["timestamp"]},
        {**_GOOD, "timestamp": "9" * 5000},
        _headers(secret="another"),
    ],
    ids=range(13),
)
def test_what_is_not_signed_is_refused(dingtalk: DingTalk, headers: dict[str, str]) -> None:
    with pytest.raises(Refused) as refused:
        dingtalk.receive(headers, {}, _callback(), NOW)
    assert (refused.value.status, refused.value.code) == (401, "signature")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "malformed"),
        (b"[]", "malformed"),
        (b"\xff\xfe{}", "malformed"),
        (b"[" * 100_000, "malformed"),
        (_callback(msgId=7), "malformed"),
        (_callback(msgId="x" * 600), "malformed"),
        (_callback(conversationId=None), "malformed"),
        (b" " * (BODY_LIMIT + 1), "too_large"),
    ],
    ids=range(8),
)
def test_a_body_that_is_none_is_refused(dingtalk: DingTalk, body: bytes, code: str) -> None:
    with pytest.raises(Refused) as refused:
        dingtalk.receive(_headers(), {}, body, NOW)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"senderId": "$:LWCP_v1:$bot"}, "own_message"),
        ({"isInAtList": False}, "not_for_us"),
        ({"msgtype": "picture"}, "no_text"),
        ({"text": {"content": " \n "}}, "no_text"),
        ({"text": "x"}, "no_text"),
    ],
)
def test_what_concerns_nobody_is_answered_and_no_more(dingtalk: DingTalk, more: dict[str, Any], why: str) -> None:
    said = dingtalk.receive(_headers(), {}, _callback(**more), NOW)
    assert isinstance(said, Answered)
    assert said.why == why


def test_only_those_who_may_talk_are_heard(dingtalk: DingTalk) -> None:
    said = _made(senders=["boss"]).receive(_headers(), {}, _callback(), NOW)
    assert isinstance(said, Answered)
    assert said.why == "unknown_sender"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"msgtype": "audio", "content": {"recognition": "谁在值班"}}, "谁在值班"),
        (
            {
                "msgtype": "richText",
                "content": {"richText": [{"text": "a"}, {"pictureDownloadCode": 1}, {"text": "b"}]},
            },
            "a b",
        ),
        ({"text": {"content": "a\x00b \u202ec"}}, "a\\x00b \\u202ec"),
        ({"text": {"content": "x" * 9000}}, "x" * 3999 + "…"),
    ],
    ids=["voice", "rich", "hostile", "long"],
)
def test_text_is_found_made_inert_and_cut(dingtalk: DingTalk, more: dict[str, Any], text: str) -> None:
    said = dingtalk.receive(_headers(), {}, _callback(**more), NOW)
    assert isinstance(said, Incoming)
    assert said.text == text


@pytest.mark.parametrize(
    "hook",
    [
        "https://evil.example/robot?session=x",
        "http://oapi.dingtalk.com/robot?session=x",
        "https://oapi.dingtalk.com@evil.example/",
        "https://oapi.dingtalk.com.evil.example/",
        "https://evil.example/?x=oapi.dingtalk.com",
        "https://oapi.dingtalk.com:8443/robot",
        "https://oapi.dingtalk.com\\@evil.example/",
        "https://[::1/",
        "http://127.0.0.1:8000/x",
        "file:///etc/passwd",
        17,
        None,
    ],
    ids=range(12),
)
def test_a_session_address_elsewhere_is_not_used(dingtalk: DingTalk, hook: object) -> None:
    said = dingtalk.receive(_headers(), {}, _callback(sessionWebhook=hook), NOW)
    assert isinstance(said, Incoming)
    assert (said.place.hook, said.place.hook_until) == ("", 0.0)
    with pytest.raises(SendError, match="no_way"):
        next(dingtalk.send(said.place, Outgoing(title="t", text="x"), None, "k", NOW))


def test_hosts_of_a_private_cloud_are_believed_where_they_are_set_up(dingtalk: DingTalk) -> None:
    hook = "http://127.0.0.1:8000/robot/sendBySession?session=x"
    said = _made(hosts=["127.0.0.1:8000"]).receive(_headers(), {}, _callback(sessionWebhook=hook), NOW)
    assert isinstance(said, Incoming)
    assert said.place.hook == hook


def _first(dingtalk: DingTalk, to: Place, message: Outgoing, picture: Picture | None = None) -> Request:
    return next(dingtalk.send(to, message, picture, "k", NOW))


SESSION = Place(channel="ops", conversation="cidAbc==", hook=HOOK, hook_until=NOW + 5400)


def test_an_answer_goes_to_the_session(dingtalk: DingTalk) -> None:
    request = _first(dingtalk, SESSION, Outgoing(title="结论", text="**已确认**"))
    assert request.url == HOOK
    assert request.secrets == ("s3cret",)
    body = json.loads(request.body)
    assert body["msgtype"] == "markdown"
    assert body["markdown"] == {"title": "结论", "text": "#### 结论\n\n**已确认**"}
    assert body["at"] == {"isAtAll": False}


def test_what_nobody_asked_for_goes_to_the_group_of_the_robot_signed(dingtalk: DingTalk) -> None:
    home = dingtalk.home()
    assert home is not None
    request = _first(dingtalk, home, Outgoing(title="t", text="x"))
    query = {name: values[0] for name, values in parse_qs(urlsplit(request.url).query).items()}
    assert query == {
        "access_token": "t0ken",
        "timestamp": str(int(NOW * 1000)),
        "sign": sign("SECtest", str(int(NOW * 1000))),
    }
    assert set(request.secrets) >= {"t0ken", query["sign"]}


@pytest.mark.parametrize("left", [29.0, 0.0, -1.0])
def test_a_session_that_has_ended_is_not_answered_in_another_group(dingtalk: DingTalk, left: float) -> None:
    to = SESSION.model_copy(update={"hook_until": NOW + left})
    with pytest.raises(SendError, match="no_way"):
        _first(dingtalk, to, Outgoing(title="t", text="x"))


def test_but_in_its_own_group_it_is(dingtalk: DingTalk) -> None:
    to = SESSION.model_copy(update={"hook_until": 0.0})
    request = _first(_made(to="cidAbc=="), to, Outgoing(title="t", text="x"))
    assert request.url.startswith("https://oapi.dingtalk.com/robot/send?")


def test_a_webhook_that_is_no_address_is_not_called(dingtalk: DingTalk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DT_URL", "http://elsewhere.example/robot")
    home = dingtalk.home()
    assert home is not None
    with pytest.raises(ToolError, match=r"chat\.ops\.webhook"):
        _first(dingtalk, home, Outgoing(title="t", text="x"))


@pytest.mark.parametrize(
    ("status", "body", "code", "again"),
    [
        (200, b'{"errcode":310000,"errmsg":"sign not match"}', "310000", False),
        (200, b'{"errcode":130101,"errmsg":"send too fast"}', "130101", True),
        (200, b'{"errcode":-1,"errmsg":"busy"}', "-1", True),
        (200, b"<html>", "bad_answer", False),
        (200, b"{}", "None", False),
        (403, b"forbidden", "http_403", False),
    ],
)
def test_only_errcode_0_says_that_it_was_taken(
    dingtalk: DingTalk, status: int, body: bytes, code: str, again: bool
) -> None:
    saying = dingtalk.send(SESSION, Outgoing(title="t", text="x"), None, "k", NOW)
    next(saying)
    with pytest.raises(SendError) as unsaid:
        saying.send(Response(status, {}, body))
    assert (unsaid.value.code, unsaid.value.again) == (code, again)


def test_taken_is_the_end(dingtalk: DingTalk) -> None:
    saying = dingtalk.send(SESSION, Outgoing(title="t", text="x"), None, "k", NOW)
    next(saying)
    with pytest.raises(StopIteration):
        saying.send(Response(200, {}, b'{"errcode":0,"errmsg":"ok"}'))


def _text(dingtalk: DingTalk, text: str, picture: Picture | None = None) -> str:
    request = _first(dingtalk, SESSION, Outgoing(title="T", text=text), picture)
    shown: str = json.loads(request.body)["markdown"]["text"]
    return shown.removeprefix("#### T\n\n")


def test_markdown_becomes_the_subset_that_is_shown(dingtalk: DingTalk) -> None:
    text = "# Verdict\n- **sure**: `a_b.bin`\n  - deeper\n- [page](https://w.example/x)\n\n1. one\n2. two\n> said\nend"
    assert _text(dingtalk, text) == (
        "#### Verdict\n\n- **sure**: `a_b.bin`\n  - deeper\n- [page](https://w.example/x)\n\n"
        "1. one\n2. two\n\n> said  \n\nend"
    )


def test_a_first_line_that_repeats_the_title_is_not_said_twice(dingtalk: DingTalk) -> None:
    assert _text(dingtalk, "**T**\nmore") == "more"


def test_text_of_strangers_is_inert(dingtalk: DingTalk) -> None:
    shown = _text(dingtalk, "`[pay](http://evil) <font color=red> @all ![x](http://y)` and @all <b>")
    for live in ("](http", "://evil", "<font", "@all", "![x", "<b>"):
        assert live not in shown
    assert shown.replace("\u2060", "").startswith("`[pay](http://evil) <font color=red> @all")


def test_a_picture_is_shown_where_it_can_be_fetched(dingtalk: DingTalk) -> None:
    picture = Picture(b"png", "x.png", "why [it] stalls", "https://w.example/pictures/x.png?sign=1")
    assert _text(dingtalk, "x", picture) == "x\n\n![why [it] stalls](https://w.example/pictures/x.png?sign=1)"
    assert _text(dingtalk, "x", Picture(b"png", "x.png", "a")) == "x"


@pytest.mark.parametrize("text", ["字" * 30_000, "line\n" * 3000, "`" + "n" * 9000 + "`"], ids=["one", "many", "name"])
def test_what_is_too_long_is_cut_and_says_so(dingtalk: DingTalk, text: str) -> None:
    shown = _text(dingtalk, text)
    assert len(shown) <= 5000
    assert "cut here" in shown


# --- the app by itself ------------------------------------------------------------------------------------------------

_TOKEN = b'{"accessToken":"t-123456789","expireIn":7200}'


def _by_itself(to: str, **more: Any) -> tuple[DingTalk, Any]:
    dingtalk = _made(app_key="dingkey", **more)
    saying = dingtalk.send(Place(channel="ops", conversation=to), Outgoing(title="T", text="x"), None, "k", NOW)
    asked = next(saying)
    assert asked.url == "https://api.dingtalk.com/v1.0/oauth2/accessToken"
    assert json.loads(asked.body) == {"appKey": "dingkey", "appSecret": SECRET}
    assert asked.secrets == (SECRET,)
    return dingtalk, saying


@pytest.mark.parametrize(
    ("to", "method", "named"),
    [
        ("cidOther==", "groupMessages/send", {"openConversationId": "cidOther=="}),
        ("manager4220", "oToMessages/batchSend", {"userIds": ["manager4220"]}),
    ],
)
def test_an_app_speaks_to_groups_and_people(dingtalk: DingTalk, to: str, method: str, named: dict[str, object]) -> None:
    _, saying = _by_itself(to)
    request = saying.send(Response(200, {}, _TOKEN))
    assert request.url == f"https://api.dingtalk.com/v1.0/robot/{method}"
    assert request.headers["x-acs-dingtalk-access-token"] == "t-123456789"
    body = json.loads(request.body)
    assert json.loads(body.pop("msgParam")) == {"title": "T", "text": "#### T\n\nx"}
    assert body == {"robotCode": "dingkey", "msgKey": "sampleMarkdown", **named}
    with pytest.raises(StopIteration):
        saying.send(Response(200, {}, b'{"processQueryKey":"q","invalidStaffIdList":[]}'))


@pytest.mark.parametrize(
    ("status", "body", "code", "again"),
    [
        (200, b'{"processQueryKey":"q","flowControlledStaffIdList":["a"]}', "flow_controlled", True),
        (200, b'{"processQueryKey":"q","invalidStaffIdList":["a"]}', "invalid_staff", False),
        (400, b'{"code":"invalidParameter.robotCode.empty","message":"m"}', "invalidParameter.robotCode.empty", False),
        (403, b'{"code":"Forbidden.AccessDenied.QpsLimitForApi"}', "Forbidden.AccessDenied.QpsLimitForApi", True),
        (401, b'{"code":"InvalidAuthentication"}', "InvalidAuthentication", True),
        (200, b"{}", "no processQueryKey", False),
    ],
    ids=range(6),
)
def test_what_an_app_is_answered(dingtalk: DingTalk, status: int, body: bytes, code: str, again: bool) -> None:
    chat, saying = _by_itself("manager4220")
    saying.send(Response(200, {}, _TOKEN))
    with pytest.raises(SendError) as unsaid:
        saying.send(Response(status, {}, body))
    assert (unsaid.value.code, unsaid.value.again) == (code, again)
    to = Place(channel="ops", conversation="manager4220")
    following = next(chat.send(to, Outgoing(title="T", text="x"), None, "k", NOW))
    assert ("oauth2" in following.url) == (code == "InvalidAuthentication")  # else the token is kept


def test_an_app_whose_secret_is_wrong_is_told_so(dingtalk: DingTalk) -> None:
    _, saying = _by_itself("manager4220")
    with pytest.raises(SendError, match="invalidClientIdOrSecret"):
        saying.send(Response(400, {}, b'{"code":"invalidClientIdOrSecret","message":"m"}'))


def test_a_session_goes_before_the_app_and_home_is_a_person_where_one_is_set_up(dingtalk: DingTalk) -> None:
    chat = _made(app_key="dingkey", to="manager4220", webhook=None, sign=None)
    assert _first(chat, SESSION, Outgoing(title="T", text="x")).url == HOOK
    home = chat.home()
    assert home is not None
    assert home.conversation == "manager4220"
    assert "oauth2" in _first(chat, home, Outgoing(title="T", text="x")).url
