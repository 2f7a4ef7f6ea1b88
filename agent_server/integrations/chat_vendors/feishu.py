"""Feishu and Lark, its international edition: apps, which receive messages, and custom robots of a group.

Receiving (https://open.feishu.cn/document/server-docs/event-subscription-guide/event-subscription-configure-/
request-url-configuration-case and .../encrypt-key-encryption-configuration-case): with an encrypt key the body is
``{"encrypt": base64(iv + AES-256-CBC)}`` with the key's SHA-256 as key, and the header ``X-Lark-Signature`` is the
hexadecimal SHA-256 of timestamp + nonce + key + raw body. The challenge that registers an address may be unsigned; its
encryption proves the sender. Without an encrypt key only the verification token in the body proves the sender, and
nothing proves the rest. Events are repeated after 15 s, 5 min, 1 h and 6 h until they are answered.

Sending: as an app with ``im/v1/messages`` and a tenant access token; its `uuid` deduplicates messages within an hour
(https://open.feishu.cn/document/server-docs/im-v1/message/create). Or to a custom robot
(https://open.feishu.cn/document/client-docs/bot-v3/add-custom-bot) with ``timestamp`` (seconds) and ``sign`` in the
body: HMAC-SHA256 of nothing under the key ``timestamp + "\n" + secret`` (DingTalk swaps key and message). `code` 0
means accepted.

A message is a ``post``: paragraphs of typed elements without markup; only elements of their own mention people.

    {"header": {"event_id": "e1", "event_type": "im.message.receive_v1", "create_time": "1790000000000", "token": "t"},
     "event": {"sender": {"sender_id": {"open_id": "ou_1"}, "sender_type": "user"}, "message": {"message_id": "om_1",
     "chat_id": "oc_1", "chat_type": "p2p", "message_type": "text", "content": "{\"text\": \"who is on call\"}"}}}
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from whystall.agent_server.integrations.chat_vendors import callback_checks as checks
from whystall.agent_server.integrations.chat_vendors import markup
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
from whystall.agent_server.settings.sections.chat import FeishuSettings
from whystall.prompts.escape import plain_code, short

WINDOW_S = 3600.0
"""Maximum age of a signed request; the vendor's own limit for our requests."""
TOKEN_WINDOW_S = 8 * 3600.0
"""Maximum age of an event with a token only: the last repetition comes after 7.1 hours."""
_TITLE_LIMIT = 200
_BYTES_LIMIT = 17_000  # a custom robot accepts 20 KB, an app 30 KB
_UUID_LIMIT = 50
# 11232 and 99991400: too many; 9499: busy. https://open.feishu.cn/document/server-docs/api-call-guide/generic-error-code
_BUSY = {11232: 10.0, 99991400: 10.0, 230020: 10.0, 9499: 5.0, 1500: 5.0, 11233: 10.0}
_TOKEN_EXPIRED = {99991661, 99991663, 99991668}
_RECALLED = {230011, 231003, 230110}  # the answered message was deleted
_JSON = {"Content-Type": "application/json; charset=utf-8"}
_MENTION = re.compile(r"@_(?:user_\d{1,4}|all)")


def sign(secret: str, timestamp: str) -> str:
    """Return the signature for a custom robot; `timestamp` in seconds."""
    mac = hmac.new(f"{timestamp}\n{secret}".encode(), b"", hashlib.sha256)
    return base64.b64encode(mac.digest()).decode()


def event_signature(timestamp: str, nonce: str, key: str, body: bytes) -> str:
    return hashlib.sha256(f"{timestamp}{nonce}{key}".encode() + body).hexdigest()


def decrypt(encrypted: str, key: str) -> bytes:
    """Decrypt the value of ``encrypt``. All failures raise the same `Refused`, so as to give no padding oracle."""
    try:
        raw = base64.b64decode(encrypted, validate=True)
    except (binascii.Error, ValueError):
        raise _unreadable() from None
    if len(raw) < 32 or len(raw) % 16:
        raise _unreadable()
    opened = Cipher(algorithms.AES(hashlib.sha256(key.encode()).digest()), modes.CBC(raw[:16])).decryptor()
    text = opened.update(raw[16:]) + opened.finalize()
    pad = text[-1]
    if not 1 <= pad <= 16 or text[-pad:] != bytes([pad]) * pad:
        raise _unreadable()
    return text[:-pad]


