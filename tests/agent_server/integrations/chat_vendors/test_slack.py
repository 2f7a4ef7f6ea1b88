"""Slack: events, slash commands, and what is said in which form."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest

from whystall.agent_server.integrations.chat_vendors.slack import Slack, signature
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
from whystall.agent_server.settings.sections.chat import SlackSettings

NOW = 1_800_000_000.0
SECRET = "signing-secret"
CHANNEL = Place(channel="ops", conversation="C1", thread="1.2")
MESSAGE = Outgoing(title="Verdict", text="**CONFIRMED**: `a & b.bin`")
PICTURE = Picture(b"png!", "x.png", "alt", "https://w.example/x.png")


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("SL_SIGN", SECRET),
        ("SL_BOT", "xoxb-t0ken"),
        ("SL_URL", "https://hooks.slack.com/services/T/B/s3cret"),
    ):
        monkeypatch.setenv(name, value)


def _made(**more: Any) -> Slack:
    given = more or {"signing_secret": {"env": "SL_SIGN"}, "bot_token": {"env": "SL_BOT"}}
    return Slack("ops", SlackSettings.model_validate({"kind": "slack", **given}))


def _headers(body: bytes, at: float = NOW, secret: str = SECRET) -> dict[str, str]:
    timestamp = str(int(at))
    return {"x-slack-request-timestamp": timestamp, "x-slack-signature": signature(secret, timestamp, body)}


def _event(**more: Any) -> bytes:
    event = {"type": "app_mention", "user": "U1", "text": "<@UBOT> why is <@U2|li> slow", "channel": "C1", "ts": "1.5"}
    said = {
        "type": "event_callback",
        "event_id": "Ev1",
        "authorizations": [{"user_id": "UBOT", "is_bot": True}],
        "event": {**event, **more},
    }
    return json.dumps(said).encode()


def _take(body: bytes, slack: Slack | None = None) -> Incoming | Answered:
    return (slack or _made()).receive(_headers(body), {}, body, NOW)


def test_the_signature_is_that_of_the_documents() -> None:
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    made = signature("8f742231b10e8888abcd99yyyzzz85a5", "1531420618", body)
    assert made == "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"


def test_a_mention_is_read_and_answered_in_its_thread() -> None:
    said = _take(_event())
    assert isinstance(said, Incoming)
    assert (said.event, said.sender, said.text) == ("Ev1", "U1", "why is @li slow")
    assert said.place == Place(channel="ops", conversation="C1", thread="1.5")
    assert not said.direct


def test_one_to_one_needs_no_mention() -> None:
    said = _take(_event(type="message", channel_type="im", channel="D1", text="a &lt;b&gt; <https://x.example|page>"))
    assert isinstance(said, Incoming)
    assert (said.text, said.direct, said.place.thread) == ("a <b> page", True, "")


@pytest.mark.parametrize("skew", [-301.0, 301.0])
def test_older_than_five_minutes_is_refused_on_both_sides(skew: float) -> None:
    body = _event()
    with pytest.raises(Refused) as refused:
        _made().receive(_headers(body, NOW + skew), {}, body, NOW)
    assert refused.value.code == "too_old"


_BODY = _event()


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, _BODY),
        (_headers(_BODY, secret="another"), _BODY),
        (_headers(_BODY), _BODY + b" "),
        (_headers(_BODY), json.dumps(json.loads(_BODY), indent=1).encode()),
        ({**_headers(_BODY), "x-slack-signature": _headers(_BODY)["x-slack-signature"].removeprefix("v0=")}, _BODY),
        ({**_headers(_BODY), "x-slack-request-timestamp": ""}, _BODY),
    ],
    ids=range(6),
)
def test_what_is_not_signed_is_refused(headers: dict[str, str], body: bytes) -> None:
    with pytest.raises(Refused) as refused:
        _made().receive(headers, {}, body, NOW)
    assert refused.value.code == "signature"


def test_the_challenge_is_answered_only_when_it_is_signed() -> None:
    body = b'{"type":"url_verification","challenge":"c1","token":"x"}'
    said = _take(body)
    assert isinstance(said, Answered)
    assert json.loads(said.body) == {"challenge": "c1"}
    with pytest.raises(Refused):
        _made().receive({}, {}, body, NOW)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (_event(bot_id="B1"), "own_message"),
        (_event(type="message", channel_type="im", user="UBOT"), "own_message"),
        (_event(type="message", channel_type="im", subtype="message_changed"), "own_message"),
        (_event(type="message", channel_type="channel"), "other_event"),
        (_event(type="reaction_added"), "other_event"),
        (_event(text="<@UBOT> "), "no_text"),
        (b'{"type":"app_rate_limited"}', "other_event"),
    ],
    ids=range(7),
)
def test_what_concerns_nobody_is_answered_and_no_more(body: bytes, why: str) -> None:
    said = _take(body)
    assert isinstance(said, Answered)
    assert said.why == why


def _command(**more: str) -> Incoming | Answered:
    form = {
        "command": "/whystall",
        "text": "why is job 7 slow",
        "user_id": "U1",
        "user_name": "li",
        "channel_id": "C9",
        "trigger_id": "tr.1",
        "response_url": "https://hooks.slack.com/commands/T/1/s3cret",
    }
    body = urlencode({**form, **more}).encode()
    headers = {**_headers(body), "content-type": "application/x-www-form-urlencoded"}
    return _made().receive(headers, {}, body, NOW)


def test_a_slash_command_is_read() -> None:
    said = _command()
    assert isinstance(said, Incoming)
    assert (said.event, said.sender, said.sender_name, said.text) == ("tr.1", "U1", "li", "why is job 7 slow")
    assert said.place.hook == "https://hooks.slack.com/commands/T/1/s3cret"
    assert said.place.hook_until == NOW + 1800
    assert _made().accepted.body == b""
    nothing = _command(text=" ")
    assert isinstance(nothing, Incoming)
    assert nothing.text == "help"


def test_its_address_is_believed_only_at_slack() -> None:
    said = _command(response_url="https://evil.example/commands/x")
    assert isinstance(said, Incoming)
    assert said.place.hook == ""


def _send(saying: SendSteps, value: object = None, status: int = 200, raw: bytes = b"") -> Request:
    return saying.send(Response(status, {}, raw or json.dumps(value).encode()))


def test_a_bot_posts_blocks_of_typed_elements() -> None:
    saying = _made().send(CHANNEL, MESSAGE, None, "k", NOW)
    request = next(saying)
    assert request.url == "https://slack.com/api/chat.postMessage"
    assert request.headers["Authorization"] == "Bearer xoxb-t0ken"
    body = json.loads(request.body)
    assert (body["channel"], body["thread_ts"], body["unfurl_links"]) == ("C1", "1.2", False)
    assert body["text"] == "Verdict: CONFIRMED: a &amp; b.bin"
    assert body["blocks"] == [
        {
            "type": "rich_text",
            "elements": [
                {
                    "type": "rich_text_section",
                    "elements": [
                        {"type": "text", "text": "Verdict", "style": {"bold": True}},
                        {"type": "text", "text": "\n"},
                        {"type": "text", "text": "CONFIRMED", "style": {"bold": True}},
                        {"type": "text", "text": ": "},
                        {"type": "text", "text": "a & b.bin", "style": {"code": True}},
                    ],
                }
            ],
        }
    ]
    with pytest.raises(StopIteration):
        _send(saying, {"ok": True, "ts": "1.9"})


def test_a_picture_is_uploaded_and_shared_with_the_words() -> None:
    saying = _made().send(CHANNEL, MESSAGE, PICTURE, "k", NOW)
    asked = next(saying)
    assert asked.url.endswith("/files.getUploadURLExternal")
    assert parse_qs(asked.body.decode()) == {"filename": ["x.png"], "length": ["4"], "alt_txt": ["alt"]}
    upload = _send(saying, {"ok": True, "upload_url": "https://files.slack.com/upload/v1/abc", "file_id": "F1"})
    assert (upload.url, upload.body) == ("https://files.slack.com/upload/v1/abc", b"png!")
    done = _send(saying, raw=b"OK - 4")
    assert done.url.endswith("/files.completeUploadExternal")
    form = {name: values[0] for name, values in parse_qs(done.body.decode()).items()}
    assert (form["channel_id"], form["thread_ts"]) == ("C1", "1.2")
    assert json.loads(form["files"]) == [{"id": "F1", "title": "Verdict"}]
    assert json.loads(form["blocks"])[0]["type"] == "rich_text"
    with pytest.raises(StopIteration):
        _send(saying, {"ok": True})


@pytest.mark.parametrize(
    "answers",
    [
        [{"ok": False, "error": "missing_scope", "needed": "files:write"}],
        [{"ok": True, "upload_url": "https://evil.example/upload", "file_id": "F1"}],
        [{"ok": True, "upload_url": "https://files.slack.com/u", "file_id": "F1"}, {}, {"ok": False, "error": "x"}],
    ],
    ids=["right", "elsewhere", "late"],
)
def test_a_picture_that_is_not_taken_does_not_keep_the_words(answers: list[object]) -> None:
    saying = _made().send(CHANNEL, MESSAGE, PICTURE, "k", NOW)
    request = next(saying)
    for answer in answers:
        request = _send(saying, answer)
    assert request.url.endswith("/chat.postMessage")


@pytest.mark.parametrize(
    ("answer", "code", "again"),
    [
        ({"ok": False, "error": "not_in_channel"}, "not_in_channel", False),
        ({"ok": False, "error": "ratelimited"}, "ratelimited", True),
        ({"ok": False, "error": "missing_scope", "needed": "chat:write"}, "missing_scope", False),
        ([], "bad_answer", False),
    ],
    ids=range(4),
)
def test_only_ok_says_that_it_was_taken(answer: object, code: str, again: bool) -> None:
    saying = _made().send(CHANNEL, MESSAGE, None, "k", NOW)
    next(saying)
    with pytest.raises(SendError) as unsaid:
        _send(saying, answer)
    assert (unsaid.value.code, unsaid.value.again) == (code, again)


def test_a_command_given_where_the_bot_is_not_is_answered_at_its_address() -> None:
    said = _command()
    assert isinstance(said, Incoming)
    saying = _made().send(said.place, MESSAGE, None, "k", NOW)
    next(saying)
    request = _send(saying, {"ok": False, "error": "not_in_channel"})
    assert request.url == said.place.hook
    assert json.loads(request.body)["response_type"] == "in_channel"
    with pytest.raises(StopIteration):
        _send(saying, raw=b"ok")


def test_an_incoming_webhook_posts_to_its_channel_and_shows_what_can_be_fetched() -> None:
    slack = _made(webhook={"env": "SL_URL"})
    home = slack.home()
    assert home is not None
    saying = slack.send(home, MESSAGE, PICTURE, "k", NOW)
    request = next(saying)
    assert json.loads(request.body)["blocks"][-1]["image_url"] == PICTURE.url
    assert any("s3cret" in secret for secret in request.secrets)
    without = _send(saying, raw=b"invalid_blocks", status=400)
    assert len(json.loads(without.body)["blocks"]) == 1
    with pytest.raises(StopIteration):
        _send(saying, raw=b"ok")
    with pytest.raises(SendError, match="no_way"):
        next(slack.send(CHANNEL, MESSAGE, None, "k", NOW))


def test_a_webhook_that_is_gone_is_told() -> None:
    slack = _made(webhook={"env": "SL_URL"})
    home = slack.home()
    assert home is not None
    saying = slack.send(home, MESSAGE, None, "k", NOW)
    next(saying)
    with pytest.raises(SendError, match="http_404: no_service"):
        _send(saying, raw=b"no_service", status=404)


def _elements(text: str) -> list[dict[str, Any]]:
    body = json.loads(next(_made().send(CHANNEL, Outgoing(title="T", text=text), None, "k", NOW)).body)
    made: list[dict[str, Any]] = body["blocks"][0]["elements"]
    return made


def test_lists_quotes_and_code_have_elements_of_their_own() -> None:
    made = _elements("- a\n- b\n  - c\n1. one\n2. two\n> said\n> more\n```\nx = 1\ny\n```\nend")
    assert [(part["type"], part.get("style"), part.get("indent"), len(part["elements"])) for part in made] == [
        ("rich_text_section", None, None, 1),
        ("rich_text_list", "bullet", 0, 2),
        ("rich_text_list", "bullet", 1, 1),
        ("rich_text_list", "ordered", 0, 2),
        ("rich_text_quote", None, None, 3),
        ("rich_text_preformatted", None, None, 3),
        ("rich_text_section", None, None, 1),
    ]


def test_text_of_strangers_is_text() -> None:
    text = "`<!channel> <@U1> <https://evil|x> *b* :tada:`"
    body = json.loads(next(_made().send(CHANNEL, Outgoing(title="<!here>", text=text), None, "k", NOW)).body)
    assert "<" not in body["text"]
    kinds = {element["type"] for part in body["blocks"][0]["elements"] for element in part["elements"]}
    assert kinds == {"text"}


def test_what_is_too_long_is_cut_and_says_so() -> None:
    for text in ("x" * 30_000, "- line\n" * 4000):
        request = next(_made().send(CHANNEL, Outgoing(title="T", text=text), None, "k", NOW))
        shown = json.dumps(json.loads(request.body)["blocks"])
        assert "cut here" in shown
        assert len(shown) < 80_000
