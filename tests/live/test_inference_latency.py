"""A real inference server on the CPU with a fault made on purpose: the slow stage, and why on the host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from running import Running, file_server

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.knowledge_base.models import Diagnosis
from whystall.tools.contract.findings import Finding, Polarity

WINDOW_S = 12.0

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="eBPF needs root")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state directory of this test's own."""
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


@contextmanager
def serving(port: int, *options: object, clients: int, tokens: int = 32) -> Iterator[Running]:
    """The server under load."""
    with Running("inference_engine.py", "serve", "--port", port, *options) as server:
        load = ("clients", "--port", port, "--clients", clients, "--tokens", tokens, "--seconds", 60)
        with Running("inference_engine.py", *load):
            yield server


def diagnosed(server: Running, symptom: str, **options: Any) -> Diagnosis:
    params = DiagnoseParams(pid=server.pid, duration=WINDOW_S, symptom=symptom, **options)
    with App().closing() as app:
        return anyio.run(lambda: app.diagnose(params))


def abnormal(found: Diagnosis) -> dict[str, Finding]:
    """The abnormal findings about stages, by stage."""
    return {
        one.kind.removeprefix("serving."): one
        for one in found.findings
        if one.kind.startswith("serving.") and one.polarity is Polarity.ABNORMAL
    }


def test_a_scheduler_that_waits_for_a_lock_is_stuck_while_health_is_good() -> None:
    with serving(8151, "--fault", "lock", "--after", 1, clients=6) as server:
        server.until("lock_kept")
        found = diagnosed(server, "all requests hang")
    stuck = abnormal(found)["stuck"]
    assert stuck.attributes["probe"] == "200"
    assert stuck.metrics["waiting"] + stuck.metrics["running"] == 6
    assert found.cause == "lock_held_blocked"
    assert stuck.id in found.chain
    assert found.culprit is not None
    assert "_keep_lock" in str(found.culprit.model_dump())


def test_a_tokenizer_in_the_scheduler_makes_the_queue_long() -> None:
    with serving(8152, "--fault", "tokenizer", clients=8) as server:
        found = diagnosed(server, "requests are slow")
    assert abnormal(found)["latency"].attributes["stage"] == "queue"
    assert any("_merge_pairs" in str(row.model_dump()) for row in found.account)


def test_a_cache_that_is_too_small_is_the_cause() -> None:
    with serving(8153, "--blocks", 40, "--max-seqs", 16, clients=16, tokens=120) as server:
        found = diagnosed(server, "requests are slow")
    stages = abnormal(found)
    assert stages["preemption"].metrics["count"] > 0
    assert stages["kv_cache"].metrics["full_pct"] > 50
    assert any(one.cause == "kv_cache_full" and one.state == "supported" for one in found.assessments)


def test_more_requests_than_the_engine_takes_wait_in_its_queue() -> None:
    with serving(8154, "--max-seqs", 2, clients=24, tokens=400) as server:
        url = "http://127.0.0.1:8154/metrics"
        found = diagnosed(server, "requests are slow", metrics_url=url)
    queue = abnormal(found)["queue"]
    assert queue.metrics["waiting"] > 10
    assert queue.metrics["request_pct"] > 50
    assert not {"stuck", "kv_cache", "preemption"} & abnormal(found).keys()


def test_a_slow_file_read_for_each_request_is_named() -> None:
    with file_server("read=0.4") as (backing, mount):
        (backing / "adapter.bin").write_bytes(bytes(4096))
        adapter = mount / "adapter.bin"
        with serving(8155, "--fault", "adapter", "--adapter", adapter, clients=8) as server:
            found = diagnosed(server, "requests are slow")
    assert abnormal(found)["latency"].attributes["stage"] in ("queue", "prefill")
    assert any("adapter.bin" in str(row.model_dump()) for row in found.account)


def test_an_idle_server_is_told_from_a_slow_one() -> None:
    with Running("inference_engine.py", "serve", "--port", 8156) as server:
        found = diagnosed(server, "")
    assert found.verdict.no_fault
    assert set(abnormal(found)) <= {"client"}
