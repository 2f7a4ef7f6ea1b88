"""Ask an inference server for its metrics and its health, over HTTP without encryption.

Only an address that was given, or a listening port of the observed process on loopback, is contacted. No redirect is
followed, no proxy and no credential is used. Of an answer the status is kept, and numbers of known metrics. Link-local
and multicast addresses are refused: metadata services of clouds answer at 169.254.169.254.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from whystall.tools.contract.errors import ErrorCode, ToolError

TIMEOUT_S = 2.0
MOST_BYTES = 8 << 20
_BLOCK = 1 << 16
_REMEDY = "give an address like http://127.0.0.1:8000/metrics"


class Endpoint(NamedTuple):
    """Where a server answers. `host`: as given or an address; `pid`: of its process, -1 unknown."""

    host: str
    port: int
    path: str = "/metrics"
    pid: int = -1

    @property
    def address(self) -> str:
        """Return host and port as one text."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Answer:
    """An answer: the HTTP status, -1 without one; `error`: a code, empty if there is a whole text."""

    status: int
    text: str = ""
    error: str = ""
    took_ns: int = 0


def endpoint_of(url: str, pid: int = -1) -> Endpoint:
    """Return the endpoint that `url` names. Raises `ToolError` (bad_argument)."""
    try:
        parts = urlsplit(url)
        port = parts.port or 80
    except ValueError:
        raise _bad(f"{url[:200]!r} is no URL") from None
    if parts.scheme != "http" or not parts.hostname or not url.isascii() or any(c <= " " for c in url):
        raise _bad("the URL of metrics must begin with http:// and name a host")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise _bad("the URL of metrics has a credential or fragment")
    query = f"?{parts.query}" if parts.query else ""
    return Endpoint(parts.hostname, port, (parts.path or "/metrics") + query, pid)


def get(endpoint: Endpoint, path: str, timeout_s: float = TIMEOUT_S) -> Answer:
    """Return the answer to a GET of `path`; it never takes much longer than `timeout_s`.

    Codes in `Answer.error`: refused, timeout, address (refused by us, or unknown), no_http, incomplete, too_large,
    status.
    """
    began = time.monotonic_ns()
    status, text, error = _get(endpoint, path, time.monotonic() + timeout_s)
    return Answer(status, text, error, time.monotonic_ns() - began)


def _get(endpoint: Endpoint, path: str, until: float) -> tuple[int, str, str]:
    from http import HTTPStatus, client  # imports ssl, which takes long

    address = _resolved(endpoint)
    if address is None:
        return -1, "", "address"
    left = max(0.05, until - time.monotonic())
    connection = client.HTTPConnection(address, endpoint.port, timeout=left)
    late = threading.Event()
    end = None
    try:
        connection.connect()
        end = threading.Timer(
            left, _cut_off, (connection.sock, late)
        )  # the socket's timeout begins anew with each byte
        end.daemon = True
        end.start()
        connection.request(
            "GET", path, headers={"Host": endpoint.address, "Accept": "text/plain", "Connection": "close"}
        )
        answer = connection.getresponse()
        if answer.status != HTTPStatus.OK:
            return answer.status, "", "status"
        body = bytearray()
        while block := answer.read1(_BLOCK):
            body += block
            if len(body) > MOST_BYTES:
                return answer.status, "", "too_large"
        if late.is_set():
            return answer.status, "", "timeout"
        if answer.length:  # a number may be cut in two
            return answer.status, "", "incomplete"
        return answer.status, body.decode("utf-8", "replace"), ""
    except TimeoutError:
        return -1, "", "timeout"
    except client.HTTPException:
        return -1, "", "timeout" if late.is_set() else "no_http"
    except OSError:
        return -1, "", "timeout" if late.is_set() else "refused"
    finally:
        if end is not None:
            end.cancel()
        connection.close()


def _cut_off(channel: socket.socket, late: threading.Event) -> None:
    """End a connection, for which another thread waits."""
    late.set()
    with suppress(OSError):  # it is closed
        channel.shutdown(socket.SHUT_RDWR)


def _resolved(endpoint: Endpoint) -> str | None:
    """Return the address to connect to, the one that was checked; None if it is unknown or refused."""
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        addresses = [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found]
    except (OSError, ValueError):
        return None
    for address in addresses:
        plain = getattr(address, "ipv4_mapped", None) or address
        if not (plain.is_link_local or plain.is_multicast or plain.is_unspecified or plain.is_reserved):
            return str(address)
    return None


def _bad(message: str) -> ToolError:
    return ToolError(ErrorCode.BAD_ARGUMENT, message, _REMEDY)
