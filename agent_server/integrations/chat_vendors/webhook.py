"""A chat of one's own: JSON in and out, signed in both directions as Standard Webhooks (https://
www.standardwebhooks.com): ``webhook-id``, ``webhook-timestamp``, ``webhook-signature``; at most five minutes old.

In; a ``webhook-id`` is accepted once::

    {"conversation": "ops", "sender": "alice", "sender_name": "Alice", "text": "who is on call",
     "thread": "", "direct": false}

Out; a repeated message has the same ``webhook-id``, and `text` is Markdown::

    {"channel": "NAME", "conversation": "ops", "thread": "", "title": "...", "text": "...", "lang": "en",
     "picture": {"name": "x.png", "alt": "...", "url": null, "png": "base64"}}

Any status 2xx means accepted.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping

from whystall.agent_server.integrations.chat_vendors import callback_checks as checks
from whystall.agent_server.integrations.chat_vendors.vendor_requests import one_line
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
from whystall.agent_server.outbound import standard_webhooks
from whystall.agent_server.outbound.request import Request, as_json
from whystall.agent_server.settings.sections.chat import WebhookSettings


class Webhook:
    kind = "webhook"
    accepted = Answered()
    challenged_by_get = False
    pace = (50, 1.0)

    def __init__(self, name: str, settings: WebhookSettings) -> None:
        self.name = name
        self._settings = settings

    def home(self) -> Place | None:
        if self._settings.url is None:
            return None
        return Place(channel=self.name, conversation=self._settings.to)

    def receive(
        self, headers: Mapping[str, str], query: Mapping[str, str], body: bytes, now: float
    ) -> Incoming | Answered:
        checks.check_size(body)
        timestamp = checks.check_timestamp(headers, "webhook-timestamp", now, standard_webhooks.WINDOW_S)
        id = checks.signature(headers, "webhook-id")
        if not standard_webhooks.matches(headers.get("webhook-signature", ""), self._secret(), id, timestamp, body):
            raise Refused(401, "signature", "it does not match")
        callback = checks.json_object(body)
        sender, written = checks.required(callback, "sender"), callback.get("text")
        if self._settings.senders and sender not in self._settings.senders:
            return Answered(why="unknown_sender")
        written = written if isinstance(written, str) else ""
        text = checks.message_text(written)
        if not text:
            return Answered(why="no_text")
        return Incoming(
            event=id,
            place=Place(
                channel=self.name,
                conversation=checks.required(callback, "conversation"),
                thread=checks.text_of(callback, "thread"),
            ),
            sender=sender,
            sender_name=checks.text_of(callback, "sender_name"),
            text=text,
            lines=checks.message_lines(written),
            direct=callback.get("direct") is True,
        )

    def send(self, to: Place, message: Outgoing, picture: Picture | None, key: str, now: float) -> SendSteps:
        if self._settings.url is None:
            raise SendError("no_way", "no url is set up")
        shown = None
        if picture is not None:
            png = base64.b64encode(picture.png).decode()
            shown = {"name": picture.name, "alt": picture.alt, "url": picture.url, "png": png}
        body = as_json(
            {
                "channel": self.name,
                "conversation": to.conversation,
                "thread": to.thread,
                "title": message.title,
                "text": message.text,
                "lang": message.lang,
                "picture": shown,
            }
        )
        id = "msg_" + hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:32]
        headers = standard_webhooks.signature_headers(self._secret(), id, str(int(now)), body)
        secrets = (headers["webhook-signature"],)
        headers["Content-Type"] = "application/json; charset=utf-8"
        response = yield Request("POST", self._settings.url, headers, body, secrets, repeatable=True)
        if response.status >= 300:
            raise SendError(f"http_{response.status}", one_line(response.body.decode("utf-8", "replace")))

    def _secret(self) -> str:
        return self._settings.secret.read(f"chat.{self.name}.secret")