def _object(text: bytes) -> dict[str, Any]:
    """Parse decrypted JSON, refusing with the same error as a wrong padding."""
    try:
        return checks.json_object(text)
    except Refused:
        raise _unreadable() from None


def _unreadable() -> Refused:
    return Refused(401, "signature", "it cannot be decrypted with encrypt_key")


class Feishu:
    """Caches the tenant access token."""

    kind = "feishu"
    accepted = Answered()
    challenged_by_get = False
    pace = (4, 1.0)  # 5 a second in a group, shared with its other robots

    def __init__(self, name: str, settings: FeishuSettings) -> None:
        self.name = name
        self._settings = settings
        self._token = ("", 0.0)

    def home(self) -> Place | None:
        """Return the group in the setting `to`, or the custom robot's group."""
        if self._settings.webhook is None and not (self._settings.to and self._settings.app_id):
            return None
        return Place(channel=self.name, conversation=self._settings.to)

    def receive(
        self, headers: Mapping[str, str], query: Mapping[str, str], body: bytes, now: float
    ) -> Incoming | Answered:
        settings = self._settings
        if settings.encrypt_key is None and settings.verification_token is None:
            raise Refused(404, "not_set_up", "neither encrypt_key nor verification_token")
        callback, signed = self._decrypt(headers, checks.check_size(body), now)
        header = checks.inner_object(callback, "header")
        if settings.verification_token is not None:
            token = settings.verification_token.read(f"chat.{self.name}.verification_token")
            given = header.get("token") or callback.get("token")
            checks.check_equal(given if isinstance(given, str) else "", token)
        if callback.get("type") == "url_verification":
            return Answered(as_json({"challenge": checks.required(callback, "challenge")}), why="challenge")
        if not signed:
            if settings.encrypt_key is not None:
                raise Refused(401, "signature", "no usable x-lark-signature")
            created = header.get("create_time")
            if not (isinstance(created, str) and created.isascii() and created.isdigit() and len(created) < 17):
                raise Refused(401, "too_old", "no create_time")
            checks.check_recent(int(created) / 1000, now, TOKEN_WINDOW_S)
        if header.get("event_type") != "im.message.receive_v1":
            return Answered(why="other_event")
        return self._parse_message(callback, header)

    def _decrypt(self, headers: Mapping[str, str], body: bytes, now: float) -> tuple[dict[str, Any], bool]:
        """Return the decrypted callback, and whether it was signed."""
        callback = checks.json_object(body)
        if self._settings.encrypt_key is None:
            if "encrypt" in callback:
                raise Refused(401, "signature", "it is encrypted, and no encrypt_key is set up")
            return callback, False
        key = self._settings.encrypt_key.read(f"chat.{self.name}.encrypt_key")
        signed = "x-lark-signature" in headers
        if signed:
            given = checks.signature(headers, "x-lark-signature")
            timestamp = checks.check_timestamp(headers, "x-lark-request-timestamp", now, WINDOW_S)
            nonce = checks.signature(headers, "x-lark-request-nonce")
            checks.check_equal(given.lower(), event_signature(timestamp, nonce, key, body))
        encrypted = callback.get("encrypt")
        if not isinstance(encrypted, str):
            raise Refused(401, "signature", "it is not encrypted")
        return _object(decrypt(encrypted, key)), signed

    def _parse_message(self, callback: Mapping[str, Any], header: Mapping[str, Any]) -> Incoming | Answered:
        event = checks.inner_object(callback, "event")
        sender, message = checks.inner_object(event, "sender"), checks.inner_object(event, "message")
        if sender.get("sender_type") != "user":
            return Answered(why="own_message")
        user = checks.required(checks.inner_object(sender, "sender_id"), "open_id")
        if self._settings.senders and user not in self._settings.senders:
            return Answered(why="unknown_sender")
        direct = message.get("chat_type") == "p2p"
        mentions = checks.objects(message, "mentions")
        ours = [
            one.get("key") for one in mentions if checks.inner_object(one, "id").get("open_id") == self._settings.bot
        ]
        if not direct and (not ours if self._settings.bot else not mentions):
            return Answered(why="not_for_us")
        if not self._settings.bot:
            ours = [one.get("key") for one in mentions[:1]]
        names = {one["key"]: one.get("name") for one in mentions if isinstance(one.get("key"), str)}

        def named(found: re.Match[str]) -> str:
            name = names.get(found[0])
            return "" if found[0] in ours or not isinstance(name, str) else f"@{name}"

        written = _MENTION.sub(named, _text(message))
        text = checks.message_text(written)
        if not text:
            return Answered(why="no_text")
        return Incoming(
            event=checks.required(header, "event_id"),
            place=Place(
                channel=self.name,
                conversation=checks.required(message, "chat_id"),
                thread=checks.required(message, "message_id"),
            ),
            sender=user,
            text=text,
            lines=checks.message_lines(written),
            direct=direct,
        )

    def send(self, to: Place, message: Outgoing, picture: Picture | None, key: str, now: float) -> SendSteps:
        if self._settings.app_id is None or not to.conversation:
            yield from self._send_to_robot(to, message, now)
            return
        token = yield from self._access(now)
        image = None if picture is None else (yield from self._upload(picture, token))
        content = post(message, image)
        uuid = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:_UUID_LIMIT]
        body = {"msg_type": "post", "content": as_json(content).decode(), "uuid": uuid}
        answer: dict[str, Any] = {}
        if to.thread:
            url = f"{self._api}/im/v1/messages/{quote(to.thread, safe='')}/reply"
            answer = json_answer((yield self._request(url, as_json(body), token)))
        if not to.thread or number(answer, "code") in _RECALLED:
            url = f"{self._api}/im/v1/messages?receive_id_type={_id_type(to.conversation)}"
            sent = as_json({"receive_id": to.conversation, **body})
            answer = json_answer((yield self._request(url, sent, token)))
        if number(answer, "code") in _TOKEN_EXPIRED:
            self._token = ("", 0.0)
            raise SendError(str(answer["code"]), "the access token has expired", again=True, wait=0.0)
        _check(answer)

    @property
    def _api(self) -> str:
        return f"{self._settings.api}/open-apis"

    def _request(self, url: str, body: bytes, token: str) -> Request:
        # repeatable, since its uuid deduplicates it within an hour
        return Request("POST", url, {**_JSON, "Authorization": f"Bearer {token}"}, body, (token,), repeatable=True)

    def _access(self, now: float) -> Generator[Request, Response, str]:
        """Return the tenant access token, cached until shortly before it expires."""
        settings = self._settings
        assert settings.app_secret is not None  # noqa: S101 - settings give both or none
        secret = settings.app_secret.read(f"chat.{self.name}.app_secret")
        token, until = self._token
        if token and now < until <= now + 7200:
            return token
        url = f"{self._api}/auth/v3/tenant_access_token/internal"
        body = as_json({"app_id": settings.app_id, "app_secret": secret})
        answer = json_answer((yield Request("POST", url, _JSON, body, (secret,), repeatable=True)))
        _check(answer)
        new, lasts = answer.get("tenant_access_token"), number(answer, "expire") or 0
        if not isinstance(new, str) or not new:
            raise SendError("bad_answer", "no tenant_access_token")
        self._token = (new, now + min(lasts, 7200) - 300)
        return new

    def _upload(self, picture: Picture, token: str) -> Generator[Request, Response, str | None]:
        """Upload the picture; return its key, or None if the vendor refuses it (the app may lack the permission)."""
        body, kind = _form({"image_type": "message"}, "image", picture)
        headers = {"Content-Type": kind, "Authorization": f"Bearer {token}"}
        response = yield Request("POST", f"{self._api}/im/v1/images", headers, body, (token,), repeatable=True)
        answer = response.json()
        data = checks.inner_object(answer, "data") if isinstance(answer, dict) else {}
        image = data.get("image_key")
        return image if isinstance(image, str) and image else None

    def _send_to_robot(self, to: Place, message: Outgoing, now: float) -> SendSteps:
        settings = self._settings
        if settings.webhook is None or to.conversation != settings.to:
            # A custom robot posts into its own group only.
            raise SendError("no_way", "neither an app nor a webhook is set up for this conversation")
        url = webhook_url(settings.webhook, f"chat.{self.name}.webhook")
        body: dict[str, Any] = {"msg_type": "post", "content": {"post": post(message, None)}}
        secrets: tuple[str, ...] = (url.rsplit("/", 1)[-1],)
        if settings.sign is not None:
            timestamp = str(int(now))
            signed = sign(settings.sign.read(f"chat.{self.name}.sign"), timestamp)
            body = {"timestamp": timestamp, "sign": signed, **body}
            secrets += (signed,)
        _check(json_answer((yield Request("POST", url, _JSON, as_json(body), secrets))))


