"""Reading metrics of inference servers: the text format, requests, and which ports are asked."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from metric_texts import SGLANG, replaying, vllm

from whystall.tools.collect.options import ServingOptions
from whystall.tools.collect.serving.catalogue import metrics, servers
from whystall.tools.collect.serving.engine import ServingEngine
from whystall.tools.collect.serving.exposition import MOST_SAMPLES, parsed
from whystall.tools.collect.serving.listening import metrics_endpoints
from whystall.tools.collect.serving.metric_files import recording_of_files
from whystall.tools.collect.serving.scrape import Endpoint, endpoint_of, get
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.recording.target import Target


def test_every_server_has_sources_and_its_names_belong_to_one_quantity() -> None:
    assert servers().keys() >= {"vllm", "sglang", "tgi", "triton", "trtllm", "lmdeploy", "llamacpp"}
    assert all(set(about.progress or ()) <= about.quantities.keys() for about in servers().values())
    assert all(source.startswith("https://") for about in servers().values() for source in about.sources)
    names = [name for about in servers().values() for one in about.quantities.values() for name in one.names]
    assert len(names) == len(set(names))
    assert metrics()["vllm:num_preemptions_total"].quantity == "preemptions"


def test_published_text_is_read_with_its_buckets() -> None:
    found = parsed(SGLANG)
    assert (found.odd, found.left) == (0, 0)
    values = {one.quantity: one.value for one in found.samples if one.part == "value"}
    assert values == {"waiting": 2826, "running": 162, "kv_usage": 0.28}
    buckets = {one.le: one.value for one in found.samples if (one.quantity, one.part) == ("ttft", "bucket")}
    assert buckets == {2.5: 140, 10: 1330, 30: 2513, math.inf: 11008}


@pytest.mark.parametrize(
    "line",
    [
        'vllm:num_requests_waiting{model_name="m"',
        "vllm:num_requests_waiting{model_name=m} 1",
        "vllm:num_requests_waiting NaN",
        "vllm:num_requests_waiting -3",
        "vllm:num_requests_waiting +Inf",
        "vllm:num_requests_waiting 1_0",
        'vllm:time_to_first_token_seconds_bucket{le="x"} 1',
        'vllm:num_requests_waiting{a="' + "x" * 5000 + '"} 1',
        "<html>",
    ],
)
def test_a_line_that_is_not_understood_is_counted(line: str) -> None:
    found = parsed(f"{line}\nvllm:num_requests_running 2\n")
    assert (found.odd, [one.quantity for one in found.samples]) == (1, ["running"])


def test_labels_may_hold_any_text() -> None:
    text = 'vllm:num_requests_waiting{model_name="a\\"},b=\\"\\n",engine="0",} 4 1700000000000\n'
    (one,) = parsed(text).samples
    assert (dict(one.labels), one.value) == ({"model_name": 'a"},b="\n', "engine": "0"}, 4)


def test_the_older_name_is_left_out_beside_the_newer_one() -> None:
    both = "vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.5\n"
    assert [one.name for one in parsed(both).samples] == ["vllm:kv_cache_usage_perc"]
    assert [one.name for one in parsed(vllm(v0=True)).samples if one.quantity == "kv_usage"] == [
        "vllm:gpu_cache_usage_perc"
    ]


def test_the_number_of_series_is_bounded() -> None:
    many = "".join(f'vllm:num_requests_waiting{{engine="{n}"}} 1\n' for n in range(MOST_SAMPLES + 5))
    found = parsed(many)
    assert (len(found.samples), found.left) == (MOST_SAMPLES, 5)


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/metrics",
        "ftp://127.0.0.1",
        "http://",
        "http://user:secret@127.0.0.1/metrics",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1/a b",
        "http://127.0.0.1/\r\nX: y",
        "file:///etc/passwd",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ToolError) as refused:
        endpoint_of(url)
    assert refused.value.code is ErrorCode.BAD_ARGUMENT
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("host", ["169.254.169.254", "fe80::1", "224.0.0.1", "0.0.0.0", "::ffff:169.254.169.254"])
def test_addresses_of_metadata_services_are_not_contacted(host: str) -> None:
    assert get(Endpoint(host, 80), "/metrics").error == "address"


@contextmanager
def answering(*parts: bytes) -> Iterator[int]:
    """A server that sends `parts` 0.1 s apart to whoever connects, whatever it asks."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def work() -> None:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                for part in parts:
                    try:
                        connection.sendall(part)
                    except OSError:
                        return
                    if stop.wait(0.1):
                        return
                stop.wait(2)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            stop.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ((), "timeout"),
        ((_HEAD, *[b"x"] * 50), "timeout"),
        ((b"HTTP/1.1 200 OK\r\n", *[b"x"] * 50), "timeout"),
        ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *[b"0"] * 50), "timeout"),
        ((b"HTTP/1.1 100 Continue\r\n\r\n",) * 50, "timeout"),
        ((b"220 smtp ready\r\n",), "no_http"),
        ((b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",), "status"),
        ((b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",), "status"),
    ],
    ids=[
        "silent",
        "drip",
        "drip in the head",
        "drip in a chunk",
        "continue for ever",
        "other protocol",
        "redirect",
        "busy",
    ],
)
def test_an_answer_that_is_none_ends_in_time(parts: tuple[bytes, ...], error: str) -> None:
    with answering(*parts) as port:
        answer = get(Endpoint("127.0.0.1", port), "/metrics", timeout_s=0.4)
    assert (answer.error, answer.text) == (error, "")


def test_an_answer_whose_end_is_missing_is_not_taken() -> None:
    class Half(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(_HEAD + b"vllm:generation_tokens_total 12")  # of 1234567

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    with HTTPServer(("127.0.0.1", 0), Half) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        answer = get(Endpoint("127.0.0.1", server.server_address[1]), "/metrics")
        thread.join()
    assert (answer.error, answer.text) == ("incomplete", "")


def test_a_port_that_nobody_listens_on_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert get(Endpoint("127.0.0.1", port), "/metrics").error == "refused"


_LISTENS = """
import socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*[one.getsockname()[1] for one in sockets], flush=True)
sys.stdin.readline()
"""


@contextmanager
def listening(*arguments: str, code: str = _LISTENS) -> Iterator[tuple[int, list[int]]]:
    """A process that listens; yields its pid and ports."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, [int(port) for port in process.stdout.readline().split()]
        finally:
            process.kill()


def test_only_ports_that_the_command_line_names_are_asked() -> None:
    with listening("--master-port", "1") as (pid, _):
        assert metrics_endpoints([pid]) == ([], [])
    code = _LISTENS.replace('("127.0.0.1", 0)', '("127.0.0.1", int(sys.argv[-1]) if _ == 0 else 0)')
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with listening("--port", str(port), code=code) as (pid, ports):
        assert ports[0] == port
        assert metrics_endpoints([pid])[0] == [Endpoint("127.0.0.1", port, pid=pid)]
    with listening("trtllm-serve", "--port", str(port), code=code) as (pid, _):
        # its /metrics gives each statistic away once
        assert metrics_endpoints([pid])[0] == [Endpoint("127.0.0.1", port, "/prometheus/metrics", pid)]


def test_metrics_are_read_from_the_start_to_the_end_of_a_window() -> None:
    texts = [vllm(waiting=5, tokens=10 * n) for n in range(9)]
    with replaying(texts, health=503) as port:
        engine = ServingEngine()
        url = f"http://127.0.0.1:{port}/metrics"
        engine.load({"serving": ServingOptions(period_ns=1, urls=frozenset({url}))}, Target(everything=True))
        engine.start()
        engine.stop()
        capture = engine.read()["serving"]
        engine.close()
    scrapes, values = capture.tables["scrapes"], capture.tables["values"]
    assert capture.proven
    assert scrapes.height >= 2
    assert set(scrapes["health"].to_list()) == {503}
    assert set(scrapes["local"].to_list()) == {f"127.0.0.1:{port}"}
    assert values["server"].unique().to_list() == ["vllm"]


def test_files_of_other_programs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    path.write_text("process_cpu_seconds_total 12\n")
    with pytest.raises(ToolError) as refused:
        recording_of_files([path])
    assert refused.value.code is ErrorCode.BAD_TRACE
    with pytest.raises(ToolError) as absent:
        recording_of_files([tmp_path / "none"])
    assert absent.value.code is ErrorCode.IO_ERROR
