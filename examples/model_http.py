"""HTTP with the protocol of chat completions, for models that are none: answers, faults, and the server itself.

Requests are checked as strict servers check them: every call of an assistant's message has its answer, arguments in the
history are JSON, names of functions are plain.
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

MODEL = "example"
MAX_REQUEST_BYTES = 64 << 20
PIECE = 24
"""Characters of text per streamed chunk."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """What a client sent. `body` is the JSON, empty for GET; `raw` the bytes as they came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Json = field(default_factory=dict)
    raw: bytes = b""

    @property
    def messages(self) -> list[Json]:
        """The conversation so far."""
        messages: list[Json] = self.body.get("messages", [])
        return messages

    @property
    def functions(self) -> dict[str, Json]:
        """The functions offered, by name: ``{"name": ..., "description": ..., "parameters": ...}``."""
        return {tool["function"]["name"]: tool["function"] for tool in self.body.get("tools") or []}

    @property
    def stream(self) -> bool:
        """Whether the answer is wanted as server-sent events."""
        return bool(self.body.get("stream"))


@dataclass(frozen=True)
class Call:
    """A call of a function. `arguments` as a mapping, or as the text that a model wrote, be it JSON or not. Without an
    `id` the server makes one.
    """

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None


@dataclass(frozen=True)
class Say:
    """An answer of the model. `finish` defaults to ``tool_calls`` where there are calls, else ``stop``. `usage`: tokens
    in and out; None leaves them out, as some servers do. `extra`: further fields of the message
    (``reasoning_content``). `delay`: seconds before anything is sent.
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
    """Bytes instead of an answer, to play a server that is broken, overloaded or no model at all.

    `body` is sent as it is; `repeat` it so often (a huge body needs no memory). `drip`: seconds between pieces of
    `piece` bytes. `length`: the Content-Length that is claimed (True: the right one; None: none, the end of the
    connection ends the body). `delay`: seconds before the status line.
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

    answer: Say | Raw
    after: int = 0


@dataclass(frozen=True)
class Die:
    """No answer; the server stops listening and closes every connection, as if it were killed."""


Answer = Say | Raw | Cut | Die
Policy = Callable[[Request], Answer]


