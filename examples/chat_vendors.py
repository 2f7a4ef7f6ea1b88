"""Check the messages that a robot sends to DingTalk, Feishu, Slack and WeCom, as their documents specify.

Written from the documents and independent of whystall's sender, so that a mistake there is detected here.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any
from urllib.parse import parse_qs, parse_qsl

Json = dict[str, Any]
PNG = b"\x89PNG\r\n\x1a\n"
_HOUR = 3600.0
_DINGTALK_MINUTE, _FEISHU_SECOND, _WECOM_MINUTE = 20, 5, 30
_ELEMENTS = {"text", "a", "at", "img", "hr", "emotion", "code_block", "md"}
_BLOCKS = {"rich_text", "section", "image", "header", "divider", "context"}


@dataclass(frozen=True)
class Secrets:
    """The secrets that whystall and this server share."""

    dingtalk_app: str = "demo-dingtalk-app-secret"
    dingtalk_token: str = "demo-dingtalk-access-token"  # noqa: S105
    dingtalk_sign: str = "SECdemo-dingtalk"
    dingtalk_key: str = "dingdemo"
    feishu_app_id: str = "cli_demo"
    feishu_app: str = "demo-feishu-app-secret"
    feishu_encrypt: str = "demo-feishu-encrypt-key"
    feishu_verify: str = "demo-feishu-verification-token"
    feishu_hook: str = "demo-feishu-hook-id"
    feishu_sign: str = "demo-feishu-sign"
    slack_signing: str = "demo-slack-signing-secret"
    slack_bot: str = "xoxb-demo-slack-token"
    slack_hook: str = "TDEMO/BDEMO/demo-slack-webhook"
    wecom_corp: str = "ww0123456789abcdef"
    wecom_token: str = "demowecomcallbacktoken"  # noqa: S105
    wecom_aes_key: str = "6qkdMrq68nTKduznJYO1A37W2oEgpkMUvkttRToqhUt"
    wecom_app: str = "demo-wecom-corp-secret"
    wecom_hook: str = "demo-wecom-robot-key"


@dataclass
class Message:
    """One message in a chat. `content`: in the vendor's format; `by`: ``us`` is whystall. `mentions`: people that it
    notifies, which is never intended."""

    vendor: str
    conversation: str
    by: str
    title: str
    content: Any
    pictures: list[str] = field(default_factory=list)
    mentions: list[str] = field(default_factory=list)
    at: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    body: bytes
    status: int = 200
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class Refusal(Exception):
    """A request that the vendor would refuse."""

    def __init__(self, answer: Answer, why: str) -> None:
        super().__init__(why)
        self.answer = answer


def as_json(value: object, status: int = 200) -> Answer:
    """Return `value` as an answer."""
    return Answer(json.dumps(value, ensure_ascii=False).encode(), status)


def dingtalk_error(code: int, message: str) -> Refusal:
    """Return DingTalk's refusal, which has status 200."""
    return Refusal(as_json({"errcode": code, "errmsg": message}), f"DingTalk {code}: {message}")


def dingtalk_api_error(code: str, status: int = 400) -> Refusal:
    """Return the refusal of DingTalk's newer API: a status and a code in words."""
    return Refusal(as_json({"code": code, "message": code, "requestid": "demo"}, status), f"DingTalk: {code}")


def feishu_error(code: int, message: str, status: int = 400) -> Refusal:
    """Return Feishu's refusal: status 400, for a custom robot 200."""
    return Refusal(as_json({"code": code, "msg": message}, status), f"Feishu {code}: {message}")


def slack_error(error: str) -> Refusal:
    """Return Slack's refusal, which has status 200."""
    return Refusal(as_json({"ok": False, "error": error}), f"Slack: {error}")


def wecom_error(code: int, message: str) -> Refusal:
    """Return WeCom's refusal, which has status 200."""
    return Refusal(as_json({"errcode": code, "errmsg": message}), f"WeCom {code}: {message}")


