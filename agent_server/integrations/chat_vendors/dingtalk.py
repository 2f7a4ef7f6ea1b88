"""DingTalk: robots of an app that are spoken to, and custom robots of a group.

Receiving (https://open.dingtalk.com/document/isvapp/receive-message): the headers ``timestamp`` (ms) and ``sign``,
base64 of HMAC-SHA256 with the app's secret over ``timestamp + "\\n" + secret``, at most an hour old. The signature does
not cover the body: one that was seen before proves nothing about another (`Incoming.proof`).

Sending (https://open.dingtalk.com/document/orgapp/custom-robot-access, .../custom-bot-creation-and-installation): the
answer goes to the session address of the callback while that holds, else to the custom robot of the group, whose URL
takes ``timestamp`` and ``sign`` by the same formula with its own secret; else the app speaks by itself
(`dingtalk_app`). The answer's ``errcode`` is 0, or it was not taken. A robot may say 20 messages a minute; who says
more is not heard for ten minutes.

Markdown is a subset (headings, quotes, bold, italic, links, pictures, lists) and needs two spaces or an empty line for
a new line. People are mentioned only by what stands in ``at``: a mention in the text is text.
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
from whystall.agent_server.integrations.chat_vendors import markup, wording
from whystall.agent_server.integrations.chat_vendors.dingtalk_app import AppRobot
from whystall.agent_server.integrations.chat_vendors.markup import Block, Span
from whystall.agent_server.integrations.chat_vendors.responses import json_object, number, words
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
from whystall.agent_server.settings.sections.chat import DingTalkSettings, safe_url
from whystall.prompts.escape import short
from whystall.tools.contract.errors import ErrorCode, ToolError

WINDOW_S = 3600.0
"""Age of a callback: https://open.dingtalk.com/document/isvapp/receive-message"""
HOSTS = frozenset({"oapi.dingtalk.com", "api.dingtalk.com", "api.dingtalk.io"})
_MARGIN_S = 30.0  # a session address is not used in its last moments
_LATEST_MS = 10**14  # far beyond any time that is meant
_TEXT_LIMIT = 5000  # characters of Markdown: global error 34016
_BYTES_LIMIT = 13_000  # an app's message has 15,000 bytes, with its title, in JSON in JSON
_TITLE_LIMIT = 64
# -1 busy; 130101 and 410100 too many in a minute; 90030 too many in a day: the documents' tables of error codes.
_BUSY = {-1: 5.0, 130101: 60.0, 410100: 60.0, 90030: 3600.0}


def sign(secret: str, timestamp: str) -> str:
    """The signature of both directions."""
    mac = hmac.new(secret.encode(), f"{timestamp}\n{secret}".encode(), hashlib.sha256)
    return base64.b64encode(mac.digest()).decode()


class DingTalk:
    """See the module."""

    kind = "dingtalk"
    accepted = Answered()
    pace = (18, 60.0)  # of the 20 in a minute, some for what others let the robot say

    def __init__(self, name: str, settings: DingTalkSettings) -> None:
        self.name = name
        self._settings = settings
        self._hosts = HOSTS | frozenset(settings.hosts)
        self._app = AppRobot(name, settings) if settings.app_key is not None else None

    def home(self) -> Place | None:
        """The group of the custom robot, or the one, or person, that is set up as `to`."""
        if self._settings.webhook is None and not (self._settings.to and self._app):
            return None
        return Place(channel=self.name, conversation=self._settings.to)

    def receive(
        self, headers: Mapping[str, str], query: Mapping[str, str], body: bytes, now: float
    ) -> Incoming | Answered:
        """See `Vendor.receive`."""
        if self._settings.app_secret is None:
            raise Refused(404, "not_set_up", "no app_secret")
        checks.bounded(body)
        timestamp = checks.stamp(headers, "timestamp", now, WINDOW_S, unit=1e-3)
        given = checks.signature(headers, "sign")
        secret = self._settings.app_secret.read(f"chat.{self.name}.app_secret")
        checks.same(given, sign(secret, timestamp))
        said = self._said(checks.json_object(body), f"{timestamp}:{given}")
        return replace(said, proof=f"{timestamp}:{given}") if isinstance(said, Answered) else said

    def _said(self, said: Mapping[str, Any], proof: str) -> Incoming | Answered:
        sender = checks.word(said, "senderStaffId") or checks.needed(said, "senderId")
        if said.get("senderId") and said.get("senderId") == said.get("chatbotUserId"):
            return Answered(why="own_message")
        if self._settings.senders and sender not in self._settings.senders:
            return Answered(why="unknown_sender")
        direct = said.get("conversationType") == "1"
        if not direct and said.get("isInAtList") is False:
            return Answered(why="not_for_us")
        text = checks.spoken(_text(said))
        if not text:
            return Answered(why="no_text")
        hook, until = self._hook(said)
        return Incoming(
            event=checks.needed(said, "msgId"),
            place=Place(
                channel=self.name, conversation=checks.needed(said, "conversationId"), hook=hook, hook_until=until
            ),
            sender=sender,
            sender_name=checks.word(said, "senderNick"),
            text=text,
            direct=direct,
            proof=proof,
        )

    def send(self, to: Place, message: Outgoing, picture: Picture | None, key: str, now: float) -> SendSteps:
        """See `Vendor.send`."""
        title, text = short(message.title, _TITLE_LIMIT) or "whystall", markdown(message, picture)
        way = self._way(to, now)
        if way is None:
            if self._app is None or not to.conversation:
                # A custom robot speaks to one group: what was asked elsewhere is not told there.
                why = (
                    "the session address has run out, and neither app_key nor a webhook of this conversation is set up"
                )
                raise SendError("no_way", why)
            yield from self._app.send(to.conversation, title, text, now)
            return
        url, secrets = way
        body = {"msgtype": "markdown", "markdown": {"title": title, "text": text}, "at": {"isAtAll": False}}
        response = yield Request(
            "POST", url, {"Content-Type": "application/json; charset=utf-8"}, as_json(body), secrets
        )
        answer = json_object(response)
        code = number(answer, "errcode")
        if code != 0:
            wait = _BUSY.get(code) if code is not None else None
            said = words(answer.get("errmsg", answer.get("message", "")))
            raise SendError(
                str(answer.get("code", code))[:80] if code is None else str(code),
                said,
                again=wait is not None,
                wait=wait,
            )

    def _hook(self, said: Mapping[str, Any]) -> tuple[str, float]:
        """The session address and until when it holds, where it lies at a host of DingTalk's."""
        url, until = said.get("sessionWebhook"), number(said, "sessionWebhookExpiredTime")
        if not isinstance(url, str) or until is None or len(url) > 2000 or not checks.lies_at(url, self._hosts):
            return "", 0.0
        until = min(max(until, 0), _LATEST_MS)
        return url, until / 1000

    def _way(self, to: Place, now: float) -> tuple[str, tuple[str, ...]] | None:
        """The address for `to`, signed, and what of it is secret; None where there is none."""
        settings = self._settings
        if to.hook and now < to.hook_until - _MARGIN_S and checks.lies_at(to.hook, self._hosts):
            return to.hook, tuple(value for _, value in parse_qsl(urlsplit(to.hook).query))
        if settings.webhook is None or to.conversation != settings.to:
            return None
        url = _robot(settings.webhook.read(f"chat.{self.name}.webhook"), f"chat.{self.name}.webhook")
        parts = urlsplit(url)
        fields = parse_qsl(parts.query)
        secrets = tuple(value for _, value in fields)
        if settings.sign is not None:
            timestamp = str(int(now * 1000))
            signed = sign(settings.sign.read(f"chat.{self.name}.sign"), timestamp)
            fields += [("timestamp", timestamp), ("sign", signed)]
            secrets += (signed,)
        return urlunsplit(parts._replace(query=urlencode(fields))), secrets


