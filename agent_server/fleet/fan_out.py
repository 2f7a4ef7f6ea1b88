"""Call one MCP tool on many hosts at once: bounded concurrency, a deadline per host and for all.

Nothing that a host does raises or delays the others: each ends with an `Answer`.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import anyio
import mcp_types as types
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from whystall.agent_server.fleet import http
from whystall.agent_server.fleet.answers import Answer, Located, Status, Target, line, stated_host
from whystall.agent_server.fleet.gate import Gate
from whystall.agent_server.fleet.inventory import Host, same_host
from whystall.agent_server.outbound.redact import redact
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.foreign_json import inert

Progress = Callable[[float, float, str], None]
Arrived = Callable[[Answer], None]
Resource = Callable[[Located | None], str]
_HEALTH = "/healthz"
_MEANINGS = {
    401: "the token is not accepted",
    403: "access is denied",
    404: "no MCP at that address",
    421: "it does not go by this name: start it with --allow-host",
    503: "it is busy",
}
# Arguments that name a recording or traces, which may be of another host.
_STORED = frozenset({"recording", "traces", "before", "after"})


@dataclass(frozen=True)
class Limits:
    """`host_deadline`: of one host, from its turn; `deadline`: of all; `together`: all calls of the tool begin at about
    the same time, and end within this, None: each by itself; `ready`: of these calls, how long after the first one
    another may begin, None: at any time; seconds. `reply_limit`: bytes from one host.
    """

    host_deadline: float
    deadline: float
    at_once: int
    reply_limit: int
    together: float | None = None
    ready: float | None = None


class _Ended(Exception):
    """A call that ended without a result."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status = status


async def fan_out(
    targets: Sequence[Target],
    tool: str,
    arguments: Mapping[str, Any],
    limits: Limits,
    progress: Progress | None = None,
    resource: Resource | None = None,
    arrived: Arrived | None = None,
) -> list[Answer]:
    """Return the answer of each of `targets` to ``tool(arguments)``, in their order, within ``limits.deadline``; with
    `resource` the content of a URI instead, which it makes of the process found there. `arrived` gets each answer as
    soon as there is one.
    """
    demanded = not _STORED & arguments.keys()

    async def call(target: Target, exchange: http.Exchange, token: str, begin: _Begin) -> Answer:
        async with _connected(target, exchange, token, limits) as client:
            located = await _locate(client, target.locate) if target.locate is not None else None
            pid = located.pid if located is not None else target.pid
            given = dict(arguments) if pid is None else {**arguments, "pid": pid}
            await begin()
            began, reply, content = time.monotonic(), {}, b""
            if resource is None:
                reply = inert(await _result(client, tool, given), token)
            else:
                found = await _content(client, resource(located))
                if isinstance(found, bytes):
                    content = found
                else:
                    reply = inert(found, token)
            ended = time.monotonic()
        stated = stated_host(reply)
        if demanded and target.host.identity and stated and not same_host(stated, target.host.name):
            raise _Ended("wrong_host", f"it calls itself {stated}")
        answer = Answer(target.host.name, "answered", "", reply, content, located, began, ended)
        return replace(answer, identity=demanded and target.host.identity)

    return await _everywhere(targets, call, limits, progress, arrived)


async def locating(targets: Sequence[Target], limits: Limits) -> list[Answer]:
    """Return for each of `targets` the process and the ranks that it finds by its words."""

    async def call(target: Target, exchange: http.Exchange, token: str, _begin: _Begin) -> Answer:
        async with _connected(target, exchange, token, limits) as client:
            return Answer(target.host.name, "answered", located=await _locate(client, target.locate or ""))

    return await _everywhere(targets, call, limits, None)


@asynccontextmanager
async def _connected(target: Target, exchange: http.Exchange, token: str, limits: Limits) -> AsyncIterator[Client]:
    async with http.client(exchange, token, limits.host_deadline) as session:
        url, limit = target.host.url, limits.reply_limit
        async with Client(streamable_http_client(url, http_client=session, max_sse_event_size=limit)) as client:
            yield client


