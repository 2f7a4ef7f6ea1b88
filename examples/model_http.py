"""An HTTP server with the protocols of chat completions and of Anthropic's Messages API, and faults to simulate.

Requests are checked strictly: every call of an assistant's message has its answer, arguments in the history are JSON,
names of functions are plain.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import model_messages

MODEL = "example"
MAX_REQUEST_BYTES = 64 << 20
PIECE = 24
"""Characters of text per streamed chunk."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """A client's request. `body`: the JSON, empty for GET; of the Messages API in the form of chat completions. `raw`:
    the bytes received.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: Json = field(default_factory=dict)
    raw: bytes = b""

    @property
    def messages(self) -> list[Json]:
        messages: list[Json] = self.body.get("messages", [])
        return messages

    @property
    def functions(self) -> dict[str, Json]:
        """Return the functions offered, by name: ``{"name": ..., "description": ..., "parameters": ...}``."""
        return {tool["function"]["name"]: tool["function"] for tool in self.body.get("tools") or []}

    @property
    def stream(self) -> bool:
        """Return whether the client asks for server-sent events."""
        return bool(self.body.get("stream"))


@dataclass(frozen=True)
class Call:
    """A function call. `arguments`: a mapping, or the model's text, JSON or not. `id` None: the server makes one."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None


@dataclass(frozen=True)
class Turn:
    """An answer of the model. `finish` None: ``tool_calls`` with calls, else ``stop``. `usage`: tokens in, out (or
    None). `extra`: further fields of the message (``reasoning_content``). `delay`: seconds before it is sent.
    """

    content: str = ""
    calls: Sequence[Call] = ()
    finish: str | None = None
    refusal: str = ""
    usage: tuple[int, int] | None = (100, 20)
    extra: Mapping[str, Any] = field(default_factory=dict)
    delay: float = 0.0


@dataclass(frozen=True)
class Raw:
    """Bytes instead of an answer, to simulate a broken or overloaded server.

    `body` is sent `repeat` times (a huge body needs no memory), in pieces of `piece` bytes every `drip` seconds.
    `length`: the Content-Length (True: the right one; None: none, the body ends with the connection). `delay`: seconds
    before the status line.
    """

    status: int = 200
    body: bytes | str = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    repeat: int = 1
    drip: float = 0.0
    piece: int = 1
    length: bool | int | None = True
    delay: float = 0.0
    content_type: str = "application/json"


@dataclass(frozen=True)
class Cut:
    """An answer whose connection is closed after `after` bytes of its body; 0: before the status line."""

    answer: Turn | Raw
    after: int = 0


@dataclass(frozen=True)
class Die:
    """No answer: the server stops listening and closes every connection, as if killed."""


Answer = Turn | Raw | Cut | Die
Policy = Callable[[Request], Answer]


def error(status: int, message: str, kind: str = "invalid_request_error", **headers: str) -> Raw:
    """Return an error of the protocol; `headers` as ``Retry_After="1"``."""
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": None}})
    return Raw(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


def script(answers: Iterable[Answer]) -> Policy:
    """Return a policy that gives the `answers` in order, whatever is asked, and then error 500."""
    left = iter(answers)
    lock = threading.Lock()

    def answer(_: Request) -> Answer:
        with lock:
            return next(left, error(500, "the script has no more answers", "server_error"))

    return answer


class Server:
    """A running server. `requests`: every request, in order, refused ones included."""

    def __init__(self, policy: Policy, *, port: int = 0, key: str | None = None, model: str = MODEL) -> None:
        """`port` 0: a free one. With a `key`, requests without it get 401; for another `model` they get 404.

        Raises OSError when the port is taken.
        """
        self.requests: list[Request] = []
        self.policy = policy
        self.key = key
        self.model = model
        self.stopping = threading.Event()
        self.numbers = itertools.count(1)
        self._http = _Http(("127.0.0.1", port), self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name="model-server")
        self._closing = threading.Lock()
        self._closed = False

    @property
    def base_url(self) -> str:
        """Return the address for clients, ending in ``/v1``."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def chats(self) -> list[Request]:
        """Return the requests for completions."""
        return [request for request in self.requests if request.method == "POST"]

    def start(self) -> None:
        """Begin to answer requests."""
        self._thread.start()

    def kill(self) -> None:
        """Stop listening and cut every connection at once; returns when no new connection is accepted. Idempotent."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self.stopping.set()
            self._http.shutdown()
            self._http.socket.close()
            self._http.cut_all()

    def stop(self) -> None:
        """`kill`, and wait for the requests in progress."""
        self.kill()
        self._thread.join()
        self._http.server_close()


def fault_of(body: Json) -> str | None:
    """Return why a strict server would refuse a request; None if it would not."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return "'messages' is missing or empty"
    for tool in body.get("tools") or []:
        function = tool.get("function") or {}
        if tool.get("type") != "function" or not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", str(function.get("name"))):
            return f"a tool is not a function with a plain name: {json.dumps(tool)[:200]}"
        if (function.get("parameters") or {}).get("type") != "object":
            return f"the parameters of {function['name']} are not a schema of an object"
    waiting: list[str] = []
    for at, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            if message.get("tool_call_id") not in waiting:
                return f"messages[{at}]: answers a call that was not made: {message.get('tool_call_id')}"
            waiting.remove(message["tool_call_id"])
        elif waiting:
            return f"messages[{at}]: calls without an answer before it: {', '.join(waiting)}"
        elif role not in ("system", "user", "assistant"):
            return f"messages[{at}]: unknown role {role!r}"
        if role != "assistant" and not isinstance(message.get("content"), str):
            return f"messages[{at}]: content is not text"
        for call in message.get("tool_calls") or []:
            waiting.append(call["id"])
            try:
                json.loads(call["function"]["arguments"])
            except (TypeError, ValueError):
                return f"messages[{at}]: the arguments of {call['function'].get('name')} are not JSON"
    return f"calls without an answer: {', '.join(waiting)}" if waiting else None


