"""A small inference server on the CPU: a decoder with random weights, a queue, continuous batching, a paged KV cache.

    python inference_engine.py serve --port 8100 [--max-seqs 4] [--blocks 256] [--fault NAME]
    python inference_engine.py clients --port 8100 --clients 8 --seconds 20

It answers POST /generate {"prompt": "...", "max_tokens": 16}, GET /health, and GET /metrics with the names of vLLM.
One thread schedules: it admits waiting requests while sequences and blocks are free, computes their prompts, then one
token of each running sequence. Without a free block it preempts the youngest sequence, which is computed anew later.

Faults: ``tokenizer`` (tokenizing takes CPU time in the scheduler), ``lock`` (some time after the first request another
thread keeps the lock of the scheduler), ``adapter`` (each request reads the file --adapter in the scheduler).
"""

from __future__ import annotations

import argparse
import json
import threading
import time
import urllib.request
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

BLOCK = 16
"""Tokens of a block of the cache."""
WIDTH, LAYERS, WORDS = 64, 2, 256
_LABELS = 'engine="0",model_name="tiny"'
_TIMES = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0)
_HISTOGRAMS = {
    "time_to_first_token_seconds": _TIMES,
    "inter_token_latency_seconds": _TIMES,
    "e2e_request_latency_seconds": _TIMES,
    "request_queue_time_seconds": _TIMES,
    "request_prefill_time_seconds": _TIMES,
    "request_decode_time_seconds": _TIMES,
}
_COUNTERS = ("num_preemptions", "prompt_tokens", "generation_tokens", "request_success")


class Metrics:
    """Counters and histograms, as text for Prometheus."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters = dict.fromkeys(_COUNTERS, 0.0)
        self._buckets = {name: [0] * (len(bounds) + 1) for name, bounds in _HISTOGRAMS.items()}
        self._sums = dict.fromkeys(_HISTOGRAMS, 0.0)

    def add(self, name: str, value: float = 1.0) -> None:
        """Increase a counter."""
        with self._lock:
            self._counters[name] += value

    def observe(self, name: str, seconds: float) -> None:
        """Add an observation to a histogram."""
        at = next((n for n, bound in enumerate(_HISTOGRAMS[name]) if seconds <= bound), len(_HISTOGRAMS[name]))
        with self._lock:
            self._buckets[name][at] += 1
            self._sums[name] += seconds

    def text(self, gauges: dict[str, float]) -> str:
        """Return the exposition, with `gauges` as they are now."""
        lines = []
        with self._lock:
            for name, value in gauges.items():
                lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{_LABELS}}} {value}"]
            for name, value in self._counters.items():
                lines += [f"# TYPE vllm:{name} counter", f"vllm:{name}_total{{{_LABELS}}} {value}"]
            for name, counts in self._buckets.items():
                lines.append(f"# TYPE vllm:{name} histogram")
                below = 0
                for bound, count in zip((*map(str, _HISTOGRAMS[name]), "+Inf"), counts, strict=True):
                    below += count
                    lines.append(f'vllm:{name}_bucket{{{_LABELS},le="{bound}"}} {below}')
                lines.append(f"vllm:{name}_count{{{_LABELS}}} {below}")
                lines.append(f"vllm:{name}_sum{{{_LABELS}}} {self._sums[name]}")
        return "\n".join(lines) + "\n"


@dataclass
class Sequence:
    """A request: its prompt, what was generated, and its rows of the cache."""

    prompt: str
    max_tokens: int
    arrived: float = field(default_factory=time.monotonic)
    tokens: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    blocks: int = 0
    cache: list[tuple[Any, Any]] = field(default_factory=list)
    scheduled: float = 0.0
    first: float = 0.0
    last: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)


class Model:
    """A decoder with random weights: embedding, attention over a cache of keys and values, feed-forward."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        torch.set_num_threads(1)
        torch.manual_seed(1)
        self._words = torch.randn(WORDS, WIDTH)
        self._layers = [[torch.randn(WIDTH, WIDTH) / WIDTH**0.5 for _ in range(5)] for _ in range(LAYERS)]

    def forward(self, tokens: list[int], cache: list[tuple[Any, Any]]) -> int:
        """Return the next token after `tokens`, whose keys and values are added to `cache`."""
        torch = self._torch
        with torch.no_grad():
            state = self._words[torch.tensor(tokens)]
            for layer, (query, key, value, up, down) in enumerate(self._layers):
                keys, values = state @ key, state @ value
                if len(cache) > layer:
                    before = cache[layer]
                    keys, values = torch.cat([before[0], keys]), torch.cat([before[1], values])
                    cache[layer] = (keys, values)
                else:
                    cache.append((keys, values))
                weights = torch.softmax((state @ query) @ keys.T / WIDTH**0.5, dim=-1)
                state = state + weights @ values
                state = state + torch.relu(state @ up) @ down
            return int(torch.argmax(state[-1] @ self._words.T))


