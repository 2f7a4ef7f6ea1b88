"""Whatever a signed callback holds, it is read, ignored or refused: nothing else, and nothing slow."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import chat_callbacks
import pytest

from whystall.agent_server.integrations.chat_vendors import vendor
from whystall.agent_server.integrations.messages import TEXT_LIMIT, Answered, Incoming, Refused, Vendor
from whystall.agent_server.settings.sections.chat import DingTalkSettings, FeishuSettings, SlackSettings, WeComSettings

NOW = 1_800_000_000.0
KEY = "k"
ODD: list[Any] = [
    *(None, True, 0, -1, 1e308, 10**400, "", " ", "x" * 5000, "\ud800", "\u202e\x00\x1b[31m", "签名" * 200),
    *([], {}, [[]], [None], {"": None}, {"text": {"text": []}}, ["a", 1, {}], "{}", '{"text": 1}', "[", "{{7*7}}"),
    *("'; DROP TABLE tasks;--", "<!channel>", '<at user_id="all">', "@_all @_user_1", "<@U1|<@U2>>", "&lt;&amp;lt;"),
]
Signed = Callable[[Any], chat_callbacks.Post]


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something can be put instead."""
    if path:
        yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _leaves(inner, (*path, key))


def _mutated(said: Any, chance: random.Random) -> Any:
    made = copy.deepcopy(said)
    for _ in range(chance.randint(1, 3)):
        *above, last = chance.choice(list(_leaves(made)))
        place = made
        for step in above:
            place = place[step]
        if chance.random() < 0.2 and isinstance(place, dict):
            del place[last]
        else:
            place[last] = copy.deepcopy(chance.choice(ODD))
        if not list(_leaves(made)):
            break
    return made


def _dingtalk() -> tuple[Vendor, Any, Signed]:
    post = chat_callbacks.dingtalk(KEY, "x", hook="https://oapi.dingtalk.com/a", hook_ends=1, now=NOW)
    settings = DingTalkSettings.model_validate({"kind": "dingtalk", "app_secret": {"env": "SECRET"}})
    return vendor("ops", settings), json.loads(post.body), lambda said: post._replace(body=json.dumps(said).encode())


def _feishu() -> tuple[Vendor, Any, Signed]:
    message = {
        "message_id": "om_1",
        "chat_id": "oc_1",
        "chat_type": "group",
        "message_type": "text",
        "content": '{"text": "@_user_1 x"}',
        "mentions": [{"key": "@_user_1", "id": {"open_id": "ou_1"}, "name": "w"}],
    }
    event = {"sender": {"sender_id": {"open_id": "ou_x"}, "sender_type": "user"}, "message": message}
    said = {"schema": "2.0", "header": {"event_id": "e", "event_type": "im.message.receive_v1"}, "event": event}
    settings = FeishuSettings.model_validate({"kind": "feishu", "encrypt_key": {"env": "SECRET"}})
    return vendor("ops", settings), said, lambda made: chat_callbacks.feishu_signed(KEY, made, NOW)


def _slack() -> tuple[Vendor, Any, Signed]:
    post = chat_callbacks.slack(KEY, "x", now=NOW)
    settings = SlackSettings.model_validate({"kind": "slack", "signing_secret": {"env": "SECRET"}})
    kind = {"content-type": "application/json"}

    def signed(said: Any) -> chat_callbacks.Post:
        return chat_callbacks.slack_signed(KEY, json.dumps(said).encode(), kind, NOW)

    return vendor("ops", settings), json.loads(post.body), signed


def _wecom() -> tuple[Vendor, Any, Signed]:
    keys = chat_callbacks.WeComKeys(KEY, "6qkdMrq68nTKduznJYO1A37W2oEgpkMUvkttRToqhUt", "corp")
    said = {"FromUserName": "u1", "MsgType": "text", "Content": "x", "MsgId": 1456453720, "AgentID": 1000002}
    settings = WeComSettings.model_validate(
        {"kind": "wecom", "corp_id": "corp", "token": {"env": "SECRET"}, "encoding_aes_key": {"env": "AES_KEY"}}
    )

    def signed(made: Any) -> chat_callbacks.Post:
        encrypted, query = chat_callbacks.wecom_signed(keys, json.dumps(made).encode(), NOW)
        return chat_callbacks.Post({}, json.dumps({"encrypt": encrypted}).encode(), query)

    return vendor("ops", settings), said, signed


@pytest.mark.parametrize("make", [_dingtalk, _feishu, _slack, _wecom], ids=["dingtalk", "feishu", "slack", "wecom"])
def test_any_content_is_read_ignored_or_refused(
    make: Callable[[], tuple[Vendor, Any, Signed]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", KEY)
    monkeypatch.setenv("AES_KEY", "6qkdMrq68nTKduznJYO1A37W2oEgpkMUvkttRToqhUt")
    chat, said, signed = make()
    chance = random.Random(7)
    became: set[str] = set()
    for _ in range(600):
        found = _received(chat, signed(_mutated(said, chance)))
        became.add(type(found).__name__)
        if isinstance(found, Refused):
            assert found.status in (400, 401)
        elif isinstance(found, Incoming):
            assert 0 < len(found.text) <= TEXT_LIMIT
            assert found.text.isprintable()
            assert found.sender.isprintable()
            assert found.event
            found.model_dump_json()  # it can be stored
    assert became == {"Refused", "Answered", "Incoming"}


def _received(chat: Vendor, post: chat_callbacks.Post) -> Incoming | Answered | Refused:
    try:
        headers = {name.lower(): value for name, value in post.headers.items()}
        return chat.receive(headers, post.query, post.body, NOW)
    except Refused as refused:
        return refused


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 60_000, "9" * 100_000], ids=["list", "object", "number"])
def test_a_body_that_is_deep_is_refused(deep: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", KEY)
    chat, _, _ = _slack()
    post = chat_callbacks.slack_signed(KEY, deep.encode(), {"content-type": "application/json"}, NOW)
    with pytest.raises(Refused):
        chat.receive(post.headers, {}, post.body, NOW)
