"""Build the callbacks that chat vendors send for a message to a robot: signed, those of Feishu and WeCom encrypted.

Each function returns one POST to ``/chat/NAME``; `deliver` sends it.
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
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlencode
from xml.sax.saxutils import escape

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes


class Post(NamedTuple):
    """One POST. `query`: parameters of the address."""

    headers: dict[str, str]
    body: bytes
    query: Mapping[str, str] = {}


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
    return Post(headers, json.dumps(payload, ensure_ascii=False).encode())


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
    return Post({**_JSON, **dict(zip(names, (stamp, nonce, sign), strict=True))}, body)


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
    return Post({**headers, "x-slack-request-timestamp": stamp, "x-slack-signature": f"v0={sign}"}, body)


@dataclass(frozen=True)
class WeComKeys:
    """What an app of WeCom's callbacks is set up with. `aes_key`: 43 characters; `corp`: CorpID."""

    token: str
    aes_key: str
    corp: str


def wecom(keys: WeComKeys, text: str, *, id: str = "", now: float | None = None) -> Post:
    """Return a message that somebody writes to the app, in XML."""
    moment = time.time() if now is None else now
    message = (
        f"<xml><ToUserName><![CDATA[{keys.corp}]]></ToUserName><FromUserName><![CDATA[XiaoWang]]></FromUserName>"
        f"<CreateTime>{int(moment)}</CreateTime><MsgType><![CDATA[text]]></MsgType>"
        f"<Content>{escape(text)}</Content><MsgId>{id or secrets.randbelow(2**62)}</MsgId>"
        "<AgentID>1000002</AgentID></xml>"
    )
    encrypted, query = wecom_signed(keys, message.encode(), moment)
    body = (
        f"<xml><ToUserName><![CDATA[{keys.corp}]]></ToUserName><Encrypt><![CDATA[{encrypted}]]></Encrypt>"
        "<AgentID><![CDATA[1000002]]></AgentID></xml>"
    )
    return Post({"content-type": "text/xml"}, body.encode(), query)


def wecom_signed(keys: WeComKeys, message: bytes, now: float) -> tuple[str, dict[str, str]]:
    """Return the ciphertext of `message` and the parameters that sign it."""
    packed = os.urandom(16) + len(message).to_bytes(4, "big") + message + keys.corp.encode()
    pad = 32 - len(packed) % 32
    return wecom_encrypted(keys, packed + bytes([pad]) * pad, now)


def wecom_encrypted(keys: WeComKeys, packed: bytes, now: float) -> tuple[str, dict[str, str]]:
    """Return the ciphertext of whole blocks, and the parameters that sign it."""
    key = base64.b64decode(f"{keys.aes_key}=")
    cipher = Cipher(algorithms.AES(key), modes.CBC(key[:16])).encryptor()
    encrypted = base64.b64encode(cipher.update(packed) + cipher.finalize()).decode()
    stamp, nonce = str(int(now)), secrets.token_hex(5)
    sign = hashlib.sha1("".join(sorted([keys.token, stamp, nonce, encrypted])).encode()).hexdigest()  # noqa: S324
    return encrypted, {"msg_signature": sign, "timestamp": stamp, "nonce": nonce}


def deliver(url: str, post: Post, timeout: float = 5.0) -> tuple[int, bytes]:
    """Send `post` to `url`; return status and body of the answer, or 0 and the error."""
    address = f"{url}?{urlencode(post.query)}" if post.query else url
    request = urllib.request.Request(address, post.body, post.headers, method="POST")  # noqa: S310 - the user's own address
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        return 0, str(error).encode()