def _robot(url: str, name: str) -> str:
    try:
        return safe_url(url)
    except ValueError as error:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name}: {error}", "copy the robot's address") from None


def _text(said: Mapping[str, Any]) -> str:
    """What was said: of a text, of rich text its texts, of a voice message what DingTalk heard."""
    content = checks.inner(said, "content")
    match said.get("msgtype"):
        case "text":
            text = checks.inner(said, "text").get("content")
        case "richText":
            found = [part.get("text") for part in checks.objects(content, "richText")]
            text = " ".join(part for part in found if isinstance(part, str))
        case "audio":
            text = content.get("recognition")
        case _:
            text = ""
    return text if isinstance(text, str) else ""


def markdown(message: Outgoing, picture: Picture | None) -> str:
    """`message` in DingTalk's Markdown, cut to its length."""
    shown = f"\n\n![{_plain(picture.alt)}]({picture.url})" if picture is not None and picture.url else ""
    content = [Block("heading", (Span(message.title, bold=True),)), *wording.content(message)]
    room = _TEXT_LIMIT - len(shown)

    def fits(some: Sequence[Block]) -> bool:
        text = _markdown(some)
        return len(text) <= room and len(as_json(text)) <= _BYTES_LIMIT

    kept = markup.fitted(content, fits, wording.rest(message.lang))
    return _markdown(kept) + shown


def _markdown(content: Sequence[Block]) -> str:
    lines: list[str] = []
    before: Block | None = None
    for block in content:
        list_goes_on = (
            before is not None and before.kind == block.kind and block.kind in ("item", "number", "quote", "code")
        )
        if before is not None:
            lines.append("\n" if list_goes_on else "\n\n")
        lines.append(_block(block))
        before = block
    return "".join(lines)


def _block(block: Block) -> str:
    text = "".join(map(_span, block.spans))
    match block.kind:
        case "heading":
            return f"#### {''.join(_plain(span.text) for span in block.spans)}"
        case "item":
            return f"{'  ' * block.level}- {text}"
        case "number":
            return f"{'  ' * block.level}{block.number}. {text}"
        case "quote" | "code":
            return f"> {text}  "
        case _:
            return text


def _span(span: Span) -> str:
    if span.code:
        text = f"`{markup.defused(span.text.replace('`', chr(0x2019)))}`"
    elif span.href:
        return f"[{_plain(span.text).replace('[', '(').replace(']', ')')}]({span.href})"
    else:
        text = _plain(span.text)
    for on, mark in ((span.italic, "*"), (span.bold, "**")):
        if on and text.strip() == text and text:
            text = f"{mark}{text}{mark}"
    return text


def _plain(text: str) -> str:
    """Running text: nothing in it is a link, a mention or emphasis."""
    return markup.defused(text.replace("*", "∗").replace("`", "’"))