def error(status: int, message: str, kind: str = "invalid_request_error", **headers: str) -> Raw:
    """An error in the protocol's shape; `headers` as ``Retry_After="1"``."""
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": None}})
    return Raw(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


def script(answers: Iterable[Answer]) -> Policy:
    """The `answers` in order, whatever is asked; afterwards an error 500 that says so."""
    left = iter(answers)
    lock = threading.Lock()

    def answer(_: Request) -> Answer:
        with lock:
            return next(left, error(500, "the script has no more answers", "server_error"))

    return answer


class Server:
    """A running server. `requests` holds every request for an answer, in order, also those refused."""

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
        """What a client is given, ending in ``/v1``."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self._http.server_address[1])

    @property
    def chats(self) -> list[Request]:
        """The requests for completions among `requests`."""
        return [request for request in self.requests if request.method == "POST"]

    def start(self) -> None:
        """Answer from now on."""
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
        """`kill`, and wait for what is being answered."""
        self.kill()
        self._thread.join()
        self._http.server_close()


def fault_of(body: Json) -> str | None:
    """What a strict server would find wrong with a request; None when nothing is."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return "'messages' is missing or empty"
    for tool in body.get("tools") or []:
        function = tool.get("function") or {}
        if tool.get("type") != "function" or not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", str(function.get("name"))):
            return f"a tool is no function with a plain name: {json.dumps(tool)[:200]}"
        if (function.get("parameters") or {}).get("type") != "object":
            return f"the parameters of {function['name']} are no schema of an object"
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
            return f"messages[{at}]: content is no text"
        for call in message.get("tool_calls") or []:
            waiting.append(call["id"])
            try:
                json.loads(call["function"]["arguments"])
            except (TypeError, ValueError):
                return f"messages[{at}]: the arguments of {call['function'].get('name')} are no JSON"
    return f"calls without an answer: {', '.join(waiting)}" if waiting else None


class _Http(ThreadingHTTPServer):
    """Threads that are waited for, and connections that can be cut."""

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
        """End every connection, in the middle of what it is doing."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may go away whenever they like; anything else is a fault of ours and told."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _CutError(OSError):
    """The answer ends here."""


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "whystall-example"
    sys_version = ""
    # Small pieces go out at once, as a model's tokens do.
    disable_nagle_algorithm: ClassVar[bool] = True
    server: _Http

    def log_message(self, format: str, *args: Any) -> None:
        """Silent; `Server.requests` keeps what came."""

    def do_GET(self) -> None:
        """The list of models."""
        request = self._take(b"")
        refused = self._refusal(request)
        if refused is None and request.path.rstrip("/") == "/v1/models":
            model = {"id": self.server.owner.model, "object": "model", "created": 0, "owned_by": "whystall"}
            refused = Raw(body=json.dumps({"object": "list", "data": [model]}))
        self._raw(refused or error(404, f"no such path: {request.path}", "not_found_error"))

    def do_POST(self) -> None:
        """A completion."""
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
        request = Request(self.command, self.path, dict(self.headers), body if isinstance(body, dict) else {}, raw)
        self.server.owner.requests.append(request)
        return request

    def _refusal(self, request: Request) -> Raw | None:
        key = self.server.owner.key
        if key is not None and request.headers.get("Authorization") != f"Bearer {key}":
            return error(401, "Incorrect API key provided", "authentication_error", WWW_Authenticate="Bearer")
        return None

    def _wrong(self, request: Request) -> Raw | None:
        if request.path.rstrip("/") != "/v1/chat/completions":
            return error(404, f"no such path: {request.path}", "not_found_error")
        if not request.body:
            return error(400, "the body is no JSON object")
        if request.body.get("model") != self.server.owner.model:
            return error(404, f"The model `{request.body.get('model')}` does not exist.", "not_found_error")
        fault = fault_of(request.body)
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
        said = answer.answer if isinstance(answer, Cut) else answer
        if isinstance(said, Raw):
            self._raw(said, cut)
        elif request.stream:
            self._pause(said.delay)
            self._events(list(self._chunks(request, said)), cut)
        else:
            self._raw(Raw(body=json.dumps(self._completion(said), ensure_ascii=False), delay=said.delay), cut)

    def _pause(self, seconds: float) -> None:
        """Wait, unless the server ends meanwhile."""
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

    def _events(self, chunks: Sequence[Json], cut: int | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent = 0
        for text in (*(json.dumps(chunk, ensure_ascii=False) for chunk in chunks), "[DONE]"):
            event = f"data: {text}\n\n".encode()
            sent = self._send(b"%x\r\n%b\r\n" % (len(event), event), sent, cut)
        self.wfile.write(b"0\r\n\r\n")

    def _calls(self, say: Say) -> list[Json]:
        return [
            {
                "id": f"call_{next(self.server.owner.numbers)}" if call.id is None else call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": written(call.arguments)},
            }
            for call in say.calls
        ]

    def _head(self, kind: str) -> Json:
        number = next(self.server.owner.numbers)
        return {"id": f"chatcmpl-{number}", "object": kind, "created": 0, "model": self.server.owner.model}

    def _completion(self, say: Say) -> Json:
        message: Json = {"role": "assistant", "content": say.content or None, **say.extra}
        if say.calls:
            message["tool_calls"] = self._calls(say)
        if say.refusal:
            message["refusal"] = say.refusal
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_of(say)}
        usage = {} if say.usage is None else {"usage": usage_of(say.usage)}
        return {**self._head("chat.completion"), "choices": [choice], **usage}

    def _chunks(self, request: Request, say: Say) -> Iterator[Json]:
        """The answer in pieces: text and arguments arrive little by little, as from a real model."""
        head = self._head("chat.completion.chunk")

        def chunk(delta: Json, finish: str | None = None) -> Json:
            return {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}

        yield chunk({"role": "assistant", "content": "", **say.extra})
        for piece in pieces(say.content):
            yield chunk({"content": piece})
        for piece in pieces(say.refusal):
            yield chunk({"refusal": piece})
        for index, call in enumerate(self._calls(say)):
            function = call["function"]
            opened = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
            yield chunk({"tool_calls": [opened]})
            for piece in pieces(function["arguments"]):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield chunk({}, finish_of(say))
        if say.usage is not None and (request.body.get("stream_options") or {}).get("include_usage"):
            yield {**head, "choices": [], "usage": usage_of(say.usage)}


def written(arguments: Mapping[str, Any] | str) -> str:
    """The arguments of a call as the text that the protocol carries."""
    return arguments if isinstance(arguments, str) else json.dumps(dict(arguments), ensure_ascii=False)


def finish_of(say: Say) -> str:
    """Why the answer ends."""
    return say.finish or ("tool_calls" if say.calls else "stop")


def usage_of(usage: tuple[int, int]) -> Json:
    """Tokens, in the protocol's words."""
    return {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}


def pieces(text: str) -> Iterator[str]:
    """`text` cut as it is streamed."""
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))
