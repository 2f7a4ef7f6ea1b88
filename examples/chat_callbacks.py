"""Callbacks as DingTalk, Feishu and Slack send them when somebody speaks to a robot: signed, and encrypted if they are.

Each makes the headers and the body of one POST to ``/chat/NAME``; `deliver` sends it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from urllib.parse import urlencode

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Post = tuple[dict[str, str], bytes]
_JSON = {"content-type": "application/json; charset=utf-8"}


def dingtalk(
    secret: str,
    text: str,
    *,
    hook: str,
    hook_ends: int,
    conversation: str = "cidDemo",
    sender: str = "manager4220",
    nick: str = "小王",
    id: str = "",
    now: float | None = None,
) -> Post:
    """A message in a group, naming the robot. `hook_ends` in ms."""
    moment = int((time.time() if now is None else now) * 1000)
    mac = hmac.new(secret.encode(), f"{moment}\n{secret}".encode(), hashlib.sha256).digest()
    said = {
        "conversationId": conversation,
        "conversationType": "2",
        "conversationTitle": "训练值班群",
        "msgId": id or f"msg{secrets.token_hex(8)}",
        "msgtype": "text",
        "text": {"content": f" {text} "},
        "createAt": moment,
        "senderId": "$:LWCP_v1:$demo",
        "senderStaffId": sender,
        "senderNick": nick,
        "chatbotUserId": "$:LWCP_v1:$robot",
        "isInAtList": True,
        "sessionWebhook": hook,
        "sessionWebhookExpiredTime": hook_ends,
        "robotCode": "dingdemo",
    }
    headers = {**_JSON, "timestamp": str(moment), "sign": base64.b64encode(mac).decode()}
    return headers, json.dumps(said, ensure_ascii=False).encode()


def feishu(
    key: str,
    token: str,
    text: str,
    *,
    chat: str = "oc_demo",
    sender: str = "ou_demo",
    id: str = "",
    now: float | None = None,
) -> Post:
    """A message in a group, naming the robot; encrypted."""
    moment = time.time() if now is None else now
    message = {
        "message_id": f"om_{secrets.token_hex(8)}",
        "chat_id": chat,
        "chat_type": "group",
        "message_type": "text",
        "content": json.dumps({"text": f"@_user_1 {text}"}, ensure_ascii=False),
        "mentions": [{"key": "@_user_1", "id": {"open_id": "ou_robot"}, "name": "whystall"}],
    }
    event = {
        "schema": "2.0",
        "header": {
            "event_id": id or secrets.token_hex(16),
            "event_type": "im.message.receive_v1",
            "create_time": str(int(moment * 1000)),
            "token": token,
            "app_id": "cli_demo",
        },
        "event": {"sender": {"sender_id": {"open_id": sender}, "sender_type": "user"}, "message": message},
    }
    return feishu_signed(key, event, moment)


def feishu_signed(key: str, event: object, now: float) -> Post:
    """`event` encrypted and signed."""
    text = json.dumps(event).encode()
    pad = 16 - len(text) % 16
    iv = os.urandom(16)
    cipher = Cipher(algorithms.AES(hashlib.sha256(key.encode()).digest()), modes.CBC(iv)).encryptor()
    packed = iv + cipher.update(text + bytes([pad]) * pad) + cipher.finalize()
    body = json.dumps({"encrypt": base64.b64encode(packed).decode()}).encode()
    stamp, nonce = str(int(now)), secrets.token_hex(8)
    sign = hashlib.sha256(f"{stamp}{nonce}{key}".encode() + body).hexdigest()
    names = ("x-lark-request-timestamp", "x-lark-request-nonce", "x-lark-signature")
    return {**_JSON, **dict(zip(names, (stamp, nonce, sign), strict=True))}, body


def slack(
    secret: str, text: str, *, channel: str = "C0DEMO", sender: str = "U0DEMO", id: str = "", now: float | None = None
) -> Post:
    """A mention in a channel."""
    moment = time.time() if now is None else now
    said = {
        "type": "event_callback",
        "event_id": id or f"Ev{secrets.token_hex(5).upper()}",
        "authorizations": [{"user_id": "U0ROBOT", "is_bot": True}],
        "event": {
            "type": "app_mention",
            "user": sender,
            "text": f"<@U0ROBOT> {text.replace('&', '&amp;').replace('<', '&lt;').replace('>', '&gt;')}",
            "channel": channel,
            "ts": f"{moment:.6f}",
        },
    }
    return slack_signed(secret, json.dumps(said, ensure_ascii=False).encode(), _JSON, moment)


def slack_command(
    secret: str,
    text: str,
    *,
    response_url: str,
    channel: str = "C0DEMO",
    sender: str = "U0DEMO",
    now: float | None = None,
) -> Post:
    """A slash command."""
    form = {
        "command": "/whystall",
        "text": text,
        "user_id": sender,
        "user_name": "demo",
        "channel_id": channel,
        "channel_name": "training",
        "trigger_id": secrets.token_hex(8),
        "response_url": response_url,
    }
    kind = {"content-type": "application/x-www-form-urlencoded"}
    return slack_signed(secret, urlencode(form).encode(), kind, time.time() if now is None else now)


def slack_signed(secret: str, body: bytes, headers: Mapping[str, str], now: float) -> Post:
    """`body` signed."""
    stamp = str(int(now))
    sign = hmac.new(secret.encode(), f"v0:{stamp}:".encode() + body, hashlib.sha256).hexdigest()
    return {**headers, "x-slack-request-timestamp": stamp, "x-slack-signature": f"v0={sign}"}, body


def deliver(url: str, post: Post, timeout: float = 5.0) -> tuple[int, bytes]:
    """Send `post` to `url`: status and body of the answer; (0, why) where there was none."""
    headers, body = post
    request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 - the user's own address
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        return 0, str(error).encode()
