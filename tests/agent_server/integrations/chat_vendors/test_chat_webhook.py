"""A chat of anybody's own, by Standard Webhooks."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from whystall.agent_server.integrations.chat_vendors.webhook import Webhook
from whystall.agent_server.integrations.messages import Answered, Incoming, Outgoing, Picture, Place, Refused, SendError
from whystall.agent_server.outbound import standard_webhooks
from whystall.agent_server.outbound.request import Response
from whystall.agent_server.settings.sections.chat import WebhookSettings

NOW = 1_800_000_000.0
SECRET = "s3cret"


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WH", SECRET)


def _made(**more: Any) -> Webhook:
    return Webhook("ops", WebhookSettings.model_validate({"kind": "webhook", "secret": {"env": "WH"}, **more}))


def _body(**more: Any) -> bytes:
    return json.dumps({"conversation": "room", "sender": "alice", "text": "who is on call", **more}).encode()


def _headers(body: bytes, at: float = NOW, secret: str = SECRET, id: str = "msg_1") -> dict[str, str]:
    return standard_webhooks.signature_headers(secret, id, str(int(at)), body)


def test_the_vector_of_the_standard() -> None:
    """That of the reference libraries (standard-webhooks, libraries/*/test)."""
    body = b'{"test": 2432232314}'
    made = standard_webhooks.signature(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", body
    )
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_message_is_read() -> None:
    body = _body(sender_name="Alice", thread="t1", direct=True)
    said = _made().receive(_headers(body), {}, body, NOW)
    assert isinstance(said, Incoming)
    assert (said.event, said.sender, said.sender_name, said.direct) == ("msg_1", "alice", "Alice", True)
    assert said.place == Place(channel="ops", conversation="room", thread="t1")


def test_one_of_several_signatures_is_enough() -> None:
    body = _body()
    headers = _headers(body)
    headers["webhook-signature"] = f"v1,AAAA {headers['webhook-signature']} v1a,xyz"
    assert isinstance(_made().receive(headers, {}, body, NOW), Incoming)


_BODY = _body()


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "signature"),
        (_headers(_BODY, secret="other"), "signature"),
        (_headers(_BODY + b" "), "signature"),
        ({**_headers(_BODY), "webhook-id": "msg_2"}, "signature"),
        ({**_headers(_BODY), "webhook-id": ""}, "signature"),
        (_headers(_BODY, NOW - 301), "too_old"),
        (_headers(_BODY, NOW + 301), "too_old"),
    ],
    ids=range(7),
)
def test_what_is_not_proven_is_refused(headers: dict[str, str], code: str) -> None:
    with pytest.raises(Refused) as refused:
        _made().receive(headers, {}, _BODY, NOW)
    assert refused.value.code == code


def test_a_message_goes_out_signed_with_its_picture() -> None:
    webhook = _made(url="https://chat.example/in", to="room")
    home = webhook.home()
    assert home is not None
    saying = webhook.send(home, Outgoing(title="T", text="x"), Picture(b"png", "x.png", "alt"), "key", NOW)
    request = next(saying)
    headers = {name.lower(): value for name, value in request.headers.items()}
    id, at, given = headers["webhook-id"], headers["webhook-timestamp"], headers["webhook-signature"]
    assert standard_webhooks.matches(given, SECRET, id, at, request.body)
    body = json.loads(request.body)
    assert base64.b64decode(body["picture"]["png"]) == b"png"
    assert (body["conversation"], body["text"]) == ("room", "x")
    assert request.repeatable
    again = next(webhook.send(home, Outgoing(title="T", text="x"), None, "key", NOW + 60))
    assert again.headers["webhook-id"] == request.headers["webhook-id"]
    with pytest.raises(StopIteration):
        saying.send(Response(204, {}, b""))


def test_a_refusal_is_told_and_without_an_address_nothing_is_sent() -> None:
    saying = _made(url="https://chat.example/in").send(
        Place(channel="ops", conversation=""), Outgoing(title="T", text="x"), None, "key", NOW
    )
    next(saying)
    with pytest.raises(SendError, match="http_410: gone for good"):
        saying.send(Response(410, {}, b"gone\nfor good"))
    with pytest.raises(SendError, match="no_way"):
        next(_made().send(Place(channel="ops", conversation=""), Outgoing(title="T", text="x"), None, "key", NOW))
    assert _made().home() is None


def test_who_may_not_talk_is_not_heard() -> None:
    said = _made(senders=["bob"]).receive(_headers(_BODY), {}, _BODY, NOW)
    assert isinstance(said, Answered)
    assert said.why == "unknown_sender"


def test_line_breaks_of_a_message_are_kept_beside_its_text() -> None:
    from whystall.agent_server.integrations.chat_vendors.callback_checks import message_lines, message_text

    written = '看看\n  File "a.py"\x1b[31m\n\n\tx\n'
    assert message_text(written) == '看看 File "a.py"\\x1b[31m x'
    assert message_lines(written) == '看看\n  File "a.py"\\x1b[31m\n\n        x'
    assert message_lines("one line\n") == ""
