"""A client for servers of OpenAI's chat completions (vLLM, DashScope, DeepSeek, Ollama, llama.cpp and others) or of
Anthropic's Messages API.

One client for both: bounds, deadlines, retries, redaction and proxies are the same, and a protocol adds two small
modules. The vendors' packages bring HTTP clients of their own, whose answers have no bounds.
"""

from __future__ import annotations

import json
import math
import os
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from functools import lru_cache
from types import TracebackType
from typing import Any, cast
from urllib.parse import urlsplit

import anyio
import httpx

from whystall.agent_server.llm.anthropic_request import MessagesDialect
from whystall.agent_server.llm.faults import Fault, error_words, fault_of_status, fault_of_transport
from whystall.agent_server.llm.jsontext import NotJson, parse_json
from whystall.agent_server.llm.openai_request import ChatDialect
from whystall.agent_server.llm.protocol import Answer, Dialect, ids
from whystall.agent_server.llm.stream import DONE, Events
from whystall.agent_server.llm.wire import Function, LlmError, Message, Reply
from whystall.agent_server.outbound.body import Body
from whystall.agent_server.outbound.retry import backoff_s
from whystall.agent_server.settings.loopback import is_loopback
from whystall.agent_server.settings.sections.llm import LlmSettings
from whystall.tools.contract.errors import ErrorCode, ToolError

BODY_LIMIT = 4 << 20
"""Bytes of an answer that is not streamed."""
STREAM_LIMIT = 16 << 20
"""Bytes of a streamed answer: about 250 per token."""
_ERROR_LIMIT = 64 << 10
_ERROR_S = 5.0
_CONNECT_S = 10.0
# After the last token servers send their counts; a connection that stays open longer sends nothing more.
_LINGER_S = 2.0
# Bytes per token, for servers that do not count: 3 to 4 in English, 3 in Chinese.
_BYTES_PER_TOKEN = 3


