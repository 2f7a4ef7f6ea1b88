"""The chats ``[chat.NAME]``, distinguished by `kind`. A chat receives, or sends, or both; unconfigured ones are off."""

from __future__ import annotations

import base64
import re
from typing import Annotated, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, model_validator

from whystall.agent_server.settings.loopback import is_loopback
from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.section import Section

_HOST = re.compile(r"[a-z0-9.-]{1,253}(:\d{1,5})?|\[[0-9a-f:]+\](:\d{1,5})?")


def safe_url(url: str) -> str:
    """Return `url` if messages may be sent there: https, or http to this machine; else raise ValueError."""
    parts = urlsplit(url)
    if parts.hostname and not (parts.username or parts.password):
        if parts.scheme == "https":
            return url
        if parts.scheme == "http" and is_loopback(parts.hostname):
            return url
    raise ValueError("give an address that begins with https:// (http:// only for this machine), without a password")


def _api(url: str) -> str:
    parts = urlsplit(safe_url(url))
    if parts.query or parts.fragment:
        raise ValueError("give an address without ? and #")
    return url.rstrip("/")


def _host(host: str) -> str:
    if not _HOST.fullmatch(host):
        raise ValueError("give a host, or a host and a port, in lower case: dingtalk.example.com, 127.0.0.1:8080")
    return host


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError("no such time zone; give a name such as Asia/Shanghai") from None
    return name


def aes_key(text: str) -> bytes:
    """Return the 32 bytes of an EncodingAESKey of WeCom, their base64 without padding; else raise ValueError."""
    if re.fullmatch(r"[0-9A-Za-z+/]{43}", text):
        return base64.b64decode(f"{text}=")
    raise ValueError("an EncodingAESKey has 43 letters and digits")


Address = Annotated[str, Field(max_length=2000), AfterValidator(safe_url)]
Api = Annotated[str, Field(max_length=2000), AfterValidator(_api)]
Id = Annotated[str, Field(min_length=1, max_length=200)]


class Channel(Section):
    """What every chat has. `senders`: ids of those who may write to us; empty: all whom the vendor lets write.
    `may_change`: ids of those who may change tickets and silences, ``"*"`` for all; empty: none. `llm`: the language
    model answers, if one is set up. `lang` of answers; None: of the question. `timezone`: of times such as "tomorrow at
    9"; None: that of the schedules, or of this machine. `to`: the vendor's id of the group or person that receives
    notifications.
    """

    senders: list[Id] = Field(default_factory=list, max_length=10_000)
    may_change: list[Id] = Field(default_factory=list, max_length=10_000)
    llm: bool = False
    lang: Literal["en", "zh"] | None = None
    timezone: Annotated[str, AfterValidator(_zone)] | None = None
    to: str = Field(default="", max_length=200)

    def _needs_one(self, *names: str) -> None:
        if all(getattr(self, name) is None for name in names):
            raise ValueError(f"it can neither receive nor send: give one of {', '.join(names)}")


class DingTalkSettings(Channel):
    """A DingTalk robot. `app_secret`: of an app whose robot calls ``/chat/NAME``; with `app_key` it also sends by
    itself, to its groups (``cid...``) and to people (userid); `robot_code`: if it differs from the key. `webhook`: the
    address of a custom robot, which is a secret, and `sign`, its ``SEC...``. `hosts`: further trusted hosts of session
    addresses (a private cloud) besides DingTalk's. `api`: https://api.dingtalk.io abroad.
    """

    kind: Literal["dingtalk"]
    app_secret: Secret | None = None
    app_key: Id | None = None
    robot_code: Id | None = None
    api: Api = "https://api.dingtalk.com"
    webhook: Secret | None = None
    sign: Secret | None = None
    hosts: list[Annotated[str, AfterValidator(_host)]] = Field(default_factory=list, max_length=20)

    @model_validator(mode="after")
    def _usable(self) -> DingTalkSettings:
        self._needs_one("app_secret", "webhook")
        if self.app_key is not None and self.app_secret is None:
            raise ValueError("app_key is given together with app_secret")
        return self


class FeishuSettings(Channel):
    """A Feishu or Lark robot. `encrypt_key` or `verification_token`: of an app whose events call ``/chat/NAME`` (the
    key proves sender and body; the token only that the sender knows it). `app_id`, `app_secret`: of the app that
    answers. `webhook` of a custom robot, which is a secret, and its `sign`. `bot`: our own open_id; if set, group
    messages that do not mention us are ignored. `api`: https://open.larksuite.com for Lark.
    """

    kind: Literal["feishu"]
    encrypt_key: Secret | None = None
    verification_token: Secret | None = None
    app_id: Id | None = None
    app_secret: Secret | None = None
    webhook: Secret | None = None
    sign: Secret | None = None
    bot: str = Field(default="", max_length=200)
    api: Api = "https://open.feishu.cn"

    @model_validator(mode="after")
    def _usable(self) -> FeishuSettings:
        self._needs_one("encrypt_key", "verification_token", "app_id", "webhook")
        if (self.app_id is None) != (self.app_secret is None):
            raise ValueError("app_id and app_secret are given together")
        return self


class SlackSettings(Channel):
    """A Slack app. `signing_secret`: its events and slash commands call ``/chat/NAME``. `bot_token` (``xoxb-...``)
    answers and uploads pictures; `webhook`, an incoming webhook, which is a secret, posts to its one channel.
    """

    kind: Literal["slack"]
    signing_secret: Secret | None = None
    bot_token: Secret | None = None
    webhook: Secret | None = None
    api: Api = "https://slack.com/api"

    @model_validator(mode="after")
    def _usable(self) -> SlackSettings:
        self._needs_one("signing_secret", "bot_token", "webhook")
        return self


class WeComSettings(Channel):
    """A self-built app of WeCom. `token` and `encoding_aes_key`: the app's callback ``/chat/NAME``, for the `corp_id`.
    `corp_secret` and `agent_id`: the app that answers, and sends to people (userid) and to the groups that it created
    (``group:CHATID``). `webhook`: the address of a group robot, which is a secret.
    """

    kind: Literal["wecom"]
    corp_id: Id | None = None
    token: Secret | None = None
    encoding_aes_key: Secret | None = None
    corp_secret: Secret | None = None
    agent_id: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    webhook: Secret | None = None
    api: Api = "https://qyapi.weixin.qq.com"

    @model_validator(mode="after")
    def _usable(self) -> WeComSettings:
        self._needs_one("token", "corp_secret", "webhook")
        if (self.token is None) != (self.encoding_aes_key is None):
            raise ValueError("token and encoding_aes_key are given together")
        if (self.corp_secret is None) != (self.agent_id is None):
            raise ValueError("corp_secret and agent_id are given together")
        if self.corp_id is None and not (self.token is None and self.corp_secret is None):
            raise ValueError("corp_id is given with token and with corp_secret")
        return self


class WebhookSettings(Channel):
    """Any program that exchanges JSON: it calls ``/chat/NAME`` signed with `secret`, and is called at `url`, signed the
    same way; see `vendors.webhook`.
    """

    kind: Literal["webhook"]
    secret: Secret
    url: Address | None = None


ChannelSettings = Annotated[
    DingTalkSettings | FeishuSettings | SlackSettings | WeComSettings | WebhookSettings, Field(discriminator="kind")
]
"""``[chat.NAME]``."""