class _Http(ThreadingHTTPServer):
    """An HTTP server that waits for its threads, and whose connections can be cut."""

    daemon_threads = False

    def __init__(self, address: tuple[str, int], owner: Server) -> None:
        self.owner = owner
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def cut_all(self) -> None:
        """Close every connection, in the middle of a transfer."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors, except that of a client that disconnected."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _CutError(OSError):
    """The connection was closed on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "whystall-example"
    sys_version = ""
    # Small pieces go out at once, as a model's tokens do.
    disable_nagle_algorithm: ClassVar[bool] = True
    server: _Http
    fault: str | None = None  # of a request of the Messages API

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing; `Server.requests` has the requests."""

    def do_GET(self) -> None:
        request = self._take(b"")
        refused = self._refusal(request)
        if refused is None and request.path.partition("?")[0].rstrip("/") == "/v1/models":
            model = {"id": self.server.owner.model, "object": "model", "created": 0, "owned_by": "whystall"}
            refused = Raw(body=json.dumps({"object": "list", "data": [model]}))
        self._raw(refused or error(404, f"no such path: {request.path}", "not_found_error"))

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            self._raw(error(411, "a Content-Length is needed"))
            return
        if not 0 <= length <= MAX_REQUEST_BYTES:
            self.close_connection = True
            self._raw(error(413, f"a request is at most {MAX_REQUEST_BYTES} bytes long"))
            return
        request = self._take(self.rfile.read(length))
        answer: Answer | None = self._refusal(request) or self._wrong(request)
        self._answer(request, answer or self.server.owner.policy(request))

    def _take(self, raw: bytes) -> Request:
        body: Any = {}
        with contextlib.suppress(ValueError):
            body = json.loads(raw) if raw else {}
        body = body if isinstance(body, dict) else {}
        self.fault = None
        if self.path == model_messages.PATH and body:
            self.fault = model_messages.fault_of(body, dict(self.headers))
            body = {"model": body.get("model"), "messages": []} if self.fault else model_messages.as_chat(body)
        request = Request(self.command, self.path, dict(self.headers), body, raw)
        self.server.owner.requests.append(request)
        return request

    def _refusal(self, request: Request) -> Raw | None:
        key = self.server.owner.key
        sent = {name.lower(): value for name, value in request.headers.items()}
        given = (
            sent.get("x-api-key") if "anthropic-version" in sent else sent.get("authorization", "")[len("Bearer ") :]
        )
        if key is not None and given != key:
            return error(401, "Incorrect API key provided", "authentication_error", WWW_Authenticate="Bearer")
        return None

    def _wrong(self, request: Request) -> Raw | None:
        messages = request.path == model_messages.PATH
        if not messages and request.path.rstrip("/") != "/v1/chat/completions":
            return error(404, f"no such path: {request.path}", "not_found_error")
        if not request.body:
            return error(400, "the body is no JSON object")
        if request.body.get("model") != self.server.owner.model:
            return error(404, f"The model `{request.body.get('model')}` does not exist.", "not_found_error")
        fault = self.fault if messages else fault_of(request.body)
        return error(400, fault) if fault else None

    def _answer(self, request: Request, answer: Answer) -> None:
        if isinstance(answer, Die):
            self.server.owner.kill()
            raise _CutError
        cut = None
        if isinstance(answer, Cut):
            cut = answer.after
            if cut == 0:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
        whole = answer.answer if isinstance(answer, Cut) else answer
        if isinstance(whole, Raw):
            self._raw(whole, cut)
        elif request.stream:
            self._pause(whole.delay)
            self._events(list(self._streamed(request, whole)), cut)
        else:
            body = json.dumps(self._completion(request, whole), ensure_ascii=False)
            self._raw(Raw(body=body, delay=whole.delay), cut)

    def _pause(self, seconds: float) -> None:
        """Wait, unless the server stops meanwhile."""
        if seconds > 0 and self.server.owner.stopping.wait(seconds):
            raise _CutError

    def _raw(self, raw: Raw, cut: int | None = None) -> None:
        body = raw.body.encode() if isinstance(raw.body, str) else raw.body
        self._pause(raw.delay)
        self.send_response(raw.status)
        self.send_header("Content-Type", raw.content_type)
        if raw.length is None:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(body) * raw.repeat if raw.length is True else int(raw.length)))
        for name, value in raw.headers.items():
            self.send_header(name, value)
        self.end_headers()
        step = raw.piece if raw.drip else max(1, len(body))
        sent = 0
        for _ in range(raw.repeat):
            for start in range(0, len(body), step):
                sent = self._send(body[start : start + step], sent, cut)
                self._pause(raw.drip)
        if raw.length is not True:
            self.close_connection = True

    def _send(self, data: bytes, sent: int, cut: int | None) -> int:
        if cut is not None and sent + len(data) >= cut:
            self.wfile.write(data[: cut - sent])
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            raise _CutError
        self.wfile.write(data)
        return sent + len(data)

    def _streamed(self, request: Request, turn: Turn) -> Iterator[str]:
        """Yield the events of an answer as text."""
        if request.path == model_messages.PATH:
            for event in model_messages.events(turn, self._plain_calls(turn), self._head("message")):
                yield f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}"
            return
        for chunk in self._chunks(request, turn):
            yield f"data: {json.dumps(chunk, ensure_ascii=False)}"
        yield "data: [DONE]"

    def _plain_calls(self, turn: Turn) -> list[tuple[str, str, str]]:
        calls = self._calls(turn)
        return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]

    def _events(self, chunks: Sequence[str], cut: int | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent = 0
        for text in chunks:
            event = f"{text}\n\n".encode()
            sent = self._send(b"%x\r\n%b\r\n" % (len(event), event), sent, cut)
        self.wfile.write(b"0\r\n\r\n")

    def _calls(self, turn: Turn) -> list[Json]:
        return [
            {
                "id": f"call_{next(self.server.owner.numbers)}" if call.id is None else call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": written(call.arguments)},
            }
            for call in turn.calls
        ]

    def _head(self, kind: str) -> Json:
        number = next(self.server.owner.numbers)
        return {"id": f"chatcmpl-{number}", "object": kind, "created": 0, "model": self.server.owner.model}

    def _completion(self, request: Request, turn: Turn) -> Json:
        if request.path == model_messages.PATH:
            return model_messages.message(turn, self._plain_calls(turn), self._head("message"))
        message: Json = {"role": "assistant", "content": turn.content or None, **turn.extra}
        if turn.calls:
            message["tool_calls"] = self._calls(turn)
        if turn.refusal:
            message["refusal"] = turn.refusal
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_of(turn)}
        usage = {} if turn.usage is None else {"usage": usage_of(turn.usage)}
        return {**self._head("chat.completion"), "choices": [choice], **usage}

    def _chunks(self, request: Request, turn: Turn) -> Iterator[Json]:
        """Yield the answer in pieces, as a real model streams text and arguments."""
        head = self._head("chat.completion.chunk")

        def chunk(delta: Json, finish: str | None = None) -> Json:
            return {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}

        yield chunk({"role": "assistant", "content": "", **turn.extra})
        for piece in pieces(turn.content):
            yield chunk({"content": piece})
        for piece in pieces(turn.refusal):
            yield chunk({"refusal": piece})
        for index, call in enumerate(self._calls(turn)):
            function = call["function"]
            opened = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
            yield chunk({"tool_calls": [opened]})
            for piece in pieces(function["arguments"]):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield chunk({}, finish_of(turn))
        if turn.usage is not None and (request.body.get("stream_options") or {}).get("include_usage"):
            yield {**head, "choices": [], "usage": usage_of(turn.usage)}


def written(arguments: Mapping[str, Any] | str) -> str:
    """Return the arguments of a call as the protocol's text."""
    return arguments if isinstance(arguments, str) else json.dumps(dict(arguments), ensure_ascii=False)


def finish_of(turn: Turn) -> str:
    return turn.finish or ("tool_calls" if turn.calls else "stop")


def usage_of(usage: tuple[int, int]) -> Json:
    """Return token counts with the protocol's names."""
    return {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}


def pieces(text: str) -> Iterator[str]:
    """Yield `text` in the pieces that are streamed."""
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))