class ChatClient:
    """A `LanguageModel` behind a server. Use it as an async context manager; one request at a time.

    Proxies and certificate authorities are those of the environment (``HTTPS_PROXY``, ``NO_PROXY``, ``SSL_CERT_FILE``),
    except for loopback addresses. Redirects are not followed.
    """

    def __init__(self, settings: LlmSettings, failed: Callable[[LlmError], None] | None = None) -> None:
        """`failed` is called with each error that `complete` raises.

        Raises `ToolError` (no_model) if the proxy or the certificates of the environment cannot be used.
        """
        self._settings = settings
        self._failed = failed
        self._key = settings.key()
        self._dialect: Dialect = (MessagesDialect if settings.protocol == "anthropic" else ChatDialect)(settings)
        self._ids = ids()
        headers = {"User-Agent": "whystall", "Accept-Encoding": "identity", **self._dialect.headers(self._key)}
        host = urlsplit(settings.base_url).hostname or ""
        literal = f"[{host}]" if ":" in host else host
        try:
            self._http = httpx.AsyncClient(
                headers=headers,
                timeout=httpx.Timeout(settings.timeout, connect=min(_CONNECT_S, settings.timeout)),
                follow_redirects=False,
                verify=_authorities(),
                mounts={f"all://{literal}": None} if is_loopback(host) else None,
            )
        except (ImportError, ValueError, OSError, httpx.InvalidURL) as error:
            raise ToolError(
                ErrorCode.NO_MODEL,
                f"the proxy or the certificates that the environment names cannot be used: {type(error).__name__}",
                "check HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR",
            ) from None

    @property
    def name(self) -> str:
        return self._settings.model

    async def __aenter__(self) -> ChatClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def complete(self, messages: Sequence[Message], functions: Sequence[Function]) -> Reply:
        """Return the next message, within the settings' `timeout` including retries. Raises `LlmError`."""
        try:
            return await self._complete(messages, functions)
        except LlmError as error:
            if self._failed is not None:
                self._failed(error)
            raise

    async def _complete(self, messages: Sequence[Message], functions: Sequence[Function]) -> Reply:
        started = time.monotonic()
        limit = self._settings.timeout
        last: list[Fault] = []
        with self._errors(limit, last):
            reply = await self._ask_with_retries(messages, functions, started + limit, last)
        return reply.model_copy(update={"seconds": time.monotonic() - started})

    async def models(self, timeout: float) -> list[str] | None:
        """Return at most 1000 names of the server's models; None if it lists none. Raises `LlmError`."""
        with self._errors(timeout, []):
            listed = await self._exchange("GET", self._dialect.models_path, None)
        entries = listed.get("data") if isinstance(listed, dict) else None
        if not isinstance(entries, list):
            return None
        names = [entry.get("id") for entry in entries[:1000] if isinstance(entry, dict)]
        return [name for name in names if isinstance(name, str)]

    @contextmanager
    def _errors(self, limit: float, last: list[Fault]) -> Iterator[None]:
        """Limit the time to `limit` seconds, and convert errors to `LlmError`; `last`: faults before a timeout."""
        try:
            with anyio.fail_after(limit):
                yield
        except TimeoutError:
            before = f" (before: {last[-1].redacted(self._key)})" if last else ""
            raise LlmError("timeout", f"no answer from {self._settings.host} within {limit:g} s{before}") from None
        except Fault as fault:
            raise fault.redacted(self._key) from None
        except RecursionError:  # a value that was read may be nested too deeply to be written
            raise LlmError("bad_answer", "the answer is nested too deeply") from None

    async def _ask_with_retries(
        self, messages: Sequence[Message], functions: Sequence[Function], deadline: float, last: list[Fault]
    ) -> Reply:
        """Return an answer, retrying until the deadline and while it may help; add faults to `last`."""
        attempt = 0
        while True:
            try:
                return await self._ask(messages, functions)
            except Fault as fault:
                last.append(fault)
                if fault.code == "rejected" and self._dialect.learn(fault.message):
                    continue
                wait = backoff_s(attempt, fault.wait)
                if not fault.again or attempt >= self._settings.retries:
                    raise
                if time.monotonic() + wait >= deadline:
                    fault.message += f"; it asks to wait {fault.wait:g} s" if fault.wait is not None else ""
                    raise
            attempt += 1
            await anyio.sleep(wait)

    async def _ask(self, messages: Sequence[Message], functions: Sequence[Function]) -> Reply:
        content = _encoded(self._dialect.body(messages, functions))
        answer = self._dialect.answer()
        whole = await self._exchange("POST", self._dialect.path, content, answer)
        if whole is not None:
            answer.add(whole)
        reply = answer.reply(self._ids)
        return _with_estimate(reply, len(content)) if reply.estimated else reply

    async def _exchange(self, method: str, path: str, content: bytes | None, answer: Answer | None = None) -> Any:
        """Send one request; return the JSON of its answer, or None after a stream into `answer`. Raises `Fault`."""
        url = f"{self._settings.base_url}/{path}"
        headers = {"Content-Type": "application/json"} if content is not None else {}
        started = False
        try:
            async with self._http.stream(method, url, content=content, headers=headers) as response:
                started = True
                if response.status_code != 200:
                    raise fault_of_status(response.status_code, response.headers, await _start_of(response), url)
                if answer is not None and "event-stream" in response.headers.get("content-type", ""):
                    await _read_stream(response, answer)
                    return None
                return _json_of(response, await _read_whole(response))
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            raise fault_of_transport(error, self._settings.host, started=started) from None


def _encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _pieces(response: httpx.Response) -> aclosing[AsyncGenerator[bytes, None]]:
    """Return the raw body as a context manager that closes it."""
    return aclosing(cast("AsyncGenerator[bytes, None]", response.aiter_raw()))


def _body_of(response: httpx.Response, limit: int) -> Body:
    return Body(response.headers.get("content-encoding", ""), response.headers.get("content-length", ""), limit, Fault)


