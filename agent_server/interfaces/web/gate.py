"""Limits and authentication before every route; refusals contain only a code."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from whystall.tools.contract.errors import ToolError

if TYPE_CHECKING:
    from whystall.agent_server.settings.secret import Secret

_BUSY_S = 5
_UNREADY_S = 30
_SCHEME = "bearer "
_log = logging.getLogger("whystall.web")


class Denied(Exception):
    """A refused request. The sender gets `status` and `code`, and the seconds to `wait` before a retry; `detail` is
    only logged.
    """

    def __init__(self, status: int, code: str, *, wait: int | None = None, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.status = status
        self.code = code
        self.wait = wait
        self.detail = detail

    def response(self) -> JSONResponse:
        """Return the response."""
        headers = {"Connection": "close"}  # do not wait for the rest of the body
        if self.wait is not None:
            headers["Retry-After"] = str(self.wait)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse({"error": self.code}, status_code=self.status, headers=headers)


class Gate:
    """The limits of one route: `limit` bytes of a body, which must arrive within `seconds`; `at_once` requests, not
    counting those whose body is still arriving, else a few slow, unauthenticated senders would block all others. The
    bodies read at once are limited to `at_once` whole ones.
    """

    def __init__(self, limit: int, seconds: float, at_once: int) -> None:
        self._limit = limit
        self._seconds = seconds
        self._at_once = at_once
        self._inside = 0
        self._reading = 0  # bytes

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enclose the processing of a request. Raises `Denied` (busy, 503: retry) while too many are inside."""
        if self._inside >= self._at_once:
            raise Denied(503, "busy", wait=_BUSY_S)
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    async def body(self, request: Request) -> bytes:
        """Return the body as received, within `entered`. Raises `Denied`: too_large (413; before reading, if its length
        is declared), encoded (415), slow (408), cut_off (400), busy (503).
        """
        if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise Denied(415, "encoded")
        length = request.headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length[:20]) > self._limit:
            raise Denied(413, "too_large")
        self._inside -= 1
        try:
            read = await self._read(request)
        finally:
            self._inside += 1
        if self._inside > self._at_once:
            raise Denied(503, "busy", wait=_BUSY_S)
        return read

    async def _read(self, request: Request) -> bytes:
        read = bytearray()
        try:
            with anyio.fail_after(self._seconds):
                async for piece in request.stream():
                    if len(read) + len(piece) > self._limit:
                        raise Denied(413, "too_large")
                    if self._reading + len(piece) > self._at_once * self._limit:
                        raise Denied(503, "busy", wait=_BUSY_S)
                    self._reading += len(piece)
                    read += piece
        except TimeoutError:
            raise Denied(408, "slow") from None
        except ClientDisconnect:
            raise Denied(400, "cut_off") from None
        finally:
            self._reading -= len(read)
        return bytes(read)


def proven(headers: Mapping[str, str], secret: Secret | None, name: str) -> None:
    """Return whether the sender knows the token `secret`, the setting called `name`.

    Raises `Denied`: not_found (404) if none is set, so that a missing secret grants no access; unready (503: retry) if
    it cannot be read; unauthorised (401).
    """
    given = headers.get("authorization", "")
    token = given[len(_SCHEME) :].strip() if given[: len(_SCHEME)].lower() == _SCHEME else ""
    if not knows(token, secret, name):
        raise Denied(401, "unauthorised")


def knows(token: str, secret: Secret | None, name: str) -> bool:
    """Compare `token` with `secret` in constant time. Raises `Denied` as `proven` does."""
    if secret is None:
        raise Denied(404, "not_found")
    try:
        expected = secret.read(name)
    except ToolError as error:
        _log.warning("%s", error)
        raise Denied(503, "unready", wait=_UNREADY_S) from None
    # digests have equal length
    return bool(token) and hmac.compare_digest(_digest(token), _digest(expected))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
