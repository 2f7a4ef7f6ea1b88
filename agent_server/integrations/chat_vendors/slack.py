"""Slack: the Events API, slash commands, the Web API and incoming webhooks.

Receiving (https://docs.slack.dev/authentication/verifying-requests-from-slack): ``X-Slack-Signature`` is ``v0=`` and
the hexadecimal HMAC-SHA256 of ``v0:timestamp:raw body``, at most five minutes old. A callback not answered within three
seconds is repeated (``X-Slack-Retry-Num``) with the same ``event_id``. A slash command is a form with an address for at
most five answers within half an hour (https://docs.slack.dev/interactivity/handling-user-interaction).

Sending: ``chat.postMessage`` with a bot token; a picture with ``files.getUploadURLExternal``, its bytes, and
``files.completeUploadExternal``, which shares it together with the message. (A file that is not shared in a channel
cannot be in a block: https://github.com/slackapi/python-slack-sdk/issues/1797.) Or an incoming webhook, which answers
``ok`` in plain text. One message a second and channel; ``Retry-After`` says how long to wait.

A message is a ``rich_text`` block: typed elements without markup. The `text` beside it is for notifications; escaping
``&``, ``<`` and ``>`` disables mentions there (https://docs.slack.dev/messaging/formatting-message-text).

    {"type": "event_callback", "event_id": "Ev1", "authorizations": [{"user_id": "UBOT"}], "event": {"type":
     "app_mention", "user": "U1", "text": "<@UBOT> who is on call", "channel": "C1", "ts": "1790000000.000100"}}
    command=%2Fwhystall&text=who+is+on+call&user_id=U1&user_name=ann&channel_id=C1&trigger_id=1.2.3&response_url=...
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Generator, Mapping, Sequence
from html import unescape
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from whystall.agent_server.integrations.chat_vendors import callback_checks as checks
from whystall.agent_server.integrations.chat_vendors import markup
from whystall.agent_server.integrations.chat_vendors.markup import Block, Span
from whystall.agent_server.integrations.chat_vendors.vendor_requests import json_answer, one_line, webhook_url
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
from whystall.agent_server.settings.sections.chat import SlackSettings
from whystall.prompts.escape import short

WINDOW_S = 300.0
"""Maximum age of a callback."""
HOOK_HOST = "hooks.slack.com"
FILE_HOST = "files.slack.com"
_HOOK_S = 1800.0  # validity of a slash command's address
_MARGIN_S = 30.0
_TEXT_LIMIT = 6_000  # characters; all blocks of a message may have about twice as many in JSON
_NOTICE_LIMIT = 300
_TITLE_LIMIT = 150
_JSON = {"Content-Type": "application/json; charset=utf-8"}
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
# Seconds to wait by temporary error: https://docs.slack.dev/reference/methods/chat.postMessage
_BUSY = {"ratelimited": 30.0, "rate_limited": 30.0, "message_limit_exceeded": 60.0, "service_unavailable": 30.0}
_BUSY |= {"internal_error": 10.0, "fatal_error": 10.0, "request_timeout": 10.0, "team_added_to_org": 60.0}
# The app is not in the channel, but may answer a slash command there.
_OUTSIDE = {"not_in_channel", "channel_not_found"}
_TOKEN = re.compile(r"<([^<>|]{1,2000})(?:\|([^<>]{0,2000}))?>")


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a request from Slack."""
    return "v0=" + hmac.new(secret.encode(), f"v0:{timestamp}:".encode() + body, hashlib.sha256).hexdigest()


