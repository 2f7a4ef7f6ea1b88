"""DingTalk: robots of an app, which receive messages, and custom robots of a group.

Receiving (https://open.dingtalk.com/document/isvapp/receive-message): the headers ``timestamp`` (ms) and ``sign``,
base64 of HMAC-SHA256 with the app's secret over ``timestamp + "\n" + secret``, at most an hour old. The signature does
not cover the body, so each is accepted for one message only (`Incoming.proof`).

Sending (https://open.dingtalk.com/document/orgapp/custom-robot-access, .../custom-bot-creation-and-installation): the
answer goes to the session webhook of the callback until it expires, else to the group's custom robot, whose URL takes
``timestamp`` and ``sign`` by the same formula with its own secret, else through the app (`dingtalk_app`). ``errcode`` 0
means accepted. A robot that sends more than 20 messages a minute is blocked for ten minutes.

Markdown is a subset (headings, quotes, bold, italic, links, pictures, lists) and needs two spaces or an empty line for
a new line. Only ``at`` mentions people.

    {"msgId": "m1", "msgtype": "text", "text": {"content": " who is on call "}, "conversationType": "2",
     "conversationId": "cidX", "senderStaffId": "u1", "senderNick": "Ann", "isInAtList": true,
     "sessionWebhook": "https://oapi.dingtalk.com/robot/sendBySession?session=s",
     "sessionWebhookExpiredTime": 1790000000000}
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from whystall.agent_server.integrations.chat_vendors import callback_checks as checks
from whystall.agent_server.integrations.chat_vendors import markup
from whystall.agent_server.integrations.chat_vendors.dingtalk_app import AppRobot
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
from whystall.agent_server.outbound.request import Request, as_json
from whystall.agent_server.settings.sections.chat import DingTalkSettings
from whystall.prompts.escape import short

WINDOW_S = 3600.0
"""Maximum age of a callback."""
HOSTS = frozenset({"oapi.dingtalk.com", "api.dingtalk.com", "api.dingtalk.io"})
_MARGIN_S = 30.0  # before the session webhook expires
_LATEST_MS = 10**14  # the year 5138
_TEXT_LIMIT = 5000  # characters of Markdown: global error 34016
_BYTES_LIMIT = 13_000  # of the 15,000 of an app's message with its title, as JSON in JSON
_TITLE_LIMIT = 64
# Seconds to wait by error code: -1 busy; 130101 and 410100 too many in a minute; 90030 too many in a day.
_BUSY = {-1: 5.0, 130101: 60.0, 410100: 60.0, 90030: 3600.0}


def sign(secret: str, timestamp: str) -> str:
    """Return the signature for both directions."""
    mac = hmac.new(secret.encode(), f"{timestamp}\n{secret}".encode(), hashlib.sha256)
    return base64.b64encode(mac.digest()).decode()


class DingTalk:
    kind = "dingtalk"
    accepted = Answered()
    challenged_by_get = False
    pace = (18, 60.0)  # of 20 a minute, shared with other programs of this robot

    def __init__(self, name: str, settings: DingTalkSettings) -> None:
        self.name = name
        self._settings = settings
        self._hosts = HOSTS | frozenset(settings.hosts)
        self._app = AppRobot(name, settings) if settings.app_key is not None else None

    def home(self) -> Place | None:
        """Return the custom robot's group, or the group or person in the setting `to`."""
        if self._settings.webhook is None and not (self._settings.to and self._app):
            return None
        return Place(channel=self.name, conversation=self._settings.to)

    def receive(
        self, headers: Mapping[str, str], query: Mapping[str, str], body: bytes, now: float
    ) -> Incoming | Answered:
        if self._settings.app_secret is None:
            raise Refused(404, "not_set_up", "no app_secret")
        checks.check_size(body)
        timestamp = checks.check_timestamp(headers, "timestamp", now, WINDOW_S, unit=1e-3)
        given = checks.signature(headers, "sign")
        secret = self._settings.app_secret.read(f"chat.{self.name}.app_secret")
        checks.check_equal(given, sign(secret, timestamp))
        callback = self._parse_message(checks.json_object(body), f"{timestamp}:{given}")
        return replace(callback, proof=f"{timestamp}:{given}") if isinstance(callback, Answered) else callback

    def _parse_message(self, callback: Mapping[str, Any], proof: str) -> Incoming | Answered:
        sender = checks.text_of(callback, "senderStaffId") or checks.required(callback, "senderId")
        if callback.get("senderId") and callback.get("senderId") == callback.get("chatbotUserId"):
            return Answered(why="own_message")
        if self._settings.senders and sender not in self._settings.senders:
            return Answered(why="unknown_sender")
        direct = callback.get("conversationType") == "1"
        if not direct and callback.get("isInAtList") is False:
            return Answered(why="not_for_us")
        text = checks.message_text(_text(callback))
        if not text:
            return Answered(why="no_text")
        hook, until = self._session_webhook(callback)
        return Incoming(
            event=checks.required(callback, "msgId"),
            place=Place(
                channel=self.name, conversation=checks.required(callback, "conversationId"), hook=hook, hook_until=until
            ),
            sender=sender,
            sender_name=checks.text_of(callback, "senderNick"),
            text=text,
            lines=checks.message_lines(_text(callback)),
            direct=direct,
            proof=proof,
        )

    def send(self, to: Place, message: Outgoing, picture: Picture | None, key: str, now: float) -> SendSteps:
        title, text = short(message.title, _TITLE_LIMIT) or "whystall", markdown(message, picture)
        webhook = self._webhook_of(to, now)
        if webhook is None:
            if self._app is None or not to.conversation:
                # A custom robot posts into its own group only.
                why = "the session webhook has expired, and this conversation has neither app_key nor webhook"
                raise SendError("no_way", why)
            yield from self._app.send(to.conversation, title, text, now)
            return
        url, secrets = webhook
        body = {"msgtype": "markdown", "markdown": {"title": title, "text": text}, "at": {"isAtAll": False}}
        response = yield Request(
            "POST", url, {"Content-Type": "application/json; charset=utf-8"}, as_json(body), secrets
        )
        answer = json_answer(response)
        code = number(answer, "errcode")
        if code != 0:
            wait = _BUSY.get(code) if code is not None else None
            text = one_line(answer.get("errmsg", answer.get("message", "")))
            shown = str(answer.get("code", code))[:80] if code is None else str(code)
            raise SendError(shown, text, again=wait is not None, wait=wait)

    def _session_webhook(self, callback: Mapping[str, Any]) -> tuple[str, float]:
        """Return the session webhook and its expiry, if it is an address of DingTalk's."""
        url, until = callback.get("sessionWebhook"), number(callback, "sessionWebhookExpiredTime")
        if not isinstance(url, str) or until is None or len(url) > 2000 or not checks.is_vendor_url(url, self._hosts):
            return "", 0.0
        until = min(max(until, 0), _LATEST_MS)
        return url, until / 1000

    def _webhook_of(self, to: Place, now: float) -> tuple[str, tuple[str, ...]] | None:
        """Return the signed webhook for `to` and its secret parts; None without one."""
        settings = self._settings
        if to.hook and now < to.hook_until - _MARGIN_S and checks.is_vendor_url(to.hook, self._hosts):
            return to.hook, tuple(value for _, value in parse_qsl(urlsplit(to.hook).query))
        if settings.webhook is None or to.conversation != settings.to:
            return None
        parts = urlsplit(webhook_url(settings.webhook, f"chat.{self.name}.webhook"))
        fields = parse_qsl(parts.query)
        secrets = tuple(value for _, value in fields)
        if settings.sign is not None:
            timestamp = str(int(now * 1000))
            signed = sign(settings.sign.read(f"chat.{self.name}.sign"), timestamp)
            fields += [("timestamp", timestamp), ("sign", signed)]
            secrets += (signed,)
        return urlunsplit(parts._replace(query=urlencode(fields))), secrets