def _check(answer: Mapping[str, Any]) -> None:
    code = number(answer, "code", "StatusCode")
    if code == 0:
        return
    wait = None if code is None else _BUSY.get(code)
    text = one_line(answer.get("msg", answer.get("StatusMessage", "")))
    raise SendError(str(code), text, again=wait is not None, wait=wait)


def _id_type(conversation: str) -> str:
    """Return the kind of an id: https://open.feishu.cn/document/server-docs/im-v1/message/create"""
    kinds = (("ou_", "open_id"), ("on_", "union_id"))
    found = next((kind for start, kind in kinds if conversation.startswith(start)), None)
    return found or ("email" if "@" in conversation else "chat_id")


def _form(fields: Mapping[str, str], name: str, picture: Picture) -> tuple[bytes, str]:
    """Return a multipart form with the picture as its file, and its content type (RFC 7578)."""
    boundary = hashlib.sha256(picture.png).hexdigest()
    parts = [
        *(f'Content-Disposition: form-data; name="{key}"\r\n\r\n{value}'.encode() for key, value in fields.items()),
        f'Content-Disposition: form-data; name="{name}"; filename="{quote(picture.name)}"\r\n'
        "Content-Type: image/png\r\n\r\n".encode()
        + picture.png,
    ]
    mark = f"--{boundary}".encode()
    body = b"".join(mark + b"\r\n" + part + b"\r\n" for part in parts) + mark + b"--\r\n"
    return body, f"multipart/form-data; boundary={boundary}"


