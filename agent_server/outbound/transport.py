"""Turns failed connections and error responses into a code and one line."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from typing import Any

import httpx

from whystall.tools.contract.text import clean

TEXT_LIMIT = 300
"""Characters of a server's error text."""
_PART_LENGTH = 8  # a part of a secret of this length is replaced wherever a server repeats it
_SHORTEST_SECRET = 4
_TITLE = re.compile(r"<title[^>]{0,100}>(.{1,200}?)</title", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Failed:
    """A failed connection. `code`: ``unreachable``, ``timeout``, ``cut_off``. `again`: a retry may succeed. `sent`: the
    request may have arrived and been carried out. `elsewhere`: the address may be wrong.
    """

    code: str
    message: str
    again: bool = False
    sent: bool = True
    elsewhere: bool = False


def connection_failure(error: Exception, host: str, *, started: bool) -> Failed:
    """Classify the failed connection to `host`; `started`: a part of the response had arrived."""
    causes = list(_chain(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = clean(cause.verify_message, TEXT_LIMIT)
            hint = "name the certificate authority with SSL_CERT_FILE"
            return Failed("unreachable", f"TLS: the certificate of {host} is not trusted: {why}; {hint}", sent=False)
    handshake = any(isinstance(cause, ssl.SSLWantReadError) for cause in causes)  # timed out during the handshake
    for cause in causes:
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLWantReadError | ssl.SSLEOFError):
            why = clean(cause.reason or "it failed", TEXT_LIMIT).replace("_", " ").lower()
            return Failed("unreachable", f"TLS with {host}: {why}; does it speak https at that port?", sent=started)
    if isinstance(error, httpx.ProxyError):
        message = f"the proxy of the environment does not connect to {host}"
        return Failed("unreachable", message, again=True, sent=False)
    if isinstance(error, httpx.ConnectTimeout):
        message = f"{host} does not answer{' in TLS' if handshake else ''}"
        return Failed("unreachable", message, sent=False, elsewhere=True)
    if isinstance(error, httpx.TimeoutException):
        return Failed("timeout", f"{host} fell silent", again=True, sent=not isinstance(error, httpx.PoolTimeout))
    if isinstance(error, httpx.ConnectError):
        return Failed("unreachable", f"{host}: {_reason(causes)}", again=True, sent=False, elsewhere=True)
    if isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError | OSError):
        when = "within its answer" if started else "without an answer"
        return Failed("cut_off", f"{host} ended the connection {when}", again=True)
    return Failed("unreachable", f"{host}: {type(error).__name__}")


def error_text(body: bytes, content_type: str) -> str:
    """Return the error text in `body`, shortened; it may repeat secrets of the request."""
    text = body.decode("utf-8-sig", "replace").strip()
    try:
        words = message_of(json.loads(text))
    except (ValueError, RecursionError):
        words = text
        if "html" in content_type or text[:1] == "<":
            title = _TITLE.search(text)
            words = "a web page" + (f" ({unescape(title[1]).strip()})" if title else "")
    return clean(" ".join(words.split()), TEXT_LIMIT).rstrip(".")


def redact_parts(text: str, secret: str) -> str:
    """Return `text` with ``***`` for every substring that is a part of `secret`."""
    if len(secret) < _SHORTEST_SECRET:
        return text
    shortest = min(_PART_LENGTH, len(secret))
    parts = []
    at = 0
    while at < len(text):
        end = at + shortest
        if end > len(text) or text[at:end] not in secret:
            parts.append(text[at])
            at += 1
            continue
        while end < len(text) and text[at : end + 1] in secret:
            end += 1
        parts.append("***")
        at = end
    return "".join(parts)


def message_of(value: Any) -> str:
    """Return the text of an error: a string, or the one under a usual key, at most three levels down."""
    names = ("error", "errorMessages", "errors", "message", "detail", "msg", "error_msg", "code")
    for _ in range(3):
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            value = value[0] if value else None
        elif isinstance(value, dict):
            value = next((value[name] for name in names if value.get(name)), None) or _by_field(value)
        else:
            break
    return value if isinstance(value, str) else ""


def _by_field(errors: dict[Any, Any]) -> str:
    """Return ``summary: is required`` for ``{"summary": ["is required"]}`` (GitLab, Jira)."""
    for name, value in errors.items():
        text = value[0] if isinstance(value, list) and value else value
        if isinstance(text, str) and text:
            return f"{name}: {text}"
    return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and its causes."""
    seen: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        cause = left.pop(0)
        if cause is None or cause in seen or len(seen) > 20:
            continue
        seen.append(cause)
        yield cause
        left += [cause.__cause__, cause.__context__, *getattr(cause, "exceptions", ())]


def _reason(causes: list[BaseException]) -> str:
    for cause in causes:
        if isinstance(cause, socket.gaierror):
            return "its name is not known (DNS)"
        if isinstance(cause, ConnectionRefusedError):
            return "nothing listens there (connection refused)"
    for cause in causes:
        if isinstance(cause, OSError) and cause.strerror:
            return clean(cause.strerror, TEXT_LIMIT)
    return "no connection"
