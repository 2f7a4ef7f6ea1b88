"""Whatever a vendor answers to a message, it was taken or it was not: nothing else."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pydantic import TypeAdapter

from whystall.agent_server.integrations.chat_vendors import vendor
from whystall.agent_server.integrations.messages import Outgoing, Picture, Place, SendError, SendSteps
from whystall.agent_server.outbound.request import Response
from whystall.agent_server.settings.sections.chat import ChannelSettings

NOW = 1_800_000_000.0
SECRET = {"env": "SECRET"}
CHATS: dict[str, dict[str, Any]] = {
    "session": {"kind": "dingtalk", "app_secret": SECRET},
    "app": {"kind": "feishu", "app_id": "cli", "app_secret": SECRET},
    "robot": {"kind": "feishu", "webhook": SECRET, "sign": SECRET, "to": "C1"},
    "bot": {"kind": "slack", "bot_token": SECRET},
    "incoming": {"kind": "slack", "webhook": SECRET, "to": "C1"},
    "wecom": {"kind": "wecom", "corp_id": "corp", "corp_secret": SECRET, "agent_id": 1},
    "wecom robot": {"kind": "wecom", "webhook": SECRET, "to": "C1"},
    "own": {"kind": "webhook", "secret": SECRET, "url": "https://w.example/in"},
}
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 10**400, 1e308, "", "0", "ok", "\ud800", "x" * 9000, "https://files.slack.com/u"),
    *([], {}, [[]], ["a"], {"code": 0}, {"image_key": []}, {"image_key": "img_1"}),
]
NAMES = ["errcode", "errmsg", "code", "msg", "StatusCode", "data", "ok", "error", "needed", "upload_url", "file_id"]
NAMES += ["tenant_access_token", "expire", "message", "access_token", "expires_in", "invaliduser"]
BODIES = [b"", b"ok", b"invalid_blocks", b"null", b"[]", b"\xff", b"<html>", b"[" * 50_000]


def _answer(chance: random.Random) -> Response:
    status = chance.choice([200, 200, 200, 201, 302, 400, 403, 404, 410])
    if chance.random() < 0.2:
        return Response(status, {}, chance.choice(BODIES))
    said = {name: chance.choice(VALUES) for name in NAMES if chance.random() < 0.5}
    for name, good in (
        ("code", 0),
        ("errcode", 0),
        ("ok", True),
        ("tenant_access_token", "t"),
        ("access_token", "t"),
        ("invaliduser", ""),
    ):
        if chance.random() < 0.6:
            said[name] = good
    return Response(status, {}, json.dumps(said).encode())


def _said(saying: SendSteps, chance: random.Random) -> str:
    try:
        request = next(saying)
        for _ in range(12):
            assert request.url.startswith("https://")
            request = saying.send(_answer(chance))
    except StopIteration:
        return "taken"
    except SendError as unsaid:
        return "waits" if unsaid.again else "refused"
    raise AssertionError("no end")


@pytest.mark.parametrize("name", CHATS)
def test_any_answer_is_yes_or_no(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "https://hooks.slack.com/services/s3cret")
    settings: ChannelSettings = TypeAdapter(ChannelSettings).validate_python(CHATS[name])
    hook = "https://oapi.dingtalk.com/robot/sendBySession?session=1" if name == "session" else ""
    to = Place(channel=name, conversation="C1", thread="om_1", hook=hook, hook_until=NOW + 3600)
    chance = random.Random(11)
    became = {
        _said(vendor(name, settings).send(to, Outgoing(title="T", text="x"), picture, "k", NOW), chance)
        for picture in (None, Picture(b"png", "x.png", "alt", "https://w.example/x.png"))
        for _ in range(300)
    }
    assert {"taken", "refused"} <= became