def _text(message: Mapping[str, Any]) -> str:
    """Return the text of a message, whose `content` is JSON in a string: a text, or paragraphs of elements."""
    raw = message.get("content")
    content = checks.json_object(raw) if isinstance(raw, str) else {}
    if message.get("message_type") == "text":
        text = content.get("text")
        return text if isinstance(text, str) else ""
    if message.get("message_type") != "post":
        return ""
    paragraphs = content.get("content")
    found: list[str] = []
    for paragraph in paragraphs if isinstance(paragraphs, list) else []:
        line: list[str] = []
        for element in paragraph if isinstance(paragraph, list) else []:
            if isinstance(element, dict):
                part = element.get("user_id") if element.get("tag") == "at" else element.get("text")
                line.append(part if isinstance(part, str) else "")
        found.append(" ".join(line))
    return "\n".join(found)


# --- the form of a message --------------------------------------------------------------------------------------------


def post(message: Outgoing, image: str | None) -> dict[str, Any]:
    """Return `message` as a ``post``, cut to its limit; `image`: key of an uploaded picture."""
    locale = "zh_cn" if message.lang == "zh" else "en_us"
    title = short(message.title, _TITLE_LIMIT)

    def made(content: Sequence[Block]) -> dict[str, Any]:
        paragraphs: list[list[dict[str, Any]]] = []
        for block in content:
            if block.gap:
                paragraphs.append([_element(" ")])
            paragraphs.append(_paragraph(block))
        return {locale: {"title": title, "content": paragraphs}}

    content = markup.message_blocks(message)
    kept = markup.fitted(
        content,
        lambda some: len(as_json(as_json(made(some)).decode())) <= _BYTES_LIMIT,
        markup.omitted_line(message.lang),
    )
    form = made(kept)
    if image is not None:
        form[locale]["content"].append([{"tag": "img", "image_key": image}])
    return form


def _paragraph(block: Block) -> list[dict[str, Any]]:
    start = {"item": "• ", "number": f"{block.number}. ", "quote": "┃ ", "code": "┃ "}.get(block.kind, "")
    lead = [_element("\u3000" * block.level + start)] if start else []
    return [*lead, *map(_of_span, block.spans)] or [_element(" ")]


def _of_span(span: Span) -> dict[str, Any]:
    style = [name for name, on in (("bold", span.bold), ("italic", span.italic)) if on]
    if span.href:
        return _element(span.text, style, tag="a", href=span.href)
    # There are no code spans; quote a name that could be read as prose.
    return _element(plain_code(span.text) if span.code else span.text, style)


def _element(text: str, style: Sequence[str] = (), tag: str = "text", **more: str) -> dict[str, Any]:
    return {"tag": tag, "text": markup.defused(text), **more, **({"style": list(style)} if style else {})}