def _text(callback: Mapping[str, Any]) -> str:
    """Return the text of a text, rich text or voice message (as DingTalk recognised it)."""
    content = checks.inner_object(callback, "content")
    match callback.get("msgtype"):
        case "text":
            text = checks.inner_object(callback, "text").get("content")
        case "richText":
            found = [part.get("text") for part in checks.objects(content, "richText")]
            text = " ".join(part for part in found if isinstance(part, str))
        case "audio":
            text = content.get("recognition")
        case _:
            text = ""
    return text if isinstance(text, str) else ""


def markdown(message: Outgoing, picture: Picture | None) -> str:
    """Return `message` in DingTalk's Markdown, cut to its limits."""
    shown = f"\n\n![{markup.plain_markdown(picture.alt)}]({picture.url})" if picture is not None and picture.url else ""
    content = [Block("heading", (Span(message.title, bold=True),)), *markup.message_blocks(message)]
    limit = _TEXT_LIMIT - len(shown)

    def fits(some: Sequence[Block]) -> bool:
        text = _markdown(some)
        return len(text) <= limit and len(as_json(text)) <= _BYTES_LIMIT

    kept = markup.fitted(content, fits, markup.omitted_line(message.lang))
    return _markdown(kept) + shown


def _markdown(content: Sequence[Block]) -> str:
    lines: list[str] = []
    before: Block | None = None
    for block in content:
        if before is not None:
            same_list = before.kind == block.kind and block.kind in ("item", "number", "quote", "code")
            lines.append("\n" if same_list else "\n\n")
        lines.append(_block(block))
        before = block
    return "".join(lines)


def _block(block: Block) -> str:
    text = "".join(map(markup.span_markdown, block.spans))
    match block.kind:
        case "heading":
            return f"#### {''.join(markup.plain_markdown(span.text) for span in block.spans)}"
        case "item":
            return f"{'  ' * block.level}- {text}"
        case "number":
            return f"{'  ' * block.level}{block.number}. {text}"
        case "quote" | "code":
            return f"> {text}  "
        case _:
            return text
