"""Servers that send what they are told, be it HTTP or not."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_HELLO = b"\x16"  # how TLS begins


def http(body: bytes | str, *, status: str = "200 OK", headers: Mapping[str, str] | None = None) -> bytes:
    """An answer with `body`; a Content-Type and a Content-Length unless `headers` hold others (empty: none)."""
    content = body.encode() if isinstance(body, str) else body
    fields = {"Content-Type": "application/json", "Content-Length": str(len(content)), **(headers or {})}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields.items() if value)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def events(chunks: Sequence[Mapping[str, Any] | str], *, end: str = "data: [DONE]\n\n") -> bytes:
    """An answer that is a stream: chunks as JSON, or as the lines that they are; the connection ends it."""
    lines = [chunk if isinstance(chunk, str) else f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    headers = {"Content-Type": "text/event-stream", "Content-Length": "", "Connection": "close"}
    return http("".join(lines) + end, headers=headers)


@contextlib.contextmanager
def bytes_server(
    answer: bytes | Callable[[], bytes], *, hold: bool = False, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """A server that takes a request and sends `answer`, whatever that is, then closes, or `hold`s the connection open
    until the test ends. With `tls` it speaks https. Gives its address.
    """
    over = threading.Event()

    def talk(plain: socket.socket) -> None:
        with contextlib.suppress(OSError), plain, _wrapped(plain, tls) as connection:
            connection.settimeout(20)
            request = b""
            while b"\r\n\r\n" not in request and request[:1] != _HELLO and (piece := connection.recv(65536)):
                request += piece
            head, _, body = request.partition(b"\r\n\r\n")
            sizes = [int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
            length = sizes[0] if sizes else 0
            while len(body) < length and (piece := connection.recv(65536)):
                body += piece
            connection.sendall(answer if isinstance(answer, bytes) else answer())
            if hold:
                over.wait(20)

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    thread = threading.Thread(target=talk, args=(connection,))
                    thread.start()
                    threads.append(thread)

        threads: list[threading.Thread] = []
        accepting = threading.Thread(target=listen)
        accepting.start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for thread in threads:
                thread.join()


def _wrapped(connection: socket.socket, tls: ssl.SSLContext | None) -> socket.socket:
    return tls.wrap_socket(connection, server_side=True) if tls else connection
