"""The manifest of the Slack app asks for what our code needs, and no more."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import anyio
import chat_callbacks
import pytest
import yaml
from chat_server import ChatServer

from whystall.agent_server.integrations.chat.sending import send_all
from whystall.agent_server.integrations.chat_vendors.slack import Slack
from whystall.agent_server.integrations.messages import Answered, Incoming, Outgoing, Picture, Place
from whystall.agent_server.outbound.client import Client
from whystall.agent_server.settings.sections.chat import SlackSettings

NOW = 1_800_000_000.0
MANIFEST: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[2] / "examples/slack-app-manifest.yaml").read_text("utf-8")
)
EVENTS: list[str] = MANIFEST["settings"]["event_subscriptions"]["bot_events"]
# https://docs.slack.dev/reference/events, .../reference/methods
SCOPES = {
    "app_mention": "app_mentions:read",
    "message.im": "im:history",
    "slash_commands": "commands",
    "chat.postMessage": "chat:write",
    "files.getUploadURLExternal": "files:write",
    "files.completeUploadExternal": "files:write",
}


@pytest.fixture
def slack(monkeypatch: pytest.MonkeyPatch) -> Slack:
    monkeypatch.setenv("SIGNING", "s")
    return Slack("ops", SlackSettings.model_validate({"kind": "slack", "signing_secret": {"env": "SIGNING"}}))


def _event(slack: Slack, name: str) -> Incoming | Answered:
    kind, _, where = name.partition(".")
    event = {"type": kind, "user": "U1", "text": "who is on call", "channel": "C1", "ts": "1.2"}
    if where:
        event["channel_type"] = {"channels": "channel", "groups": "group"}.get(where, where)
    said = {"type": "event_callback", "event_id": "Ev1", "event": event}
    post = chat_callbacks.slack_signed("s", json.dumps(said).encode(), {}, NOW)
    return slack.receive(post.headers, {}, post.body, NOW)


@pytest.mark.parametrize(
    "name", ["app_mention", "message.im", "message.channels", "message.groups", "message.mpim", "app_home_opened"]
)
def test_the_events_are_those_that_are_read(slack: Slack, name: str) -> None:
    assert isinstance(_event(slack, name), Incoming) == (name in EVENTS)


@pytest.mark.parametrize(
    ("form", "offered"),
    [
        ({"command": "/whystall", "text": "help"}, bool(MANIFEST["features"].get("slash_commands"))),
        ({"payload": '{"type": "block_actions"}'}, MANIFEST["settings"]["interactivity"]["is_enabled"]),
    ],
    ids=["slash command", "interactivity"],
)
def test_the_forms_are_those_that_are_read(slack: Slack, form: dict[str, str], offered: bool) -> None:
    body = urlencode({**form, "user_id": "U1", "channel_id": "C1", "trigger_id": "1"}).encode()
    kind = {"content-type": "application/x-www-form-urlencoded"}
    post = chat_callbacks.slack_signed("s", body, kind, NOW)
    assert isinstance(slack.receive(post.headers, {}, post.body, NOW), Incoming) == offered


def test_the_scopes_are_those_that_the_events_and_calls_need(monkeypatch: pytest.MonkeyPatch) -> None:
    with ChatServer(clock=lambda: NOW) as chats:
        monkeypatch.setenv("BOT", chats.vendors.secrets.slack_bot)
        settings = {"kind": "slack", "bot_token": {"env": "BOT"}, "api": f"{chats.url}/slack"}
        slack = Slack("ops", SlackSettings.model_validate(settings))

        async def send(picture: Picture | None) -> None:
            async with Client(timeout=5.0) as client:
                to = Place(channel="ops", conversation="C1")
                await send_all(client, slack.send(to, Outgoing(title="t", text="x"), picture, "k", NOW))

        anyio.run(send, None)
        anyio.run(send, Picture(b"\x89PNG\r\n\x1a\n", "x.png", "alt"))
        calls = {path.removeprefix("/slack/") for path in chats.vendors.requests if path.startswith("/slack/")}
    assert chats.vendors.refused == []
    needed = {SCOPES[name] for name in {*calls, *EVENTS, "slash_commands"}}
    assert sorted(MANIFEST["oauth_config"]["scopes"]["bot"]) == sorted(needed)


def test_it_has_the_form_that_slack_documents() -> None:
    """https://docs.slack.dev/reference/app-manifest"""
    assert set(MANIFEST) == {"_metadata", "display_information", "features", "oauth_config", "settings"}
    assert len(MANIFEST["display_information"]["name"]) <= 35
    assert len(MANIFEST["display_information"]["description"]) <= 140
    assert re.fullmatch(r"[a-z0-9._-]{1,80}", MANIFEST["features"]["bot_user"]["display_name"])
    home = MANIFEST["features"]["app_home"]
    assert (home["messages_tab_enabled"], home["messages_tab_read_only_enabled"]) == (True, False)
    (command,) = MANIFEST["features"]["slash_commands"]
    assert re.fullmatch(r"/\S{1,31}", command["command"])
    assert not MANIFEST["settings"]["socket_mode_enabled"]  # we are called, and call nobody to be told
    urls = {command["url"], MANIFEST["settings"]["event_subscriptions"]["request_url"]}
    assert urls == {"https://whystall.example.com/chat/ops"}
