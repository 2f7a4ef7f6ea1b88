"""WeCom (企业微信): an app of one's own, which receives messages, and robots of a group, which only send.

Receiving: `wecom_callback`. The address is registered by a GET whose decrypted ``echostr`` is the response. Timestamps
are at most five minutes old. A callback not answered within five seconds is repeated with the same ``MsgId``, three
times. An app gets what people write to it, nothing of groups; it answers that person.

Sending: ``message/send`` to a person (https://developer.work.weixin.qq.com/document/path/90236), ``appchat/send`` to a
group that the app created (.../90248), both with an access token (.../91039), which is valid for two hours unless it is
revoked; or the webhook of a group robot (.../91770). ``errcode`` 0 means accepted, except by people in ``invaliduser``.
WeCom silently drops what exceeds 30 messages a minute to one person; a robot may send 20 a minute.

Markdown is a subset (headings, bold, links, code, quotes) without lists and pictures, at most 2,048 bytes, of a robot
4,096: a longer message is sent in parts. ``enable_duplicate_check`` would also drop an equal answer to a second
question, so it is not used, and parts that were accepted are remembered in memory.

    <xml><ToUserName>CORP</ToUserName><FromUserName>ann</FromUserName><CreateTime>1790000000</CreateTime>
    <MsgType>text</MsgType><Content>who is on call</Content><MsgId>1456453720</MsgId><AgentID>1000002</AgentID></xml>
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from whystall.agent_server.integrations.chat_vendors import callback_checks as checks
from whystall.agent_server.integrations.chat_vendors import markup, wecom_callback
from whystall.agent_server.integrations.chat_vendors.markup import Block, Span
from whystall.agent_server.integrations.chat_vendors.vendor_requests import json_answer, number, one_line, webhook_url
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
from whystall.agent_server.outbound.request import Request, Response, as_json
from whystall.agent_server.settings.sections.chat import WeComSettings, aes_key
from whystall.prompts.escape import short
from whystall.tools.contract.errors import ErrorCode, ToolError

WINDOW_S = 300.0
"""Maximum age of a callback."""
PARTS = 3
"""Maximum number of parts of a message."""
GROUP = "group:"
"""Prefix of the ids of groups; a userid cannot contain it."""
_APP_BYTES = 2048
_ROBOT_BYTES = 4096
_TITLE_LIMIT = 100
_LASTS_S = 7200
_EARLIER_S = 300
_REMEMBERED = 1000  # messages of which a part was accepted
# Seconds to wait by error code: https://developer.work.weixin.qq.com/document/path/90313
_BUSY = {-1: 5.0, 45009: 60.0, 45033: 10.0}
_TOKEN_EXPIRED = {40014, 42001}
_TOKEN = re.compile(r"[\x21-\x7e]{1,2000}")
_USER = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.@-]{0,63}")
# Digits in practice. Whoever overheard a callback must not have its message decrypted by presenting it as a challenge.
_CHALLENGE = re.compile(rb"[0-9A-Za-z_-]{1,200}")
_JSON = {"Content-Type": "application/json; charset=utf-8"}


class WeCom:
    """Caches the access token."""

    kind = "wecom"
    accepted = Answered(b"", "text/plain")  # a body would be an answer to the person
    challenged_by_get = True
    pace = (10, 60.0)  # in at most 3 parts

    def __init__(self, name: str, settings: WeComSettings) -> None:
        self.name = name
        self._settings = settings
        self._token = ("", 0.0)
        self._accepted: dict[str, int] = {}

    def home(self) -> Place | None:
        """Return the group robot's group, or the group or person in the setting `to`."""
        if self._settings.webhook is None and not (self._settings.to and self._settings.corp_secret):
            return None
        return Place(channel=self.name, conversation=self._settings.to)

    def receive(
        self, headers: Mapping[str, str], query: Mapping[str, str], body: bytes, now: float
    ) -> Incoming | Answered:
        settings = self._settings
        if settings.token is None or settings.encoding_aes_key is None or settings.corp_id is None:
            raise Refused(404, "not_set_up", "no token and encoding_aes_key")
        encrypted = wecom_callback.encrypted_part(checks.check_size(body)) if body else query.get("echostr", "")
        given = checks.signature(query, "msg_signature")
        timestamp = checks.check_timestamp(query, "timestamp", now, WINDOW_S)
        nonce = checks.signature(query, "nonce")
        token = settings.token.read(f"chat.{self.name}.token")
        checks.check_equal(given.lower(), wecom_callback.signature(token, timestamp, nonce, encrypted))
        message = wecom_callback.decrypt(encrypted, self._key(), settings.corp_id)
        if not body:
            if not _CHALLENGE.fullmatch(message):
                raise wecom_callback.unreadable()
            return Answered(message, "text/plain", "challenge")
        return self._parse_message(wecom_callback.message_fields(message))

    def _key(self) -> bytes:
        assert self._settings.encoding_aes_key is not None  # noqa: S101 - checked by `receive`
        where = f"chat.{self.name}.encoding_aes_key"
        try:
            return aes_key(self._settings.encoding_aes_key.read(where))
        except ValueError as error:
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"{where}: {error}", "copy it from the app's page") from None

    def _parse_message(self, message: Mapping[str, str]) -> Incoming | Answered:
        if message.get("MsgType") != "text":
            return _ignored("other_event" if message.get("MsgType") == "event" else "no_text")
        sender = checks.required(message, "FromUserName")
        if not _USER.fullmatch(sender):
            raise Refused(400, "malformed", "FromUserName is no userid")
        if self._settings.senders and sender not in self._settings.senders:
            return _ignored("unknown_sender")
        text = checks.message_text(message.get("Content", ""))
        if not text:
            return _ignored("no_text")
        return Incoming(
            event=checks.required(message, "MsgId"),
            place=Place(channel=self.name, conversation=sender),
            sender=sender,
            text=text,
            lines=checks.message_lines(message.get("Content", "")),
            direct=True,
        )

    def send(self, to: Place, message: Outgoing, picture: Picture | None, key: str, now: float) -> SendSteps:
        settings = self._settings
        fixed: dict[str, Any] = {}
        if settings.webhook is not None and to.conversation == settings.to:
            # A robot posts into its own group only.
            url = webhook_url(settings.webhook, f"chat.{self.name}.webhook")
            secrets = tuple(value for _, value in parse_qsl(urlsplit(url).query))
            texts = markdown(message, picture, _ROBOT_BYTES)
        elif settings.corp_secret is not None and to.conversation:
            token = yield from self._access(now)
            group = to.conversation.startswith(GROUP)
            method = "appchat/send" if group else "message/send"
            url = f"{settings.api}/cgi-bin/{method}?{urlencode({'access_token': token})}"
            secrets, texts = (token,), markdown(message, picture, _APP_BYTES)
            fixed = {"touser": to.conversation, "agentid": settings.agent_id}
            if group:
                fixed = {"chatid": to.conversation.removeprefix(GROUP)}
        else:
            raise SendError("no_way", "neither corp_secret nor webhook is set up for this conversation")
        for sent, text in enumerate(texts):
            if sent < self._accepted.get(key, 0):
                continue
            body = {**fixed, "msgtype": "markdown", "markdown": {"content": text}}
            self._check(json_answer((yield Request("POST", url, _JSON, as_json(body), secrets))))
            self._remember(key, sent + 1)
        self._accepted.pop(key, None)

    def _remember(self, key: str, parts: int) -> None:
        self._accepted[key] = parts
        if len(self._accepted) > _REMEMBERED:
            del self._accepted[next(iter(self._accepted))]

    def _access(self, now: float) -> Generator[Request, Response, str]:
        """Return the access token, cached until shortly before it expires."""
        settings = self._settings
        assert settings.corp_secret is not None  # noqa: S101 - checked by `send`
        secret = settings.corp_secret.read(f"chat.{self.name}.corp_secret")
        token, until = self._token
        if token and now < until <= now + _LASTS_S:
            return token
        query = urlencode({"corpid": settings.corp_id, "corpsecret": secret})
        request = Request("GET", f"{settings.api}/cgi-bin/gettoken?{query}", secrets=(secret,), repeatable=True)
        answer = json_answer((yield request))
        self._check(answer)
        new, lasts = answer.get("access_token"), number(answer, "expires_in") or 0
        if not isinstance(new, str) or not _TOKEN.fullmatch(new):
            raise SendError("bad_answer", "no usable access_token")
        self._token = (new, now + min(lasts, _LASTS_S) - _EARLIER_S)
        return new

    def _check(self, answer: Mapping[str, Any]) -> None:
        code = number(answer, "errcode")
        if code in _TOKEN_EXPIRED:
            self._token = ("", 0.0)
            raise SendError(str(code), "the access token has expired", again=True, wait=0.0)
        if code != 0:
            wait = None if code is None else _BUSY.get(code)
            raise SendError(str(code), one_line(answer.get("errmsg", "")), again=wait is not None, wait=wait)
        if answer.get("invaliduser") or answer.get("unlicenseduser"):
            raise SendError("invalid_user", "there is no such person, or the app is not visible to them")