async def healthy(hosts: Sequence[Host], limits: Limits) -> list[Answer]:
    """Return for each of `hosts` whether its server answers ``GET /healthz``, which needs no token."""

    async def call(target: Target, exchange: http.Exchange, _token: str, _begin: _Begin) -> Answer:
        url = urlunsplit(urlsplit(target.host.url)._replace(path=_HEALTH, query="", fragment=""))
        async with http.client(exchange, "", limits.host_deadline) as session:
            response = await session.get(url)
        if response.status_code != 200:
            raise _Ended("refused", f"HTTP {response.status_code}")
        return Answer(target.host.name, "answered")

    return await _everywhere([Target(host) for host in hosts], call, limits, None)


_Begin = Callable[[], Awaitable[None]]
_Call = Callable[[Target, http.Exchange, str, _Begin], Awaitable[Answer]]
"""Gets a target, the exchange, the token, and a function that waits until the tool may be called."""


async def _everywhere(
    targets: Sequence[Target],
    call: _Call,
    limits: Limits,
    progress: Progress | None,
    arrived: Arrived | None = None,
) -> list[Answer]:
    # The client logs failed requests with tracebacks; each failure is reported as the answer of its host.
    for name in ("mcp.client.streamable_http", "client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    answers: dict[int, Answer] = {}
    began: set[int] = set()
    calls: dict[int, anyio.CancelScope] = {}
    turn = anyio.Semaphore(limits.at_once)
    within = f"within {limits.deadline:g} s for all"
    scope = anyio.move_on_after(limits.deadline)
    last_call = math.inf

    def opened() -> None:
        nonlocal within, last_call
        now = anyio.current_time()
        if limits.together is not None and (end := now + limits.together) < scope.deadline:
            scope.deadline, within = end, f"within {limits.together:g} s of the first call"
        if limits.ready is not None:
            last_call = now + limits.ready
            for preparing in calls.values():
                preparing.deadline = last_call

    gate = Gate(opened)

    async def begin(number: int) -> None:
        if limits.together is not None:
            await gate.passed(number)
            calls[number].deadline = math.inf

    async def one(number: int, target: Target) -> None:
        async with turn:
            if anyio.current_time() >= last_call:
                return
            with anyio.CancelScope(deadline=last_call) as calls[number]:
                began.add(number)
                gate.prepare(number)
                answers[number] = await _ask(target, call, partial(begin, number), limits)
                gate.end(number)
                if arrived is not None:
                    arrived(answers[number])
        if progress is not None:
            progress(len(answers), len(targets), target.host.name)

    def missing(number: int) -> Answer:
        if number not in began:
            return Answer("", "not_asked", f"not its turn {within}")
        if calls[number].cancelled_caught:
            return Answer("", "slow", f"not ready within {limits.ready:g} s of the first call")
        return Answer("", "slow", f"no answer {within}")

    with scope:
        async with anyio.create_task_group() as group:
            for number, target in enumerate(targets):
                group.start_soon(one, number, target)
    return [answers.get(number) or replace(missing(number), host=one.host.name) for number, one in enumerate(targets)]


async def _ask(target: Target, call: _Call, begin: _Begin, limits: Limits) -> Answer:
    host, began = target.host, time.monotonic()
    token, exchange = "", None
    try:
        token = host.token.read("[fleet] token") if host.token is not None else ""
        exchange = http.Exchange(host, limits.reply_limit)
        answer = None
        with anyio.fail_after(limits.host_deadline), anyio.CancelScope() as scope:
            exchange.give_up = scope.cancel
            answer = await call(target, exchange, token, begin)
        if answer is None:
            answer = Answer(host.name, *_failed(None, exchange))
    except TimeoutError:
        answer = Answer(host.name, "slow", f"no answer within {limits.host_deadline:g} s")
    except ToolError as error:  # ours: the token or the authorities cannot be read
        answer = Answer(host.name, "not_asked", error.message)
    except Exception as error:
        status, detail = _ended(error) or _failed(error, exchange)
        answer = Answer(host.name, status, line(redact(detail, [token] if token else [])))
    received = exchange.received if exchange is not None else 0
    return replace(answer, seconds=round(time.monotonic() - began, 3), bytes=received)


async def _locate(client: Client, words: str) -> Located:
    """Return the process of the job that the host's own ``find_job`` finds by `words`."""
    found = inert(await _result(client, "find_job", {"text": words}))
    job = found.get("job")
    if found.get("status") == "none":
        raise _Ended("absent", "no process of the job runs there")
    if found.get("status") == "several" and not isinstance(job, dict):
        jobs = [str(one.get("id")) for one in found.get("jobs") or [] if isinstance(one, dict)]
        raise _Ended("refused", f"several jobs match: {', '.join(jobs[:5])}")
    pid = found.get("pid") or (job.get("pid") if isinstance(job, dict) else None)
    if not isinstance(pid, int) or isinstance(pid, bool):
        raise _Ended("invalid", "find_job gave no process")
    listed = job.get("ranks") if isinstance(job, dict) else None
    ranks = {
        one["pid"]: one["rank"]
        for one in (listed if isinstance(listed, list) else [])
        if isinstance(one, dict) and isinstance(one.get("pid"), int) and isinstance(one.get("rank"), int)
    }
    name = job.get("id") if isinstance(job, dict) else None
    return Located(pid, ranks.get(pid), ranks, name if isinstance(name, str) else "")


async def _result(client: Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the structured result of a tool. Not `Client.call_tool`, which lists all tools first to validate it."""
    request = types.CallToolRequest(params=types.CallToolRequestParams(name=tool, arguments=arguments))
    try:
        result = await client.session.send_request(request, types.CallToolResult)
    except MCPError as error:
        if error.error.code != types.INVALID_PARAMS:
            raise
        raise _Ended("refused", error.error.message) from None  # it has no such tool
    if result.is_error:
        texts = [part.text for part in result.content if isinstance(part, types.TextContent)]
        raise _Ended("refused", texts[0] if texts else "an error without a text")
    if not isinstance(result.structured_content, dict):
        raise _Ended("invalid", "no structured result")
    return result.structured_content


async def _content(client: Client, uri: str) -> bytes | dict[str, Any]:
    """Return the content of a binary resource, or the object in one of JSON."""
    request = types.ReadResourceRequest(params=types.ReadResourceRequestParams(uri=uri))
    try:
        result = await client.session.send_request(request, types.ReadResourceResult)
    except MCPError as error:
        raise _Ended("refused", error.error.message) from None
    for part in result.contents:
        if isinstance(part, types.BlobResourceContents):
            try:
                return base64.b64decode(part.blob, validate=True)
            except ValueError:
                raise _Ended("invalid", "its content is no base64") from None
        try:
            found = json.loads(part.text)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            return found
    raise _Ended("invalid", "no content")


def _ended(error: BaseException) -> tuple[Status, str] | None:
    """Return the status in `error`, or in the exceptions that a task group wrapped."""
    if isinstance(error, _Ended):
        return error.status, str(error)
    for inner in getattr(error, "exceptions", ()):
        if (found := _ended(inner)) is not None:
            return found
    return None


def _failed(error: BaseException | None, exchange: http.Exchange | None) -> tuple[Status, str]:
    """Return why a call failed that did not end with a result or error of the tool."""
    if exchange is not None:
        if exchange.too_large:
            return "too_large", "its reply is over the limit"
        if exchange.encoded:
            return "invalid", "its reply is compressed, which was not requested"
        if exchange.failure:
            return "unreachable", exchange.failure
        if exchange.status >= 400:
            meaning = _MEANINGS.get(exchange.status)
            return "refused", f"HTTP {exchange.status}{f'; {meaning}' if meaning else ''}"
    told = _mcp_error(error)
    return "invalid", f"its reply is not valid MCP{f'; {told}' if told else ''}"


def _mcp_error(error: BaseException | None) -> str:
    if isinstance(error, MCPError):
        return error.error.message
    return next((told for inner in getattr(error, "exceptions", ()) if (told := _mcp_error(inner))), "")
