"""A queue of messages over HTTP: a request for one waits until there is one, for as long as it asks to."""

from __future__ import annotations

import queue
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from joblog import Job

JOB = Job()
MESSAGES: queue.Queue[bytes] = queue.Queue(JOB.settings["most"])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        wait_s = float(parse_qs(urlsplit(self.path).query)["wait"][0])
        try:
            message = MESSAGES.get(timeout=wait_s) if wait_s else MESSAGES.get_nowait()
        except queue.Empty:
            message = b""
        self.send_response(200 if message else 204)
        self.send_header("Content-Length", str(len(message)))
        self.end_headers()
        self.wfile.write(message)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", JOB.settings["port"]), Handler)
    JOB.emit("ready")
    server.serve_forever()


if __name__ == "__main__":
    main()
