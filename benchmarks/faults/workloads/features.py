"""Serve features over HTTP, one thread per connection."""

from __future__ import annotations

import hashlib
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from joblog import Job

JOB = Job()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        with JOB.phase("answer"):
            body = self.features()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def features(self) -> bytes:
        JOB.reloaded()
        if JOB.revision > 1:
            self.look_up()  # mark: look_up
        return bytes(JOB.settings.get("bytes", 1000))

    def look_up(self) -> None:
        end = time.monotonic() + JOB.settings["busy_s"]
        while time.monotonic() < end:
            hashlib.sha256(bytes(1 << 20)).digest()  # mark: busy
        time.sleep(JOB.settings["delay_s"])  # mark: delay

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    server = ThreadingHTTPServer((JOB.settings.get("host", "127.0.0.1"), JOB.settings["port"]), Handler)
    JOB.emit("ready")
    server.serve_forever()


if __name__ == "__main__":
    main()