class Engine:
    """The queue, the scheduler and the cache."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._model = Model()
        self.metrics = Metrics()
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._free = options.blocks
        self._lock = threading.Lock()
        self._arrived = threading.Condition()
        self._begun = threading.Event()

    def start(self) -> None:
        """Start the scheduler, and the thread of the fault ``lock``."""
        threading.Thread(target=self._schedule, name="scheduler", daemon=True).start()
        if self._options.fault == "lock":
            threading.Thread(target=self._keep_lock, name="stats", daemon=True).start()

    def submit(self, sequence: Sequence) -> None:
        """Put a request into the queue."""
        with self._arrived:
            self._waiting.append(sequence)
            self._arrived.notify()
        self._begun.set()

    def text(self) -> str:
        """Return the metrics."""
        used = 1.0 - self._free / self._options.blocks
        gauges = {
            "num_requests_waiting": float(len(self._waiting)),
            "num_requests_running": float(len(self._running)),
            "kv_cache_usage_perc": used,
        }
        return self.metrics.text(gauges)

    def _keep_lock(self) -> None:
        self._begun.wait()
        time.sleep(self._options.after)
        with self._lock:
            print(json.dumps({"event": "lock_kept"}), flush=True)
            time.sleep(3600)

    def _schedule(self) -> None:
        while True:
            with self._arrived:
                while not self._waiting and not self._running:
                    self._arrived.wait()
            self._step()

    def _step(self) -> None:
        """Admit requests, and make one token of each running sequence."""
        with self._lock:
            self._admit()
        for sequence in list(self._running):
            if sequence in self._running:
                self._decode(sequence)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._options.max_seqs:
            sequence = self._waiting[0]
            if not sequence.tokens:
                sequence.tokens = self._tokenized(sequence.prompt)
                sequence.prompt_tokens = len(sequence.tokens)
            needed = len(sequence.tokens) // BLOCK + 1
            if needed > self._free:
                return
            self._waiting.popleft()
            self._free -= needed
            sequence.blocks = needed
            self._running.append(sequence)
            self._prefill(sequence)

    def _prefill(self, sequence: Sequence) -> None:
        if not sequence.scheduled:
            sequence.scheduled = time.monotonic()
            self.metrics.observe("request_queue_time_seconds", sequence.scheduled - sequence.arrived)
        if self._options.fault == "adapter":
            Path(self._options.adapter).read_bytes()
        token = self._model.forward(sequence.tokens, sequence.cache)
        self.metrics.add("prompt_tokens", len(sequence.tokens))
        if not sequence.first:
            sequence.first = sequence.last = time.monotonic()
            self.metrics.observe("time_to_first_token_seconds", sequence.first - sequence.arrived)
            self.metrics.observe("request_prefill_time_seconds", sequence.first - sequence.scheduled)
        self._append(sequence, token)

    def _decode(self, sequence: Sequence) -> None:
        if len(sequence.tokens) // BLOCK + 1 > sequence.blocks:
            while not self._free:
                youngest = self._running[-1]
                self._preempt(youngest)
                if youngest is sequence:
                    return
            self._free -= 1
            sequence.blocks += 1
        token = self._model.forward(sequence.tokens[-1:], sequence.cache)
        now = time.monotonic()
        self.metrics.observe("inter_token_latency_seconds", now - sequence.last)
        sequence.last = now
        self._append(sequence, token)

    def _append(self, sequence: Sequence, token: int) -> None:
        sequence.tokens.append(token)
        self.metrics.add("generation_tokens")
        if len(sequence.tokens) - sequence.prompt_tokens < sequence.max_tokens:
            return
        now = time.monotonic()
        self._release(sequence)
        self.metrics.observe("e2e_request_latency_seconds", now - sequence.arrived)
        self.metrics.observe("request_decode_time_seconds", now - sequence.first)
        self.metrics.add("request_success")
        sequence.done.set()

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        self.metrics.add("num_preemptions")
        self._waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._free += sequence.blocks
        sequence.blocks, sequence.cache = 0, []

    def _tokenized(self, prompt: str) -> list[int]:
        if self._options.fault == "tokenizer":
            _merge_pairs(prompt, self._options.tokenizer_s)
        return [ord(letter) % WORDS for letter in prompt][:512] or [0]


def _merge_pairs(prompt: str, seconds: float) -> int:
    """Count pairs of letters again and again, as a byte-pair tokenizer in Python would, for so much CPU time."""
    until, found = time.thread_time() + seconds, 0
    while time.thread_time() < until:
        pairs: dict[tuple[str, str], int] = {}
        for pair in pairwise(prompt):
            pairs[pair] = pairs.get(pair, 0) + 1
        found += len(pairs)
    return found


def handler(engine: Engine) -> type[BaseHTTPRequestHandler]:
    """Return the handler of requests to `engine`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(engine.text().encode(), "text/plain; version=0.0.4")
            elif self.path == "/health":
                self._answer(b"", "text/plain")
            else:
                self.send_error(404)

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            sequence = Sequence(str(asked["prompt"]), int(asked["max_tokens"]))
            engine.submit(sequence)
            sequence.done.wait()
            answer = {"tokens": len(sequence.tokens) - sequence.prompt_tokens}
            self._answer(json.dumps(answer).encode(), "application/json")

        def _answer(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def serve(options: argparse.Namespace) -> None:
    """Serve until killed; the port is logged."""
    engine = Engine(options)
    server = _Server(("127.0.0.1", options.port), handler(engine))
    engine.start()
    print(json.dumps({"event": "start", "port": server.server_address[1]}), flush=True)
    server.serve_forever()


def clients(options: argparse.Namespace) -> None:
    """Send requests from several threads, each after the answer to the one before."""
    until = time.monotonic() + options.seconds
    body = json.dumps({"prompt": "where does the time go? " * options.repeat, "max_tokens": options.tokens}).encode()

    def work() -> None:
        while time.monotonic() < until:
            request = urllib.request.Request(f"http://127.0.0.1:{options.port}/generate", body)
            try:
                urllib.request.urlopen(request, timeout=60).read()
            except OSError:
                return
            time.sleep(options.pause)

    print(json.dumps({"event": "start"}), flush=True)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(options.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def main() -> None:
    """Run the command."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = command.add_subparsers(required=True)
    server = parts.add_parser("serve")
    server.add_argument("--port", type=int, default=0)
    server.add_argument("--max-seqs", type=int, default=4)
    server.add_argument("--blocks", type=int, default=256)
    server.add_argument("--fault", choices=("none", "tokenizer", "lock", "adapter"), default="none")
    server.add_argument("--tokenizer-s", type=float, default=0.3, help="CPU time of one prompt")
    server.add_argument("--after", type=float, default=1.0, help="seconds until the lock is kept")
    server.add_argument("--adapter", default="")
    server.set_defaults(run=serve)
    sender = parts.add_parser("clients")
    sender.add_argument("--port", type=int, required=True)
    sender.add_argument("--clients", type=int, default=4)
    sender.add_argument("--seconds", type=float, default=30)
    sender.add_argument("--tokens", type=int, default=32)
    sender.add_argument("--repeat", type=int, default=4)
    sender.add_argument("--pause", type=float, default=0.0)
    sender.set_defaults(run=clients)
    options = command.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
