"""A server of embeddings and of chat completions on loopback, for the search of past incidents."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from whystall.knowledge_base.models import Incident, Words

CARDS = {
    "slow-fabric": ("The gradient exchange crawls", "allreduce takes ten times as long on one rail"),
    "full-disk": ("Checkpoints stop", "write returns ENOSPC on the scratch volume"),
    "cold-cache": ("The first epoch drags", "pages of the shards come from the device"),
}
AXES = ("fabric exchange allreduce rail", "disk checkpoints enospc volume", "cache epoch pages shards")


def vector(text: str, size: int = 8) -> list[float]:
    """Count the words of each axis in `text`: meaning, for this test."""
    lowered = text.lower()
    counts = [sum(lowered.count(word) for word in axis.split()) for axis in AXES]
    return [*(float(count) for count in counts), 0.1, *([0.0] * (size - len(counts) - 1))]


@dataclass
class ModelServer:
    """`vectors`: how a text is embedded; `reply`: the answer of the chat model to the text of the question."""

    url: str = ""
    vectors: Callable[[str], list[float]] = vector
    reply: Callable[[str], str] = lambda _: "none"
    status: int = 200
    delay: float = 0.0
    embedded: list[list[str]] = field(default_factory=list)
    asked: list[list[dict[str, str]]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    server_of: ClassVar[ModelServer]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        owner = self.server_of
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        owner.keys.append(self.headers.get("Authorization", ""))
        time.sleep(owner.delay)
        if self.path == "/v1/embeddings":
            owner.embedded.append(body["input"])
            entries = [{"index": at, "embedding": owner.vectors(text)} for at, text in enumerate(body["input"])]
            answer: dict[str, Any] = {"data": entries[::-1], "model": body["model"]}
        else:
            owner.asked.append(body["messages"])
            message = {"role": "assistant", "content": owner.reply(body["messages"][-1]["content"])}
            answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        raw = json.dumps(answer).encode()
        self.send_response(owner.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


@contextlib.contextmanager
def search_server() -> Iterator[ModelServer]:
    """Run a server until the block ends."""
    owner = ModelServer()
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"server_of": owner}))
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    owner.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
    try:
        yield owner
    finally:
        http.shutdown()
        http.server_close()


def made(id: str, title: str, symptom: str) -> Incident:
    said = {"title": title, "symptom": symptom, "root_cause": "known later", "fix": "none"}
    texts = {name: Words(en=text, zh=text) for name, text in said.items()}
    return Incident(id=id, cause=None, source="test", source_url="", origin="user", **texts)