async def _start_of(response: httpx.Response) -> bytes:
    """Return the start of an error's body, as far as it can be read."""
    start = bytearray()
    with suppress(Fault, httpx.HTTPError), anyio.move_on_after(_ERROR_S):
        body = _body_of(response, _ERROR_LIMIT)
        async with _pieces(response) as pieces:
            async for piece in pieces:
                start += body.feed(piece)
    return bytes(start)


async def _read_whole(response: httpx.Response) -> bytes:
    body = _body_of(response, BODY_LIMIT)
    read = bytearray()
    async with _pieces(response) as pieces:
        async for piece in pieces:
            read += body.feed(piece)
    return bytes(read)


def _json_of(response: httpx.Response, read: bytes) -> Any:
    try:
        return parse_json(read)
    except NotJson:
        text = read.strip()
    if text[:1] in (b"{", b"[") and text[-1:] not in (b"}", b"]"):
        raise Fault("cut_off", "the answer is incomplete", again=True)
    if not text:
        raise Fault("bad_answer", "the answer is empty", again=True)
    words = error_words(text[:4096], response.headers.get("content-type", ""))[0]
    raise Fault("bad_answer", f"the answer is not JSON (is that the address of a model?): {words}")


async def _read_stream(response: httpx.Response, answer: Answer) -> None:
    """Add the events of a stream to `answer` until the model has finished."""
    body, events = _body_of(response, STREAM_LIMIT), Events()
    deadline = math.inf
    async with _pieces(response) as pieces:
        while True:
            with anyio.CancelScope(deadline=deadline) as linger:
                piece = await _next(pieces, answer)
            if linger.cancelled_caught or piece is None:
                break
            if any(_taken(lines, answer) for lines in events.feed(body.feed(piece))):
                return
            if answer.finished and deadline == math.inf:
                deadline = anyio.current_time() + _LINGER_S
    for lines in events.close():
        _taken(lines, answer)
    if not answer.finished:
        raise Fault("cut_off", "the stream ended before the answer", again=True)


async def _next(pieces: AsyncIterator[bytes], answer: Answer) -> bytes | None:
    """Return the next piece; None at the end, or on an error after the model has finished."""
    try:
        return await anext(pieces, None)
    except httpx.HTTPError:
        if answer.finished:
            return None
        raise


def _authorities() -> ssl.SSLContext:
    """Return the certificate authorities of the environment, else those of certifi."""
    file = os.environ.get("SSL_CERT_FILE", "")
    return _read_authorities(file, os.stat(file).st_mtime_ns if file else 0, os.environ.get("SSL_CERT_DIR", ""))


@lru_cache(maxsize=1)
def _read_authorities(file: str, changed_ns: int, directory: str) -> ssl.SSLContext:
    """Return the authorities that httpx reads for these names, which takes 20 ms."""
    return httpx.create_ssl_context()


def _taken(lines: list[str], answer: Answer) -> bool:
    """Add an event to `answer`; return whether it was the last one."""
    joined = "\n".join(lines)
    try:
        chunks = [parse_json(joined)]
    except NotJson:
        chunks = []
        for line in lines if joined.strip() != DONE else [DONE]:  # some servers leave out the empty line between events
            if line.strip() == DONE:
                for chunk in chunks:
                    answer.add(chunk)
                answer.end()
                return True
            try:
                chunks.append(parse_json(line))
            except NotJson:
                raise Fault("bad_answer", "an event of the stream is not JSON") from None
    for chunk in chunks:
        answer.add(chunk)
    return answer.ended


def _with_estimate(reply: Reply, asked: int) -> Reply:
    """Return `reply` with tokens estimated from its length and the `asked` bytes of the request."""
    texts = [reply.content, reply.refusal, reply.reasoning or "", *(call.name + call.arguments for call in reply.calls)]
    out = sum(len(text.encode()) for text in texts)
    tokens = {"tokens_in": math.ceil(asked / _BYTES_PER_TOKEN), "tokens_out": math.ceil(out / _BYTES_PER_TOKEN)}
    return reply.model_copy(update=tokens)
