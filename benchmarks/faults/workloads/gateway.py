"""An inference gateway with a pool of threads: each request asks the model server and a cache."""

from __future__ import annotations

import hashlib
import http.client
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import socket
from typing import Any

from joblog import Job

JOB = Job()
PIECE = bytes(1 << 16)
CONNECTIONS: queue.Queue[http.client.HTTPConnection] = queue.Queue()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"]))
        with JOB.phase("handle"):
            body = self.classify(text)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with JOB.phase("export"):
            for _ in range(JOB.settings["export_mib"] << 4):
                self.wfile.write(PIECE)  # mark: send

    def classify(self, text: bytes) -> bytes:
        self.write_audit(text)
        if JOB.settings.get("model_port"):
            return self.ask_model()
        if JOB.revision > 1:
            self.tokenize(text)
        return hashlib.sha256(text).hexdigest().encode()

    def ask_model(self) -> bytes:
        connection = CONNECTIONS.get()  # mark: borrow
        try:
            connection.request("GET", "/features")
            return connection.getresponse().read()  # mark: read
        finally:
            CONNECTIONS.put(connection)

    def tokenize(self, text: bytes) -> list[str]:
        pieces: list[str] = []
        for word in text.decode().split():
            for start in range(len(word)):
                piece = word[start : start + 3]
                if piece not in pieces:  # mark: pieces
                    pieces.append(piece)
        return pieces

    def write_audit(self, text: bytes) -> None:
        if JOB.revision > 1:
            for number in range(JOB.settings.get("audit", 0)):
                print(f"audit {number}: {text[:60]!r}", flush=True)  # mark: audit

    def log_message(self, *_: object) -> None:
        pass


class Server(HTTPServer):
    """Handles connections in a pool."""

    request_queue_size = 128

    def __init__(self, port: int, threads: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self._pool = ThreadPoolExecutor(threads)

    def process_request(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        self._pool.submit(self.work, request, client_address)

    def work(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except ConnectionError:
            time.sleep(0)
        finally:
            self.shutdown_request(request)


def reload() -> None:
    while True:
        time.sleep(0.2)
        JOB.reloaded()


def main() -> None:
    Handler.protocol_version = JOB.settings.get("protocol", "HTTP/1.1")
    server = Server(JOB.settings["port"], JOB.settings["threads"])
    for _ in range(JOB.settings.get("connections", 0)):
        CONNECTIONS.put(http.client.HTTPConnection("127.0.0.1", JOB.settings["model_port"]))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    JOB.emit("ready")
    reload()


if __name__ == "__main__":
    main()
