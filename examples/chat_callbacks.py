"""Build the callbacks that DingTalk, Feishu and Slack send for a message to a robot: signed, Feishu's encrypted.

Each function returns headers and body of one POST to ``/chat/NAME``; `deliver` sends it.
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

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Post = tuple[dict[str, str], bytes]
_JSON = {"content-type": "application/json; charset=utf-8"}


def dingtalk(secret: str, text: str, *, hook: str, hook_ends: int, id: str = "", now: float | None = None) -> Post:
    """Return a message in a group that mentions the robot. `hook_ends` in ms."""
    moment = int((time.time() if now is None else now) * 1000)
    mac = hmac.new(secret.encode(), f"{moment}\n{secret}".encode(), hashlib.sha256).digest()
    payload = {
        "conversationId": "cidDemo",
        "conversationType": "2",
        "conversationTitle": "训练值班群",
        "msgId": id or f"msg{secrets.token_hex(8)}",
        "msgtype": "text",
        "text": {"content": f" {text} "},
        "createAt": moment,
        "senderId": "$:LWCP_v1:$demo",
        "senderStaffId": "manager4220",
        "senderNick": "小王",
        "chatbotUserId": "$:LWCP_v1:$robot",
        "isInAtList": True,
        "sessionWebhook": hook,
        "sessionWebhookExpiredTime": hook_ends,
        "robotCode": "dingdemo",
    }
    headers = {**_JSON, "timestamp": str(moment), "sign": base64.b64encode(mac).decode()}
    return headers, json.dumps(payload, ensure_ascii=False).encode()


def feishu(key: str, token: str, text: str, *, id: str = "", now: float | None = None) -> Post:
    """Return a message in a group that mentions the robot, encrypted."""
    moment = time.time() if now is None else now
    message = {
        "message_id": f"om_{secrets.token_hex(8)}",
        "chat_id": "oc_demo",
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
        "event": {"sender": {"sender_id": {"open_id": "ou_demo"}, "sender_type": "user"}, "message": message},
    }
    return feishu_signed(key, event, moment)


def feishu_signed(key: str, event: object, now: float) -> Post:
    """Return `event` encrypted and signed."""
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


def slack(secret: str, text: str, *, id: str = "", now: float | None = None) -> Post:
    """Return a mention in a channel."""
    moment = time.time() if now is None else now
    payload = {
        "type": "event_callback",
        "event_id": id or f"Ev{secrets.token_hex(5).upper()}",
        "authorizations": [{"user_id": "U0ROBOT", "is_bot": True}],
        "event": {
            "type": "app_mention",
            "user": "U0DEMO",
            "text": f"<@U0ROBOT> {text.replace('&', '&amp;').replace('<', '&lt;').replace('>', '&gt;')}",
            "channel": "C0DEMO",
            "ts": f"{moment:.6f}",
        },
    }
    return slack_signed(secret, json.dumps(payload, ensure_ascii=False).encode(), _JSON, moment)


def slack_signed(secret: str, body: bytes, headers: Mapping[str, str], now: float) -> Post:
    """Return `body` signed."""
    stamp = str(int(now))
    sign = hmac.new(secret.encode(), f"v0:{stamp}:".encode() + body, hashlib.sha256).hexdigest()
    return {**headers, "x-slack-request-timestamp": stamp, "x-slack-signature": f"v0={sign}"}, body


def deliver(url: str, post: Post, timeout: float = 5.0) -> tuple[int, bytes]:
    """Send `post` to `url`; return status and body of the answer, or 0 and the error."""
    headers, body = post
    request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 - the user's own address
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        return 0, str(error).encode()
