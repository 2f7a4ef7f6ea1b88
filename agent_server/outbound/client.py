"""Sends a `Request` once, with a deadline and a limit on the response. Retries are up to the caller."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from functools import cache
from types import TracebackType
from typing import cast
from urllib.parse import urlsplit

import anyio
import httpx

from whystall.agent_server.outbound.body import Body
from whystall.agent_server.outbound.redact import redact
from whystall.agent_server.outbound.request import Request, Response
from whystall.agent_server.outbound.retry import requested_wait_s
from whystall.agent_server.outbound.transport import connection_failure, error_text
from whystall.tools.contract.text import clean

TIMEOUT_S = 20.0
BODY_LIMIT = 4 << 20
"""Bytes of a response, decompressed."""
_ERROR_LIMIT = 64 << 10
_CONNECT_S = 10.0
_LINE_LIMIT = 500
# No proxy for this machine.
_HERE = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}


class Undelivered(Exception):
    """A request that failed. The message is one line without secrets of the request.

    `code`: ``unreachable``, ``timeout``, ``cut_off``, ``unauthorised``, ``rate_limited``, ``rejected`` (another 4xx, a
    redirect), ``server_error``, ``bad_answer``, ``too_large`` (the response). `status`: of HTTP, 0 without a response.
    `again`: a retry may succeed, after `wait` seconds if the server asks for that. `unknown`: the server may have
    carried out the request.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        wait: float | None = None,
        again: bool = False,
        unknown: bool = False,
        status: int = 0,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.wait = wait
        self.again = again
        self.unknown = unknown
        self.status = status


class _BadBody(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Client:
    """An HTTP client: an async context manager that sends requests concurrently.

    Proxies and certificate authorities come from the environment (``HTTPS_PROXY``, ``NO_PROXY``, ``SSL_CERT_FILE``);
    this machine is reached directly. Redirects are not followed, since requests carry secrets. No cookies are kept.
    """

    def __init__(self, timeout: float = TIMEOUT_S, limit: int = BODY_LIMIT, tls: ssl.SSLContext | None = None) -> None:
        """`timeout`: seconds for request and response; `limit`: bytes of a response; `tls`: its own authorities and
        client certificate, None: the environment's authorities.
        """
        self._tls = tls
        self._timeout = timeout
        self._limit = limit
        self._http: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close its connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def send(
        self, request: Request, allowed: Collection[int] = (), timeout: float | None = None, limit: int | None = None
    ) -> Response:
        """Return a response of status 2xx or one of `allowed`, within `timeout` seconds and `limit` bytes (None: the
        client's). Raises `Undelivered` for all others.
        """
        host = _host(request.url)
        seconds = self._timeout if timeout is None else timeout
        try:
            with anyio.fail_after(seconds):
                response = await self._exchange(request, host, seconds, self._limit if limit is None else limit)
        except TimeoutError:
            message = f"no answer from {host} within {seconds:g} s"
            raise Undelivered("timeout", message, again=True, unknown=True) from None
        if 200 <= response.status < 300 or response.status in allowed:
            return response
        raise refusal(request, response)

    async def _exchange(self, request: Request, host: str, seconds: float, limit: int) -> Response:
        started = False
        status = 0
        try:
            http = self._opened()
            http.cookies.clear()
            headers = {"Accept": "application/json", **request.headers}
            timeout = httpx.Timeout(seconds, connect=min(_CONNECT_S, seconds))
            async with http.stream(
                request.method, request.url, content=request.body, headers=headers, timeout=timeout
            ) as answer:
                started = True
                status = answer.status_code
                return Response(status, answer.headers, await _read(answer, limit))
        except _BadBody as error:
            raise Undelivered(error.code, f"{host}: {error}", unknown=True, status=status) from None
        except (httpx.InvalidURL, UnicodeError, httpx.UnsupportedProtocol):
            raise Undelivered("rejected", f"{host}: no address or header that can be sent") from None
        except (httpx.HTTPError, httpx.StreamError, OSError, ImportError, ValueError) as error:
            failed = connection_failure(error, host, started=started)
            raise Undelivered(
                failed.code,
                redact(failed.message, request.secrets),
                # Nothing was sent: retrying is safe.
                again=failed.again or not failed.sent,
                unknown=failed.sent,
                status=status,
            ) from None

    def _opened(self) -> httpx.AsyncClient:
        if self._http is None:
            self._http = httpx.AsyncClient(
                headers={"User-Agent": "whystall", "Accept-Encoding": "identity"},
                follow_redirects=False,
                verify=self._tls or _trusted(),
                mounts=_HERE,
            )
        return self._http


async def _read(answer: httpx.Response, limit: int) -> bytes:
    """Return the body of at most `limit` bytes; of an error response, as much of it as could be read."""
    good = answer.status_code < 300
    read = bytearray()
    try:
        headers = answer.headers
        length = headers.get("content-length", "") if good else ""
        most = limit if good else min(limit, _ERROR_LIMIT)
        body = Body(headers.get("content-encoding", ""), length, most, _BadBody)
        async with aclosing(cast("AsyncGenerator[bytes, None]", answer.aiter_raw())) as pieces:
            async for piece in pieces:
                read += body.feed(piece)
    except (_BadBody, httpx.HTTPError):
        if good:
            raise
    return bytes(read)


@cache
def _trusted() -> ssl.SSLContext:
    """Return the authorities of the environment, else those of certifi; reading them takes 20 ms."""
    return httpx.create_ssl_context()


def _host(url: str) -> str:
    try:
        return clean(urlsplit(url).netloc.rpartition("@")[2])
    except ValueError:
        return ""


def refusal(request: Request, response: Response) -> Undelivered:
    """Return the error for a response with a status other than 2xx."""
    status, headers = response.status, response.headers
    words = redact(error_text(response.body, headers.get("content-type", "")), request.secrets)
    message = clean(f"HTTP {status}{': ' if words else ''}{words}", _LINE_LIMIT)
    if status < 400:
        return Undelivered("rejected", f"{message}; it redirects, which is not followed", status=status)
    # Also GitHub's 403: https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api
    limited = status == 403 and (headers.get("x-ratelimit-remaining") == "0" or "retry-after" in headers)
    wait = requested_wait_s(headers)
    if wait is None and headers.get("x-ratelimit-remaining", headers.get("ratelimit-remaining")) == "0":
        wait = _reset(headers)
    if status == 429 or limited:
        return Undelivered("rate_limited", message, wait=wait, again=True, status=status)
    if status in (401, 403, 407):
        return Undelivered("unauthorised", message, status=status)
    if status in (408, 425):
        return Undelivered("timeout", message, wait=wait, again=True, unknown=True, status=status)
    if status >= 500:
        lasting = status in (501, 505)
        return Undelivered("server_error", message, wait=wait, again=not lasting, unknown=not lasting, status=status)
    return Undelivered("rejected", message, again=status in (409, 423), status=status)


def _reset(headers: Mapping[str, str]) -> float | None:
    """Return the seconds until ``X-RateLimit-Reset`` (GitHub) or ``RateLimit-Reset`` (GitLab): ``1790000000``."""
    text = headers.get("x-ratelimit-reset", headers.get("ratelimit-reset", ""))
    if not (text.isascii() and text.isdigit() and 9 <= len(text) < 12):
        return None
    return max(0.0, int(text) - time.time())