class Slack:
    kind = "slack"
    accepted = Answered(b"", "text/plain")  # Slack would show a body to the user of a slash command
    challenged_by_get = False
    pace = (1, 1.0)

    def __init__(self, name: str, settings: SlackSettings) -> None:
        self.name = name
        self._settings = settings
        host = urlsplit(settings.api).netloc
        # a test server uses its own address
        self._hooks = frozenset({HOOK_HOST} | ({host} if host != "slack.com" else set()))
        self._files = frozenset({FILE_HOST} | ({host} if host != "slack.com" else set()))

    def home(self) -> Place | None:
        """Return the channel in the setting `to`, or that of the incoming webhook."""
        if self._settings.webhook is None and not (self._settings.to and self._settings.bot_token):
            return None
        return Place(channel=self.name, conversation=self._settings.to)

    def receive(
        self, headers: Mapping[str, str], query: Mapping[str, str], body: bytes, now: float
    ) -> Incoming | Answered:
        if self._settings.signing_secret is None:
            raise Refused(404, "not_set_up", "no signing_secret")
        checks.check_size(body)
        timestamp = checks.check_timestamp(headers, "x-slack-request-timestamp", now, WINDOW_S)
        given = checks.signature(headers, "x-slack-signature")
        secret = self._settings.signing_secret.read(f"chat.{self.name}.signing_secret")
        checks.check_equal(given, signature(secret, timestamp, body))
        if headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            return self._command(body, now)
        callback = checks.json_object(body)
        if callback.get("type") == "url_verification":
            return Answered(as_json({"challenge": checks.required(callback, "challenge")}), why="challenge")
        if callback.get("type") != "event_callback":
            return Answered(why="other_event")
        return self._event(callback)

    def _event(self, callback: Mapping[str, Any]) -> Incoming | Answered:
        event = checks.inner_object(callback, "event")
        direct = event.get("channel_type") == "im"
        # In a channel only mentions count; an app may be subscribed to its other messages too.
        if not (event.get("type") == "app_mention" or (event.get("type") == "message" and direct)):
            return Answered(why="other_event")
        ours = {checks.text_of(one, "user_id") for one in checks.objects(callback, "authorizations")}
        user = event.get("user")
        robot = event.get("bot_id") or event.get("subtype") or event.get("app_id")
        if robot or not isinstance(user, str) or user in ours:
            return Answered(why="own_message")  # two robots would answer each other for ever
        if self._settings.senders and user not in self._settings.senders:
            return Answered(why="unknown_sender")
        text = event.get("text")
        written = _read(text if isinstance(text, str) else "", ours)
        text = checks.message_text(written)
        if not text:
            return Answered(why="no_text")
        thread = checks.text_of(event, "thread_ts") or ("" if direct else checks.text_of(event, "ts"))
        return Incoming(
            event=checks.required(callback, "event_id"),
            place=Place(channel=self.name, conversation=checks.required(event, "channel"), thread=thread),
            sender=checks.required(event, "user"),
            text=text,
            lines=checks.message_lines(written),
            direct=direct,
        )

    def _command(self, body: bytes, now: float) -> Incoming | Answered:
        try:
            form = dict(parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=True, max_num_fields=50))
        except ValueError:
            raise Refused(400, "malformed", "no form") from None
        if not form.get("command", "").startswith("/"):
            return Answered(why="other_event")
        user = checks.required(form, "user_id")
        if self._settings.senders and user not in self._settings.senders:
            return Answered(why="unknown_sender")
        written = _read(form.get("text", ""), set())
        hook = form.get("response_url", "")
        valid = len(hook) <= 2000 and checks.is_vendor_url(hook, self._hooks)
        return Incoming(
            event=checks.required(form, "trigger_id"),
            place=Place(
                channel=self.name,
                conversation=checks.required(form, "channel_id"),
                hook=hook if valid else "",
                hook_until=now + _HOOK_S if valid else 0.0,
            ),
            sender=user,
            sender_name=checks.text_of(form, "user_name"),
            text=checks.message_text(written) or "help",
            lines=checks.message_lines(written),
            direct=form.get("channel_name") == "directmessage",
        )

    def send(self, to: Place, message: Outgoing, picture: Picture | None, key: str, now: float) -> SendSteps:
        settings = self._settings
        open_hook = to.hook and now < to.hook_until - _MARGIN_S and checks.is_vendor_url(to.hook, self._hooks)
        hook = to.hook if open_hook else ""
        if settings.bot_token is not None and to.conversation:
            token = settings.bot_token.read(f"chat.{self.name}.bot_token")
            if picture is not None and (yield from self._send_with_picture(to, message, picture, token)):
                return
            where = {"channel": to.conversation, **({"thread_ts": to.thread} if to.thread else {})}
            body = {**where, **_form(message, None), "unfurl_links": False, "unfurl_media": False}
            answer = json_answer((yield self._request("chat.postMessage", as_json(body), token, _JSON)))
            if _error(answer) not in _OUTSIDE or not hook:
                _check(answer)
                return
        elif not hook:
            hook = self._webhook(to)
        form = {**_form(message, picture), "unfurl_links": False}
        if hook == to.hook:
            form["response_type"] = "in_channel"
        response = yield Request("POST", hook, _JSON, as_json(form), (urlsplit(hook).path,))
        text = one_line(response.body.decode("utf-8", "replace"))
        if "invalid_blocks" in text and picture is not None:  # it could not fetch the picture
            form |= _form(message, None)
            response = yield Request("POST", hook, _JSON, as_json(form), (urlsplit(hook).path,))
            text = one_line(response.body.decode("utf-8", "replace"))
        if response.status >= 300:
            raise SendError(f"http_{response.status}", text)

    def _send_with_picture(
        self, to: Place, message: Outgoing, picture: Picture, token: str
    ) -> Generator[Request, Response, bool]:
        """Send with the picture; return False if Slack refuses the picture (the app may lack the permission)."""
        asked = urlencode({"filename": picture.name, "length": len(picture.png), "alt_txt": picture.alt}).encode()
        answer = json_answer((yield self._request("files.getUploadURLExternal", asked, token, _FORM)))
        url, file = answer.get("upload_url"), answer.get("file_id")
        if not (answer.get("ok") is True and isinstance(url, str) and isinstance(file, str)):
            return False
        if not checks.is_vendor_url(url, self._files):
            return False
        sent = yield Request("POST", url, {"Content-Type": "application/octet-stream"}, picture.png, (url,))
        if sent.status >= 300:
            return False
        fields = {
            "files": as_json([{"id": file, "title": short(message.title, _TITLE_LIMIT)}]).decode(),
            "channel_id": to.conversation,
            "blocks": as_json(_form(message, None)["blocks"]).decode(),
            **({"thread_ts": to.thread} if to.thread else {}),
        }
        done = self._request("files.completeUploadExternal", urlencode(fields).encode(), token, _FORM)
        answer = json_answer((yield done))
        if answer.get("ok") is not True and _error(answer) in _BUSY:
            _check(answer)
        return answer.get("ok") is True

    def _request(self, method: str, body: bytes, token: str, headers: Mapping[str, str]) -> Request:
        url = f"{self._settings.api}/{method}"
        return Request("POST", url, {**headers, "Authorization": f"Bearer {token}"}, body, (token,))

    def _webhook(self, to: Place) -> str:
        if self._settings.webhook is None or to.conversation != self._settings.to:
            # An incoming webhook posts into its own channel only.
            raise SendError("no_way", "neither a bot_token nor a webhook is set up for this conversation")
        return webhook_url(self._settings.webhook, f"chat.{self.name}.webhook")


