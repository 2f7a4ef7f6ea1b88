"""HTTP to one host, limited in bytes, that remembers how it went.

The MCP client reports most failures of HTTP as "server returned an error response"; the cause is taken from here.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from functools import lru_cache
from pathlib import Path

import httpx2

from whystall.agent_server.fleet.inventory import Host
from whystall.tools.contract.errors import ErrorCode, ToolError

_CONNECT_S = 10.0


class Exchange(httpx2.AsyncBaseTransport):
    """The requests to one host. `received`: bytes of all responses; `status`: of the last one; `failure`: why the last
    request failed, one line without content of the request; `too_large`, `encoded`: what the responses were. `give_up`
    is called when no answer can come any more: the MCP client may go on waiting.
    """

    def __init__(self, host: Host, limit: int) -> None:
        self._inner = httpx2.AsyncHTTPTransport(verify=trusted(host.ca_file), retries=0)
        self._limit = limit
        self.received = 0
        self.status = 0
        self.failure = ""
        self.too_large = False
        self.encoded = False
        self.give_up: Callable[[], None] = lambda: None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send `request`."""
        self.failure = ""
        try:
            response = await self._inner.handle_async_request(request)
        except (httpx2.TransportError, OSError) as error:
            self.failure = _why(error)
            raise
        self.status = response.status_code
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            # A small compressed body could fill the memory; none was requested.
            self.encoded = True
            await response.aclose()
            raise httpx2.DecodingError("compressed")
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - an asynchronous transport
        response.stream = _Counted(self, response.stream, answer=request.method == "POST")
        return response

    def count(self, size: int) -> None:
        """Count received bytes. Raises `httpx2.StreamError` beyond the limit."""
        self.received += size
        if self.received > self._limit:
            self.too_large = True
            self.give_up()
            raise httpx2.StreamError("too large")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, exchange: Exchange, inner: httpx2.AsyncByteStream, *, answer: bool) -> None:
        self._exchange = exchange
        self._inner = inner
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._inner:
                self._exchange.count(len(piece))
                yield piece
        except (httpx2.TransportError, OSError) as error:
            self._exchange.failure = _why(error)
            if self._answer:
                self._exchange.give_up()
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()


def client(exchange: Exchange, token: str, timeout: float) -> httpx2.AsyncClient:
    """Return a client that sends `token` (empty: none), follows no proxy of the environment and no redirect."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "whystall"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    limits = httpx2.Timeout(timeout, connect=min(_CONNECT_S, timeout))
    return httpx2.AsyncClient(transport=exchange, headers=headers, timeout=limits, trust_env=False)


@lru_cache(maxsize=64)
def trusted(ca_file: Path | None) -> ssl.SSLContext:
    """Return a context that trusts the authorities in `ca_file`, None: the system's (``SSL_CERT_FILE``).

    Raises `ToolError` (bad_argument) if the file cannot be used.
    """
    try:
        return ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no certificates in PEM"
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"[fleet] ca_file: cannot use {ca_file}: {why}", "correct it") from None


def _why(error: BaseException) -> str:
    """Return the cause of a failed connection in a few words."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen and len(seen) < 20:
        seen.append(cause)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"TLS: its certificate is not trusted: {cause.verify_message}"
        cause = cause.__cause__ or cause.__context__
    if any(isinstance(one, ssl.SSLError) for one in seen):
        return "TLS failed; does it speak https at that port?"
    if any(isinstance(one, ConnectionRefusedError) for one in seen):
        return "nothing listens there (connection refused)"
    if isinstance(error, httpx2.ConnectTimeout):
        return "no connection in time"
    named = next((one for one in seen if isinstance(one, OSError) and one.strerror), None)
    if isinstance(error, httpx2.ConnectError):
        return named.strerror if isinstance(named, OSError) and named.strerror else "no connection"
    return "it ended the connection"