class Vendors:
    """The vendors. `messages`: in order of arrival; `refused`: why requests were refused; `faults`: answers that
    the next requests get instead, to test retries.
    """

    def __init__(self, given: Secrets | None = None, clock: Callable[[], float] = time.time) -> None:
        self.secrets = given or Secrets()
        self.url = ""
        self.messages: list[Message] = []
        self.refused: list[str] = []
        self.requests: list[str] = []
        self.faults: deque[Answer] = deque()
        self.sessions: dict[str, tuple[str, float]] = {}
        self.images: dict[str, bytes] = {}
        self._clock = clock
        self._lock = threading.RLock()
        self._tokens: dict[str, float] = {}
        self._uuids: dict[str, float] = {}
        self._uploads: dict[str, tuple[str, int]] = {}
        self._sent_at: dict[str, deque[float]] = {}

    def session(self, conversation: str, lasts: float = 5400.0) -> tuple[str, int]:
        """Return a session address of DingTalk for `conversation`, and when it expires, in ms."""
        key = secrets.token_hex(8)
        ends = self._clock() + lasts
        self.sessions[key] = (conversation, ends)
        return f"{self.url}/robot/sendBySession?session={key}", int(ends * 1000)

    def take(self, path: str, query: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Handle one request."""
        with self._lock:
            self.requests.append(path)
            if self.faults:
                return self.faults.popleft()
            try:
                return self._route(path, dict(parse_qsl(query, keep_blank_values=True)), headers, body)
            except Refusal as refusal:
                self.refused.append(str(refusal))
                return refusal.answer

    def _route(self, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> Answer:
        if path.startswith("/v1.0/"):
            return self._dingtalk_app(path, headers, body)
        if path.startswith("/robot/"):
            return self._dingtalk(path, query, headers, body)
        if path.startswith("/open-apis/"):
            return self._feishu(path.removeprefix("/open-apis"), query, headers, body)
        if path.startswith("/cgi-bin/"):
            return self._wecom(path.removeprefix("/cgi-bin"), query, body)
        return self._slack(path, headers, body)

    def _limit_rate(self, key: str, most: int, seconds: float, refusal: Refusal) -> None:
        times = self._sent_at.setdefault(key, deque())
        now = self._clock()
        while times and now - times[0] > seconds:
            times.popleft()
        if len(times) >= most:
            raise refusal
        times.append(now)

    # --- DingTalk -------------------------------------------------------------------------------------------------

    def _dingtalk(self, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> Answer:
        if not headers.get("content-type", "").startswith("application/json"):
            raise dingtalk_error(43004, "无效的HTTP HEADER Content-Type")
        now = self._clock()
        if path == "/robot/sendBySession":
            conversation, ends = self.sessions.get(query.get("session", ""), ("", 0.0))
            if now >= ends:
                raise dingtalk_error(300001, "session not exists or expired")
        elif path == "/robot/send":
            conversation = "custom robot"
            if query.get("access_token") != self.secrets.dingtalk_token:
                raise dingtalk_error(300005, "token is not exist")
            timestamp, secret = query.get("timestamp", "0"), self.secrets.dingtalk_sign
            mac = hmac.new(secret.encode(), f"{timestamp}\n{secret}".encode(), hashlib.sha256).digest()
            if not timestamp.isdigit() or abs(int(timestamp) / 1000 - now) > _HOUR:
                raise dingtalk_error(310000, "invalid timestamp")
            if query.get("sign") != base64.b64encode(mac).decode():
                raise dingtalk_error(310000, "sign not match")
        else:
            raise dingtalk_error(404, "请求的URI地址不存在")
        payload = _json(body, dingtalk_error(40035, "不合法的参数"))
        content = payload.get("markdown")
        if payload.get("msgtype") != "markdown" or not isinstance(content, dict):
            raise dingtalk_error(400105, "不支持的消息类型")
        title, text = content.get("title"), content.get("text")
        if not title or not isinstance(title, str) or not text or not isinstance(text, str):
            raise dingtalk_error(40035, "缺少参数 markdown.title/text")
        if len(text) > 5000 or len(title) > 64:
            raise dingtalk_error(34016, "消息内容长度超过限制")
        self._limit_rate(
            "dingtalk", _DINGTALK_MINUTE, 60.0, dingtalk_error(130101, "send too fast, exceed 20 times per minute")
        )
        at = payload.get("at") or {}
        mentions = ["@all"] if at.get("isAtAll") else [f"@{who}" for who in at.get("atMobiles") or []]
        pictures = re.findall(r"!\[[^\]]*\]\((https?://[^)\s]+)\)", text)
        self.messages.append(Message("dingtalk", conversation, "us", title, text, pictures, mentions))
        return as_json({"errcode": 0, "errmsg": "ok"})

    def _dingtalk_app(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Handle messages that an app's robot sends without being asked."""
        payload = _json(body, dingtalk_api_error("invalidParameter.param.invalid"))
        if path == "/v1.0/oauth2/accessToken":
            if (payload.get("appKey"), payload.get("appSecret")) != (
                self.secrets.dingtalk_key,
                self.secrets.dingtalk_app,
            ):
                raise dingtalk_api_error("invalidClientIdOrSecret")
            token = secrets.token_hex(16)
            self._tokens[token] = self._clock() + 7200
            return as_json({"accessToken": token, "expireIn": 7200})
        if self._clock() >= self._tokens.get(headers.get("x-acs-dingtalk-access-token", ""), 0.0):
            raise dingtalk_api_error("InvalidAuthentication", 401)
        if payload.get("robotCode") != self.secrets.dingtalk_key:
            raise dingtalk_api_error("invalidParameter.robotCode.empty")
        text = payload.get("msgParam")
        if payload.get("msgKey") != "sampleMarkdown" or not isinstance(text, str):
            raise dingtalk_api_error("invalidParameter.msgParam.invalid")
        if len(text.encode()) > 15_000:
            raise dingtalk_api_error("invalidParameter.msgParam.tooLong")
        content = _json(text.encode(), dingtalk_api_error("invalidParameter.msgParam.invalid"))
        people = payload.get("userIds")
        lists: tuple[str, ...]
        if path == "/v1.0/robot/groupMessages/send" and payload.get("openConversationId"):
            where, lists = str(payload["openConversationId"]), ()
        elif path == "/v1.0/robot/oToMessages/batchSend" and isinstance(people, list) and 0 < len(people) <= 20:
            where, lists = ", ".join(people), ("invalidStaffIdList", "flowControlledStaffIdList")
        else:
            raise dingtalk_api_error("miss.openConversationId")
        pictures = re.findall(r"!\[[^\]]*\]\((https?://[^)\s]+)\)", content["text"])
        self.messages.append(Message("dingtalk", where, "us", content["title"], content["text"], pictures))
        empty: dict[str, list[str]] = {name: [] for name in lists}
        return as_json({"processQueryKey": secrets.token_hex(8), **empty})

    # --- Feishu ---------------------------------------------------------------------------------------------------

    def _feishu(self, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> Answer:
        known, now = self.secrets, self._clock()
        if path == "/auth/v3/tenant_access_token/internal":
            asked = _json(body, feishu_error(10003, "invalid param"))
            if (asked.get("app_id"), asked.get("app_secret")) != (known.feishu_app_id, known.feishu_app):
                raise feishu_error(10014, "app secret invalid", 200)
            token = f"t-{secrets.token_hex(12)}"
            self._tokens[token] = now + 7200
            return as_json({"code": 0, "msg": "ok", "tenant_access_token": token, "expire": 7200})
        if path.startswith("/bot/v2/hook/"):
            return self._feishu_robot(path, body, now)
        if now >= self._tokens.get(headers.get("authorization", "").removeprefix("Bearer "), 0.0):
            raise feishu_error(99991663, "Invalid access token for authorization")
        if path == "/im/v1/images":
            return self._feishu_image(headers, body)
        return self._feishu_message(path, query, body, now)

    def _feishu_robot(self, path: str, body: bytes, now: float) -> Answer:
        if path != f"/bot/v2/hook/{self.secrets.feishu_hook}":
            raise feishu_error(19001, "param invalid: incoming webhook access token invalid", 200)
        if len(body) > 20 * 1024:
            raise feishu_error(9499, "request body too large", 200)
        payload = _json(body, feishu_error(9499, "Bad Request", 200))
        timestamp = payload.get("timestamp")
        if not isinstance(timestamp, str) or not timestamp.isdigit() or abs(int(timestamp) - now) > _HOUR:
            raise feishu_error(19021, "sign match fail or timestamp is not within one hour from current time", 200)
        mac = hmac.new(f"{timestamp}\n{self.secrets.feishu_sign}".encode(), digestmod=hashlib.sha256).digest()
        if payload.get("sign") != base64.b64encode(mac).decode():
            raise feishu_error(19021, "sign match fail or timestamp is not within one hour from current time", 200)
        if payload.get("msg_type") != "post":
            raise feishu_error(19002, "params error, msg_type need", 200)
        self._limit_rate("feishu robot", _FEISHU_SECOND, 1.0, feishu_error(11232, "frequency limited", 200))
        self._post("custom robot", (payload.get("content") or {}).get("post"), 200)
        return as_json({"code": 0, "msg": "success", "StatusCode": 0, "StatusMessage": "success", "data": {}})

    def _feishu_image(self, headers: Mapping[str, str], body: bytes) -> Answer:
        head = f"Content-Type: {headers.get('content-type', '')}\r\n\r\n".encode()
        form = BytesParser(policy=HTTP).parsebytes(head + body)
        parts: dict[str, Any] = {
            str(part.get_param("name", header="content-disposition")): part.get_payload(decode=True)
            for part in form.walk()
            if not part.is_multipart()
        }
        image = parts.get("image")
        if parts.get("image_type") != b"message" or not isinstance(image, bytes) or not image.startswith(PNG):
            raise feishu_error(234001, "Invalid request param.")
        key = f"img_{secrets.token_hex(8)}"
        self.images[key] = image
        return as_json({"code": 0, "msg": "success", "data": {"image_key": key}})

    def _feishu_message(self, path: str, query: Mapping[str, str], body: bytes, now: float) -> Answer:
        payload = _json(body, feishu_error(230001, "Your request contains an invalid request parameter."))
        reply = re.fullmatch(r"/im/v1/messages/(om_[\w-]+)/reply", path)
        if not reply and not (path == "/im/v1/messages" and query.get("receive_id_type") and payload.get("receive_id")):
            raise feishu_error(230001, "Your request contains an invalid request parameter.")
        if len(body) > 30 * 1024:
            raise feishu_error(230025, "The length of the message content reaches its limit.")
        uuid = payload.get("uuid", "")
        if len(uuid) > 50:
            raise feishu_error(230001, "uuid is too long")
        if uuid and now - self._uuids.get(uuid, 0.0) < _HOUR:
            return as_json({"code": 0, "msg": "success", "data": {"message_id": "om_before"}})
        if payload.get("msg_type") != "post" or not isinstance(payload.get("content"), str):
            raise feishu_error(230001, "invalid msg_type or content")
        where = f"reply to {reply[1]}" if reply else str(payload["receive_id"])
        self._limit_rate(
            f"feishu {where}", _FEISHU_SECOND, 1.0, feishu_error(230020, "This operation triggers the frequency limit.")
        )
        self._post(
            where,
            _json(payload["content"].encode(), feishu_error(230001, "content is not a string in json format")),
            400,
        )
        self._uuids[uuid] = now
        return as_json({"code": 0, "msg": "success", "data": {"message_id": f"om_{secrets.token_hex(8)}"}})

    def _post(self, conversation: str, post: Any, status: int) -> None:
        """Check a ``post`` and keep its first language as a message."""
        wrong = feishu_error(230001, "invalid post", status)
        if not isinstance(post, dict) or not post or not set(post) <= {"zh_cn", "en_us", "ja_jp"}:
            raise wrong
        shown = next(iter(post.values()))
        if not isinstance(shown, dict) or not isinstance(shown.get("content"), list):
            raise wrong
        mentions, pictures = [], []
        for paragraph in shown["content"]:
            for element in paragraph:
                kind = element.get("tag")
                if kind not in _ELEMENTS or (kind in ("text", "a") and not isinstance(element.get("text"), str)):
                    raise wrong
                if kind == "img":
                    if element.get("image_key") not in self.images or len(paragraph) > 1:
                        raise feishu_error(230099, "Failed to create card content: invalid image_key", status)
                    pictures.append(f"/images/{element['image_key']}")
                mentions += [f"@{element.get('user_id')}"] if kind == "at" else []
        self.messages.append(
            Message("feishu", conversation, "us", str(shown.get("title", "")), shown["content"], pictures, mentions)
        )

    # --- Slack ----------------------------------------------------------------------------------------------------

    def _slack(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        if path.startswith("/upload/"):
            key = path.removeprefix("/upload/")
            file, length = self._uploads.pop(key, ("", -1))
            if len(body) != length:
                raise Refusal(Answer(b"bad upload", 400, "text/plain"), "Slack: an upload of another length")
            self.images[file] = body
            return Answer(f"OK - {length}".encode(), kind="text/plain")
        if path.startswith("/services/"):
            return self._slack_hook(path, body)
        if headers.get("authorization", "") != f"Bearer {self.secrets.slack_bot}":
            raise slack_error("invalid_auth")
        form = {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
        match path:
            case "/slack/chat.postMessage":
                payload = _json(body, slack_error("invalid_json"))
                if not payload.get("channel"):
                    raise slack_error("channel_not_found")
                self._limit_rate(f"slack {payload['channel']}", 5, 1.0, _slack_busy())
                self._blocks(str(payload["channel"]), payload, str(payload.get("thread_ts", "")))
                return as_json({"ok": True, "ts": f"{self._clock():.6f}", "channel": payload["channel"]})
            case "/slack/files.getUploadURLExternal":
                if not form.get("filename") or not form.get("length", "").isdigit():
                    raise slack_error("invalid_arguments")
                key, file = secrets.token_hex(8), f"F{secrets.token_hex(5).upper()}"
                self._uploads[key] = (file, int(form["length"]))
                return as_json({"ok": True, "upload_url": f"{self.url}/upload/{key}", "file_id": file})
            case "/slack/files.completeUploadExternal":
                files = json.loads(form.get("files", "[]"))
                if not files or any(one.get("id") not in self.images for one in files) or not form.get("channel_id"):
                    raise slack_error("invalid_arguments")
                pictures = [f"/images/{one['id']}" for one in files]
                payload = {"text": form.get("initial_comment", ""), "blocks": json.loads(form.get("blocks", "[]"))}
                self._blocks(form["channel_id"], payload, form.get("thread_ts", ""), pictures)
                return as_json({"ok": True, "files": [{"id": one["id"]} for one in files]})
        raise slack_error("unknown_method")

    def _slack_hook(self, path: str, body: bytes) -> Answer:
        if path != f"/services/{self.secrets.slack_hook}":
            raise Refusal(Answer(b"no_service", 404, "text/plain"), "Slack: no_service")
        channel = "incoming webhook"
        wrong = Refusal(Answer(b"invalid_payload", 400, "text/plain"), "Slack: invalid_payload")
        self._limit_rate(f"slack {channel}", 5, 1.0, _slack_busy())
        self._blocks(channel, _json(body, wrong), "")
        return Answer(b"ok", kind="text/plain")

    def _blocks(self, channel: str, payload: Json, thread: str, pictures: list[str] | None = None) -> None:
        blocks, text = payload.get("blocks") or [], payload.get("text", "")
        if not blocks and not text:
            raise slack_error("no_text")
        if len(blocks) > 50 or any(block.get("type") not in _BLOCKS for block in blocks):
            raise slack_error("invalid_blocks")
        shown = list(pictures or [])
        mentions = re.findall(r"<([@!][^>]*)>", text)
        for element in _walk(blocks):
            match element.get("type"):
                case "image":
                    shown.append(str(element.get("image_url", "")))
                case "user" | "usergroup" | "broadcast":
                    mentions.append(str(element))
                case "mrkdwn":
                    mentions += re.findall(r"<([@!][^>]*)>", str(element.get("text")))
        where = f"{channel} (thread {thread})" if thread else channel
        self.messages.append(Message("slack", where, "us", text, blocks, shown, mentions))

    # --- WeCom ----------------------------------------------------------------------------------------------------

    def _wecom(self, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        known, now = self.secrets, self._clock()
        if path == "/gettoken":
            if query.get("corpid") != known.wecom_corp:
                raise wecom_error(40013, "invalid corpid")
            if query.get("corpsecret") != known.wecom_app:
                raise wecom_error(40001, "invalid credential")
            token = f"wecom{secrets.token_hex(16)}"
            self._tokens[token] = now + 7200
            return as_json({"errcode": 0, "errmsg": "ok", "access_token": token, "expires_in": 7200})
        if path == "/webhook/send":
            if query.get("key") != known.wecom_hook:
                raise wecom_error(93000, "invalid webhook url")
            return self._wecom_message("group robot", body, 4096, 20)
        if (ends := self._tokens.get(query.get("access_token", ""))) is None:
            raise wecom_error(40014, "invalid access_token")
        if now >= ends:
            raise wecom_error(42001, "access_token expired")
        payload = _json(body, wecom_error(47001, "data format error"))
        if path == "/appchat/send":
            if payload.get("chatid") != "demochat":
                raise wecom_error(86001, "invalid chatid")
            return self._wecom_message("demochat", body, 2048, _WECOM_MINUTE)
        if path != "/message/send":
            raise wecom_error(404, "unknown method")
        people = payload.get("touser")
        if payload.get("agentid") != 1000002 or not isinstance(people, str):
            raise wecom_error(40056, "invalid agentid")
        if people not in ("XiaoWang", "zhang.san"):
            raise wecom_error(81013, "user & party & tag all invalid")
        return self._wecom_message(people, body, 2048, _WECOM_MINUTE)

    def _wecom_message(self, conversation: str, body: bytes, most: int, minute: int) -> Answer:
        payload = _json(body, wecom_error(47001, "data format error"))
        if payload.get("msgtype") != "markdown":
            raise wecom_error(40008, "invalid message type")
        text = (payload.get("markdown") or {}).get("content")
        if not isinstance(text, str) or not text:
            raise wecom_error(44004, "content is empty")
        if len(text.encode()) > most:
            raise wecom_error(45002, "content exceeds max length")
        self._limit_rate(f"wecom {conversation}", minute, 60.0, wecom_error(45009, "api freq out of limit"))
        mentions = re.findall(r"<(@[^>]*)>", text)
        self.messages.append(Message("wecom", conversation, "us", text.partition("\n")[0], text, [], mentions))
        return as_json({"errcode": 0, "errmsg": "ok", "msgid": secrets.token_hex(8)})


def _slack_busy() -> Refusal:
    body = json.dumps({"ok": False, "error": "ratelimited"}).encode()
    return Refusal(Answer(body, 429, headers={"Retry-After": "1"}), "Slack: ratelimited")


def _walk(value: Any) -> list[Json]:
    """Return all objects within `value`."""
    if isinstance(value, list):
        return [found for one in value for found in _walk(one)]
    if isinstance(value, dict):
        return [value, *(found for one in value.values() for found in _walk(one))]
    return []


def _json(body: bytes, refusal: Refusal) -> Json:
    try:
        value = json.loads(body)
    except ValueError:
        raise refusal from None
    if not isinstance(value, dict):
        raise refusal
    return value
