"""The listener and the HTTP server of all routes."""

from __future__ import annotations

import logging
import socket
import ssl
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from whystall.agent_server.interfaces.web.slow_clients import Patience
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_EVERY_S = 60.0
_CONNECTIONS = 512  # further ones get 503


def listen(host: str, port: int) -> socket.socket:
    """Yield a listening socket. Raises `ToolError` (bad_argument, io_error) if the address is not available."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=64)
    except socket.gaierror as error:
        message = f"no address {host!r}: {error.strerror}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "give an address of this host") from None
    except OSError as error:
        message = f"cannot listen on {host} port {port}: {error.strerror}"
        raise ToolError(ErrorCode.IO_ERROR, message, "choose another --port (0: any)") from None


@dataclass(frozen=True)
class Certificate:
    """Files in PEM: the certificate with its chain, and its private key without a password."""

    chain: Path
    key: Path

    def check(self) -> None:
        """Raise `ToolError` (bad_argument) if they cannot be used, or every user can read the key."""
        try:
            if self.key.stat().st_mode & stat.S_IROTH:
                message = f"every user can read {self.key}"
                raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"chmod 600 {self.key}")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.chain, self.key, password="")  # "": do not ask at the terminal
        except OSError as error:  # ssl.SSLError is one
            message = f"cannot use {self.chain} and {self.key} for TLS: {error.strerror or type(error).__name__}"
            remedy = "give a certificate and its key in PEM, without a password"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, remedy) from None


class _Rarely(logging.Filter):
    """Passes each warning of uvicorn once a minute: any client can cause them and fill a disk."""

    def __init__(self) -> None:
        super().__init__()
        self._next: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log `record`."""
        now = time.monotonic()
        if record.levelno != logging.WARNING or now >= self._next.get(record.msg, 0.0):
            self._next[record.msg] = now + _EVERY_S
            return True
        return False


_RARELY = _Rarely()


class HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling, which would replace our exit status."""

    def __init__(self, app: ASGIApp, tls: Certificate | None = None) -> None:
        logging.getLogger("uvicorn.error").addFilter(_RARELY)
        super().__init__(
            uvicorn.Config(
                app,
                http=Patience,
                log_config=None,
                access_log=False,
                lifespan="on",
                server_header=False,
                limit_concurrency=_CONNECTIONS,
                timeout_graceful_shutdown=1,
                ssl_certfile=tls.chain if tls is not None else None,
                ssl_keyfile=tls.key if tls is not None else None,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `interfaces.signals`."""
        yield

    async def serve_on(self, listener: socket.socket) -> None:
        """Serve until `leave`."""
        await self.serve(sockets=[listener])

    def leave(self) -> None:
        """Close connections and return from `serve_on`."""
        self.should_exit = True


def url(listener: socket.socket, path: str = "", scheme: str = "http") -> str:
    """Return the address for clients."""
    address: Any = listener.getsockname()
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{scheme}://{host}:{address[1]}{path}"