def _error(answer: Mapping[str, Any]) -> str:
    return one_line(answer.get("error", "no ok"))


def _check(answer: Mapping[str, Any]) -> None:
    if answer.get("ok") is True:
        return
    code = _error(answer)
    more = answer.get("needed")
    wait = _BUSY.get(code)
    raise SendError(code, f"the app lacks {one_line(more)}" if more else "", again=wait is not None, wait=wait)


def _read(text: str, ours: set[str]) -> str:
    """Return a message's text without our own mention, with other tokens as people see them."""

    def visible(found: re.Match[str]) -> str:
        what, label = found[1], found[2]
        if what[:1] == "@":
            return "" if what[1:] in ours else f"@{label or what[1:]}"
        return label or (what if what[:1] not in "#!" else what[1:])

    return unescape(_TOKEN.sub(visible, text[: 8 * markup.LINE_LIMIT]))


# --- the form of a message --------------------------------------------------------------------------------------------


def _form(message: Outgoing, picture: Picture | None) -> dict[str, Any]:
    """Return `text` for notifications and `blocks`, with the `picture` if Slack can fetch it."""
    content = markup.message_blocks(message)

    def fits(some: Sequence[Block]) -> bool:
        return sum(len(block.text) + 10 for block in some) <= _TEXT_LIMIT

    kept = markup.fitted(content, fits, markup.omitted_line(message.lang))
    title = short(message.title, _TITLE_LIMIT)
    blocks: list[dict[str, Any]] = [{"type": "rich_text", "elements": _rich(title, kept)}]
    if picture is not None and picture.url:
        blocks.append({"type": "image", "image_url": picture.url, "alt_text": short(picture.alt, 2000)})
    first = kept[0].text if kept else ""
    notice = short(f"{title}: {first}" if first else title, _NOTICE_LIMIT)
    for sign, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        notice = notice.replace(sign, name)
    return {"text": notice, "blocks": blocks}


def _rich(title: str, content: Sequence[Block]) -> list[dict[str, Any]]:
    """Elements of a rich_text block: https://docs.slack.dev/reference/block-kit/blocks/rich-text-block"""
    head = _text(title, bold=True)
    parts: list[dict[str, Any]] = [{"type": "rich_text_section", "elements": [head]}]
    for block in content:
        inside = [_element(span) for span in block.spans if span.text]
        last = parts[-1]
        match block.kind:
            case "item" | "number":
                style = "bullet" if block.kind == "item" else "ordered"
                entry = {"type": "rich_text_section", "elements": inside}
                same = last["type"] == "rich_text_list" and last["style"] == style and last["indent"] == block.level
                if same:
                    last["elements"].append(entry)
                else:
                    more = {"offset": block.number - 1} if block.kind == "number" and block.number > 1 else {}
                    parts.append(
                        {"type": "rich_text_list", "style": style, "indent": block.level, **more, "elements": [entry]}
                    )
            case "code" | "quote":
                kind = "rich_text_preformatted" if block.kind == "code" else "rich_text_quote"
                plain = [{"type": "text", "text": block.text or " "}] if block.kind == "code" else inside
                if last["type"] == kind:
                    last["elements"] += [_text("\n"), *plain]
                else:
                    parts.append({"type": kind, "elements": plain})
            case _:
                if last["type"] == "rich_text_section":
                    last["elements"] += [_text("\n\n" if block.gap else "\n"), *inside]
                else:
                    parts.append(
                        {"type": "rich_text_section", "elements": [_text("\n"), *inside] if block.gap else inside}
                    )
    return [part for part in parts if part["elements"]]


def _element(span: Span) -> dict[str, Any]:
    style = {name: True for name in ("bold", "italic", "code") if getattr(span, name)}
    if span.href:
        return {"type": "link", "url": span.href, "text": span.text, **({"style": style} if style else {})}
    return _text(span.text, **style)


def _text(text: str, **style: bool) -> dict[str, Any]:
    return {"type": "text", "text": text, **({"style": style} if style else {})}
