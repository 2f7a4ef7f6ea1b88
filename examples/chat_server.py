"""A local DingTalk, Feishu, Slack and WeCom to try whystall with, and a page to send messages.

    python examples/chat_server.py --whystall http://127.0.0.1:8321

It accepts what the vendors document, refuses everything else as they would, and shows messages as they would.
A message from the page, or from --say, reaches whystall as the vendor's signed callback. The matching settings are
printed, with the variables for their secrets. Messages are kept in memory. Only this machine can reach it.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qs, urlencode, urlsplit

import chat_callbacks
from chat_page import page
from chat_vendors import Answer, Message, Secrets, Vendors

Vendor = Literal["dingtalk", "feishu", "slack", "wecom"]
VENDORS: tuple[Vendor, ...] = ("dingtalk", "feishu", "slack", "wecom")
_BODY_LIMIT = 12 << 20


class ChatServer:
    """The server, also for tests: ``with ChatServer() as chats: ...``. `whystall`: the address for callbacks; the chats
    in its settings are named as the vendors.
    """

    def __init__(
        self, whystall: str = "", port: int = 0, given: Secrets | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.vendors = Vendors(given, clock)
        self.whystall = whystall
        self._clock = clock
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.url = self.vendors.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> ChatServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def messages(self) -> list[Message]:
        """Return the messages of whystall and of people."""
        return self.vendors.messages

    def callback(self, vendor: Vendor, text: str, id: str = "") -> chat_callbacks.Post:
        """Return the callback of `vendor` for the message `text`; `id` empty: a new one."""
        known, now = self.vendors.secrets, self._clock()
        if vendor == "dingtalk":
            hook, ends = self.vendors.session("训练值班群")
            return chat_callbacks.dingtalk(known.dingtalk_app, text, hook=hook, hook_ends=ends, id=id, now=now)
        if vendor == "feishu":
            return chat_callbacks.feishu(known.feishu_encrypt, known.feishu_verify, text, id=id, now=now)
        if vendor == "wecom":
            keys = chat_callbacks.WeComKeys(known.wecom_token, known.wecom_aes_key, known.wecom_corp)
            return chat_callbacks.wecom(keys, text, id=id, now=now)
        return chat_callbacks.slack(known.slack_signing, text, id=id, now=now)

    def say(self, vendor: Vendor, text: str, id: str = "") -> tuple[int, bytes]:
        """Send `text` to whystall; return status and body of its answer."""
        where = {"dingtalk": "训练值班群", "feishu": "oc_demo", "slack": "C0DEMO", "wecom": "XiaoWang"}[vendor]
        self.messages.append(Message(vendor, where, "a person", "", text))
        return chat_callbacks.deliver(f"{self.whystall}/chat/{vendor}", self.callback(vendor, text, id))

    def wait(self, count: int, seconds: float = 10.0, vendor: Vendor | None = None) -> list[Message]:
        """Return whystall's messages (through `vendor`) once there are `count`; fewer after `seconds`."""
        ends = time.monotonic() + seconds
        while True:
            found = [one for one in self.messages if one.by == "us" and vendor in (None, one.vendor)]
            if len(found) >= count or time.monotonic() > ends:
                return found
            time.sleep(0.02)

    def environment(self) -> dict[str, str]:
        """Return the variables with the secrets for the settings."""
        known = self.vendors.secrets
        return {
            "DEMO_DINGTALK_APP": known.dingtalk_app,
            "DEMO_DINGTALK_WEBHOOK": f"{self.url}/robot/send?access_token={known.dingtalk_token}",
            "DEMO_DINGTALK_SIGN": known.dingtalk_sign,
            "DEMO_FEISHU_ENCRYPT": known.feishu_encrypt,
            "DEMO_FEISHU_VERIFY": known.feishu_verify,
            "DEMO_FEISHU_APP": known.feishu_app,
            "DEMO_SLACK_SIGNING": known.slack_signing,
            "DEMO_SLACK_BOT": known.slack_bot,
            "DEMO_WECOM_TOKEN": known.wecom_token,
            "DEMO_WECOM_AES_KEY": known.wecom_aes_key,
            "DEMO_WECOM_APP": known.wecom_app,
            "DEMO_WECOM_WEBHOOK": f"{self.url}/cgi-bin/webhook/send?key={known.wecom_hook}",
        }

    def settings(self) -> str:
        """Return the chats for whystall's settings file."""
        host = urlsplit(self.url).netloc
        return f"""[chat.dingtalk]
kind = "dingtalk"
api = "{self.url}"
app_key = "{self.vendors.secrets.dingtalk_key}"
app_secret = {{env = "DEMO_DINGTALK_APP"}}
webhook = {{env = "DEMO_DINGTALK_WEBHOOK"}}
sign = {{env = "DEMO_DINGTALK_SIGN"}}
hosts = ["{host}"]
may_change = ["manager4220"]

[chat.feishu]
kind = "feishu"
api = "{self.url}"
encrypt_key = {{env = "DEMO_FEISHU_ENCRYPT"}}
verification_token = {{env = "DEMO_FEISHU_VERIFY"}}
app_id = "{self.vendors.secrets.feishu_app_id}"
app_secret = {{env = "DEMO_FEISHU_APP"}}
to = "oc_demo"
may_change = ["ou_demo"]

[chat.slack]
kind = "slack"
api = "{self.url}/slack"
signing_secret = {{env = "DEMO_SLACK_SIGNING"}}
bot_token = {{env = "DEMO_SLACK_BOT"}}
to = "C0DEMO"
may_change = ["U0DEMO"]

[chat.wecom]
kind = "wecom"
api = "{self.url}"
corp_id = "{self.vendors.secrets.wecom_corp}"
token = {{env = "DEMO_WECOM_TOKEN"}}
encoding_aes_key = {{env = "DEMO_WECOM_AES_KEY"}}
corp_secret = {{env = "DEMO_WECOM_APP"}}
agent_id = 1000002
webhook = {{env = "DEMO_WECOM_WEBHOOK"}}
may_change = ["XiaoWang"]
"""