def _ignored(why: str) -> Answered:
    return Answered(b"", "text/plain", why)


# --- the form of a message --------------------------------------------------------------------------------------------


def markdown(message: Outgoing, picture: Picture | None, limit: int) -> list[str]:
    """Return `message` in WeCom's Markdown, in at most `PARTS` parts of `limit` bytes, with `picture` as a link."""
    title = Block("heading", (Span(short(message.title, _TITLE_LIMIT), bold=True),))
    content = [title, *markup.message_blocks(message)]
    if picture is not None and picture.url:
        content.append(Block("line", (Span(picture.alt or picture.name, href=picture.url),), gap=True))

    def fits(some: Sequence[Block]) -> bool:
        return len(_markdown(some).encode("utf-8", "replace")) <= limit

    rest: Callable[[int], Block] = markup.omitted_line(message.lang)
    return [_markdown(part) for part in markup.parts(content, fits, PARTS, rest)]


def _markdown(content: Sequence[Block]) -> str:
    lines: list[str] = []
    before: Block | None = None
    for block in content:
        if before is not None:
            # only an empty line ends a quote
            ends_quote = before.kind in ("quote", "code") and block.kind not in ("quote", "code")
            lines.append("\n\n" if block.gap or ends_quote else "\n")
        lines.append(_block(block))
        before = block
    return "".join(lines)


def _block(block: Block) -> str:
    if block.kind == "heading":
        return f"#### {''.join(markup.plain_markdown(span.text) for span in block.spans)}"
    start = {"item": "• ", "number": f"{block.number}. ", "quote": "> ", "code": "> "}.get(block.kind, "")
    return "\u3000" * block.level + start + "".join(map(markup.span_markdown, block.spans))
