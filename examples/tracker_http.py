"""HTTP for examples/tracker.py: its request handler, and the webhook that posts its events."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import queue
import re
import secrets
import threading
import time
import urllib.request
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote

if TYPE_CHECKING:
    from tracker import Tracker

_BODY_LIMIT = 4 << 20


class Hook:
    """Post events to `url` as GitLab's webhooks do, in order, from a thread; a failed one is repeated twice."""

    def __init__(self, url: str, token: str = "", signing_token: str = "") -> None:
        self._url = url
        self._token = token
        self._key = base64.b64decode(signing_token.removeprefix("whsec_")) if signing_token else b""
        self._queue: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def __call__(self, event: dict[str, Any]) -> None:
        self._queue.put(event)

    def headers(self, event: dict[str, Any], body: bytes, id: str, now: float) -> dict[str, str]:
        """Return the headers of one delivery."""
        stamp = str(int(now))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "GitLab/19.1.0",
            "X-Gitlab-Event": "Note Hook" if event["object_kind"] == "note" else "Issue Hook",
            "X-Gitlab-Event-UUID": id,
            "Idempotency-Key": id,
            "webhook-id": id,
            "webhook-timestamp": stamp,
        }
        if self._token:
            headers["X-Gitlab-Token"] = self._token
        if self._key:
            mac = hmac.new(self._key, f"{id}.{stamp}.".encode() + body, hashlib.sha256).digest()
            headers["webhook-signature"] = "v1," + base64.b64encode(mac).decode()
        return headers

    def _run(self) -> None:
        while True:
            event = self._queue.get()
            body, id = json.dumps(event).encode(), secrets.token_hex(16)
            for pause in (1, 3, None):
                request = urllib.request.Request(self._url, body, self.headers(event, body, id, time.time()))  # noqa: S310
                try:
                    with urllib.request.urlopen(request, timeout=10):  # noqa: S310
                        break
                except OSError as error:
                    print(f"webhook: {error}", flush=True)
                if pause is not None:
                    time.sleep(pause)


def handler_of(tracker: Tracker) -> type[BaseHTTPRequestHandler]:
    """Return the request handler for the API and the pages of `tracker`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # headers and body are written separately
        server_version = "GitLab-like"

        def do_GET(self) -> None:
            self._take(b"")

        def do_POST(self) -> None:
            self._read()

        do_PUT = do_POST

        def _read(self) -> None:
            length = self.headers.get("content-length", "")
            if not length.isdecimal() or int(length) > _BODY_LIMIT:
                self.close_connection = True
                self._send(413, {"Content-Type": "application/json"}, b'{"error": "413 Request Entity Too Large"}')
                return
            self._take(self.rfile.read(int(length)))

        def _take(self, body: bytes) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            if self.path.startswith("/api/v4/"):
                self._send(*tracker.answer(self.command, self.path, headers, body))
                return
            html_type = {"Content-Type": "text/html; charset=utf-8"}
            found = re.fullmatch(rf"/{re.escape(quote(tracker.project))}/-/issues(?:/(\d+))?(/act)?", self.path)
            if self.path == "/" or (found and found[1] is None and not found[2]):
                self._send(200, html_type, (tracker.page() or "").encode())
            elif found and found[2] and self.command == "POST" and self._same_origin():
                form = {name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
                tracker.act(int(found[1]), form.get("what", ""), form.get("by") or "alice", form.get("text", ""))
                self._send(303, {"Location": self.path.removesuffix("/act")}, b"")
            elif found and not found[2] and self.command == "GET" and (page := tracker.page(int(found[1]))):
                self._send(200, html_type, page.encode())
            else:
                self._send(404, {"Content-Type": "text/plain"}, b"not here")

        def _same_origin(self) -> bool:
            """Return whether a form is from our own page: other sites may post here too."""
            return self.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")

        def _send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header(
                "Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'"
            )
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            if self.command != "GET":
                print(f"{self.command} {self.path}: {args[1] if len(args) > 1 else ''}", flush=True)

    return Handler


class Server(ThreadingHTTPServer):
    daemon_threads = True  # do not wait for browsers that keep connections open