def _handler(server: ChatServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, query = urlsplit(self.path).path, urlsplit(self.path).query
            if path.startswith("/cgi-bin/"):
                self._answer(server.vendors.take(path, query, {}, b""))
            elif path.startswith("/images/"):
                image = server.vendors.images.get(path.removeprefix("/images/"))
                self._answer(Answer(image, kind="image/png") if image else Answer(b"", 404))
            elif path == "/":
                note = parse_qs(query).get("note", [""])[0]
                self._answer(Answer(page(server.vendors, note).encode(), kind="text/html; charset=utf-8"))
            else:
                self._answer(Answer(b"not found", 404, "text/plain"))

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            if length > _BODY_LIMIT:
                self._answer(Answer(b"too large", 413, "text/plain"))
                self.close_connection = True
                return
            body = self.rfile.read(length)
            parts = urlsplit(self.path)
            if parts.path == "/say":
                self._say({name: values[0] for name, values in parse_qs(body.decode()).items()})
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            self._answer(server.vendors.take(parts.path, parts.query, headers, body))

        def _say(self, form: dict[str, str]) -> None:
            vendor = next((one for one in VENDORS if one == form.get("vendor")), VENDORS[0])
            note = "" if form.get("text") else "Say something."
            if not note and not server.whystall:
                note = "Start this server with --whystall URL to deliver messages."
            if not note:
                status, _ = server.say(vendor, form["text"])
                note = "" if status == 200 else f"whystall answered {status or 'nothing'}"
            self._answer(Answer(b"", 303, headers={"Location": f"/?{urlencode({'note': note})}" if note else "/"}))

        def _answer(self, answer: Answer) -> None:
            self.send_response(answer.status)
            headers = {"Content-Type": answer.kind, "Content-Length": str(len(answer.body)), **answer.headers}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=8930, help="on 127.0.0.1; 0 for any free one")
    parser.add_argument("--whystall", default="", metavar="URL", help="its address, for callbacks")
    parser.add_argument("--say", metavar="TEXT", help="send this message at once; answers are printed")
    parser.add_argument("--in", dest="vendor", choices=VENDORS, default="dingtalk", help="the chat for --say")
    given = parser.parse_args()
    with ChatServer(given.whystall, given.port) as server:
        print(f"chats: {server.url}/\n\n{server.settings()}", flush=True)
        print("\n".join(f"export {name}='{value}'" for name, value in server.environment().items()), flush=True)
        try:
            if given.say:
                status, _ = server.say(given.vendor, given.say)
                print(f"\nsent to {given.whystall}/chat/{given.vendor}: HTTP {status}", flush=True)
            shown = 0
            while True:
                time.sleep(0.2)
                for one in server.messages[shown:]:
                    print(f"\n{one.vendor} {one.by}: {one.title}\n{one.content}", flush=True)
                shown = len(server.messages)
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main()
