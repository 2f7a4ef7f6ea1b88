"""Settings of chats: what can be used, and what is refused with what to write instead."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from whystall.agent_server.integrations.chat_vendors import vendor, vendors
from whystall.agent_server.settings.section import Section
from whystall.agent_server.settings.sections.chat import ChannelSettings


class _File(Section):
    chat: dict[str, ChannelSettings]


def _read(given: dict[str, Any]) -> ChannelSettings:
    return _File.model_validate({"chat": {"ops": given}}).chat["ops"]


SECRET = {"env": "X"}
GOOD: list[dict[str, Any]] = [
    {"kind": "dingtalk", "app_secret": SECRET},
    {"kind": "dingtalk", "webhook": SECRET, "sign": SECRET, "hosts": ["dingtalk.corp.example", "127.0.0.1:8080"]},
    {"kind": "feishu", "encrypt_key": SECRET, "app_id": "cli_1", "app_secret": SECRET, "timezone": "Asia/Shanghai"},
    {"kind": "feishu", "webhook": SECRET, "api": "https://open.larksuite.com/"},
    {"kind": "slack", "signing_secret": SECRET, "bot_token": SECRET, "to": "C1", "lang": "zh", "llm": True},
    {"kind": "wecom", "corp_id": "ww1", "token": SECRET, "encoding_aes_key": SECRET},
    {"kind": "wecom", "corp_id": "ww1", "corp_secret": SECRET, "agent_id": 1000002, "to": "group:c1"},
    {"kind": "wecom", "webhook": SECRET},
    {"kind": "webhook", "secret": SECRET, "url": "http://127.0.0.1:9/x", "senders": ["a"], "may_change": ["*"]},
]
BAD: list[tuple[dict[str, Any], str]] = [
    ({"kind": "irc"}, "dingtalk"),
    ({}, "kind"),
    ({"kind": "dingtalk"}, "app_secret, webhook"),
    ({"kind": "slack"}, "signing_secret, bot_token, webhook"),
    ({"kind": "feishu", "app_id": "cli_1"}, "together"),
    ({"kind": "dingtalk", "app_secret": "plain"}, "file"),
    ({"kind": "dingtalk", "app_secret": SECRET, "hosts": ["https://x/"]}, "lower case"),
    ({"kind": "webhook", "secret": SECRET, "url": "http://chat.example/"}, "https://"),
    ({"kind": "webhook", "secret": SECRET, "url": "https://user:pw@chat.example/"}, "password"),
    ({"kind": "feishu", "webhook": SECRET, "api": "https://x.example/?a=1"}, r"without \?"),
    ({"kind": "wecom"}, "token, corp_secret, webhook"),
    ({"kind": "wecom", "corp_id": "ww1", "token": SECRET}, "token and encoding_aes_key are given together"),
    ({"kind": "wecom", "corp_id": "ww1", "corp_secret": SECRET}, "corp_secret and agent_id are given together"),
    ({"kind": "wecom", "token": SECRET, "encoding_aes_key": SECRET}, "corp_id is given with token"),
    ({"kind": "slack", "bot_token": SECRET, "timezone": "Mars/Phobos"}, "time zone"),
    ({"kind": "slack", "bot_token": SECRET, "chanel": "C1"}, "chanel"),
]


@pytest.mark.parametrize("given", GOOD, ids=range(len(GOOD)))
def test_what_can_be_used(given: dict[str, Any]) -> None:
    settings = _read(given)
    made = vendor("ops", settings)
    assert (made.name, made.kind) == ("ops", given["kind"])


@pytest.mark.parametrize(("given", "says"), BAD, ids=range(len(BAD)))
def test_what_cannot_be_used_says_why(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says) as error:
        _read(given)
    assert "pw@" not in str(error.value)
    assert "plain'" not in str(error.value)


def test_all_chats_by_name() -> None:
    made = vendors({"a": _read(GOOD[0]), "b": _read(GOOD[4])})
    assert {name: one.kind for name, one in made.items()} == {"a": "dingtalk", "b": "slack"}
