"""The stand-in of the vendors: it refuses what they would, and its page shows what was said and runs nothing."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlencode

import pytest
from chat_server import VENDORS, ChatServer
from chat_vendors import Message

heard: list[tuple[str, bytes]] = []


class _Whystall(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        heard.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def whystall() -> Iterator[str]:
    heard.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Whystall) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def _post(url: str, body: bytes, kind: str = "application/json") -> tuple[int, bytes]:
    request = urllib.request.Request(url, body, {"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def _page(chats: ChatServer) -> str:
    with urllib.request.urlopen(chats.url, timeout=5) as answer:
        return answer.read().decode()


@pytest.mark.parametrize("vendor", VENDORS)
def test_what_is_said_on_the_page_is_posted_as_the_vendor_does(whystall: str, vendor: str) -> None:
    with ChatServer(whystall) as chats:
        form = urlencode({"vendor": vendor, "text": "为什么 <b>卡顿"}).encode()
        assert _post(f"{chats.url}/say", form, "application/x-www-form-urlencoded")[0] == 200
        assert [path.partition("?")[0] for path, _ in heard] == [f"/chat/{vendor}"]
        assert "为什么 &lt;b&gt;卡顿" in _page(chats)


def test_where_nobody_listens_the_page_says_so() -> None:
    with ChatServer("http://127.0.0.1:9") as chats:
        _, page = _post(f"{chats.url}/say", b"vendor=slack&text=x", "application/x-www-form-urlencoded")
        assert b"whystall answered nothing" in page


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/robot/send?access_token=wrong", {"msgtype": "markdown"}, 300005),
        ("/robot/send?access_token=demo-dingtalk-access-token", {"msgtype": "markdown"}, 310000),
        ("/robot/sendBySession?session=none", {}, 300001),
        ("/open-apis/bot/v2/hook/none", {}, 19001),
        ("/open-apis/bot/v2/hook/demo-feishu-hook-id", {"timestamp": "1", "sign": "x"}, 19021),
        ("/open-apis/im/v1/messages?receive_id_type=chat_id", {}, 99991663),
        ("/open-apis/auth/v3/tenant_access_token/internal", {"app_id": "cli_demo"}, 10014),
        ("/slack/chat.postMessage", {"channel": "C1", "text": "x"}, "invalid_auth"),
        ("/cgi-bin/webhook/send?key=wrong", {"msgtype": "markdown"}, 93000),
        ("/cgi-bin/webhook/send?key=demo-wecom-robot-key", {"msgtype": "text"}, 40008),
        ("/cgi-bin/message/send?access_token=none", {"touser": "XiaoWang"}, 40014),
    ],
    ids=range(11),
)
def test_what_a_vendor_would_refuse_is_refused(path: str, body: object, code: object) -> None:
    with ChatServer() as chats:
        _, answer = _post(chats.url + path, json.dumps(body).encode())
        found = json.loads(answer)
        assert code in (found.get("errcode"), found.get("code"), found.get("error"))
        assert chats.messages == []
        assert len(chats.vendors.refused) == 1
        assert "Refused" in _page(chats)


def test_the_page_runs_nothing_of_what_was_said() -> None:
    hostile = "<script>alert(1)</script> `<img src=x onerror=alert(1)>` [x](javascript:alert(1)) \"'"
    with ChatServer() as chats:
        rich = {"type": "rich_text_section", "elements": [{"type": "text", "text": hostile}]}
        link = {"type": "rich_text_section", "elements": [{"type": "link", "url": '"><script>', "text": "x"}]}
        chats.vendors.messages += [
            Message("dingtalk", hostile, "us", hostile, hostile),
            Message("feishu", hostile, "us", hostile, [[{"tag": "text", "text": hostile}]], [hostile], [hostile]),
            Message("slack", hostile, "us", hostile, [{"type": "rich_text", "elements": [rich, link]}]),
            Message("wecom", hostile, "us", hostile, f"# {hostile}\n> {hostile}\n{hostile}"),
        ]
        page = _page(chats)
    assert "<script" not in page
    assert "<img src=x" not in page
    assert "href='javascript" not in page
    assert page.count("&lt;script&gt;") >= 8
