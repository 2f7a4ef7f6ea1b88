"""inference_latency on metrics that are replayed in time: which stage is slow, with which numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from metric_texts import LLAMACPP, LMDEPLOY, SGLANG, TGI, TRITON, TRTLLM, vllm

from whystall.tools.collect.serving.engine import COLLECTOR, ServingRows
from whystall.tools.collect.serving.scrape import Answer, Endpoint
from whystall.tools.collect.tables import COLLECTORS, filled
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.registry import Judgement
from whystall.tools.host.inference_latency.data import Data, Params
from whystall.tools.host.inference_latency.distribution import Distribution, increases
from whystall.tools.host.inference_latency.tool import judge
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target

PID, PORT, S = 4000, 8000, 10**9


def replayed(
    texts: Sequence[str | None], health: int = 200, others: dict[str, dict[str, list[Any]]] | None = None
) -> Recording:
    """A recording of a server that answers with `texts`, one a second; None: it does not answer within 2 s.

    `others`: rows of tables of further collectors."""
    rows = ServingRows()
    for second, text in enumerate(texts):
        answer = Answer(-1, "", "timeout", 2 * S) if text is None else Answer(200, text, "", 10**6)
        rows.add(second * S, Endpoint("127.0.0.1", PORT, pid=PID), answer, Answer(health), len(answer.text))
    tables = {COLLECTOR: rows.capture().tables}
    tables |= {name: filled(COLLECTORS[name], **given) for name, given in (others or {}).items()}
    manifest = Manifest(
        id="r1",
        host="n1",
        kernel="6.1.0",
        machine="x86_64",
        cpus=1,
        target=Target(everything=False, pids=(PID,), comm="vllm"),
        started="2026-01-01T00:00:00Z",
        start_ns=0,
        window_ns=max(len(texts) - 1, 1) * S,
        requested_ns=max(len(texts) - 1, 1) * S,
        collectors={name: CollectorManifest(engine="procfs", proven=True) for name in tables},
    )
    flat = {f"{name}.{table}": frame for name, frames in tables.items() for table, frame in frames.items()}
    return Recording.in_memory(manifest, flat)


def judged(texts: Sequence[str | None], **more: Any) -> Judgement[Data]:
    return judge(replayed(texts, **more), Params(pid=PID))


def of(found: Judgement[Data], kind: str) -> Finding:
    return next(one for one in found.findings if one.kind == f"serving.{kind}")


def codes(found: Judgement[Data]) -> set[str]:
    return {code for code, _ in found.not_seen}


def test_a_server_that_advances_has_no_slow_stage() -> None:
    texts = [vllm(running=2, tokens=100 * n, finished=n, ttft=(n, n, n), itl=(100 * n, 100 * n)) for n in range(8)]
    found = judged(texts)
    assert {one.polarity for one in found.findings} == {Polarity.NORMAL}
    (server,) = found.data.servers
    assert (server.stage, server.basis, server.readings, server.health) == ("", "window", 8, "200")
    assert (server.request_rate, server.token_rate) == (pytest.approx(1), pytest.approx(100))


@pytest.mark.parametrize(("running", "symptom"), [(0, "not_scheduled"), (3, "no_progress")])
def test_requests_that_do_not_advance_are_stuck_although_health_is_good(running: int, symptom: str) -> None:
    found = judged([vllm(waiting=5, running=running, tokens=700, finished=9)] * 8, health=200)
    stuck = of(found, "stuck")
    assert stuck.polarity is Polarity.ABNORMAL
    assert (stuck.attributes["symptom"], stuck.attributes["probe"]) == (symptom, "200")
    assert stuck.metrics == {"waiting": 5, "running": running, "stuck_pct": 100, "longest_s": 7}
    assert stuck.subject.pid == PID
    assert found.data.servers[0].stage == "stuck"


def test_a_pause_of_seconds_is_no_standstill() -> None:
    tokens = [0, 10, 10, 10, 20, 30, 40, 50]
    found = judged([vllm(running=1, tokens=n) for n in tokens])
    assert of(found, "stuck").polarity is Polarity.NORMAL
    assert of(found, "stuck").metrics["longest_s"] == 2


def test_a_server_that_stops_answering_is_stuck() -> None:
    found = judged([vllm(running=1, tokens=5), vllm(running=1, tokens=9), None, None, None], health=-1)
    stuck = of(found, "stuck")
    assert (stuck.attributes["symptom"], stuck.attributes["probe"]) == ("no_answer", "none")
    assert "metrics_unread" in codes(found)
    (silent,) = judged([None, None, None], health=-1).findings
    assert (silent.kind, silent.attributes["symptom"]) == ("serving.stuck", "no_answer")


def test_an_overloaded_queue_is_named_with_the_share_of_the_requests_time() -> None:
    texts = [
        vllm(waiting=20, running=2, tokens=90 * n, finished=n, ttft=(0, 0, n), queue_s=3.5 * n, itl=(90 * n, 90 * n))
        for n in range(6)
    ]
    found = judged(texts)
    queue = of(found, "queue")
    assert queue.polarity is Polarity.ABNORMAL
    assert queue.metrics["mean_ms"] == pytest.approx(3500)
    assert queue.metrics["request_pct"] == pytest.approx(70)
    assert queue.metrics["waiting_pct"] == 100
    assert of(found, "prefill").metrics["mean_ms"] == pytest.approx(500)
    assert of(found, "prefill").polarity is Polarity.NORMAL
    assert of(found, "latency").attributes["stage"] == "queue"


def test_the_first_token_is_late_without_a_queue() -> None:
    texts = [vllm(running=2, tokens=n, finished=n, ttft=(0, 0, n), queue_s=0.1 * n) for n in range(6)]
    found = judged(texts)
    assert of(found, "prefill").polarity is Polarity.ABNORMAL
    assert of(found, "queue").polarity is Polarity.NORMAL
    assert found.data.servers[0].stage == "prefill"


def test_slow_tokens_are_told_with_the_bounds_of_their_bucket() -> None:
    texts = [vllm(running=2, tokens=10 * n, finished=n, ttft=(n, n, n), itl=(5 * n, 10 * n)) for n in range(6)]
    found = judge(replayed(texts), Params(pid=PID, max_itl_ms=40))
    decode = of(found, "decode")
    assert decode.polarity is Polarity.ABNORMAL
    assert (decode.metrics["p50_low_ms"], decode.metrics["p50_high_ms"]) == (0, 50)
    assert decode.metrics["p95_low_ms"] == 50
    assert not {"p95_ms", "p95_high_ms"} & decode.metrics.keys()  # it is in the last bucket, which has no upper bound
    assert of(judged(texts), "decode").polarity is Polarity.NORMAL


@pytest.mark.parametrize("v0", [False, True])
def test_preemptions_show_a_full_cache(v0: bool) -> None:
    texts = [
        vllm(waiting=4, running=4, tokens=50 * n, finished=n, preemptions=2 * n, kv=0.9, ttft=(n, n, n), v0=v0)
        for n in range(6)
    ]
    found = judged(texts)
    assert of(found, "kv_cache").metrics["full_pct"] == 100
    preemption = of(found, "preemption")
    assert (preemption.metrics["count"], preemption.metrics["per_request_ratio"]) == (10, 2)
    assert found.data.servers[0].stage == "kv_cache"


def test_a_full_cache_without_waiting_requests_is_normal() -> None:
    found = judged([vllm(running=4, tokens=50 * n, finished=n, kv=0.99, ttft=(n, n, n)) for n in range(4)])
    assert of(found, "kv_cache").polarity is Polarity.NORMAL


def test_counters_that_begin_anew_are_not_taken_for_a_decrease() -> None:
    before = [vllm(running=1, tokens=1000 + n, finished=100 + n, ttft=(100 + n,) * 3) for n in range(3)]
    after = [vllm(running=1, tokens=5 + n, finished=1 + n, ttft=(1 + n,) * 3) for n in range(3)]
    found = judged([*before, *after])
    (server,) = found.data.servers
    assert server.resets == 1
    assert server.token_rate == pytest.approx((2 + 5 + 2) / 5)
    assert "metrics_reset" in codes(found)


def test_one_reading_counts_since_the_start_of_the_server() -> None:
    found = judged([SGLANG])
    (server,) = found.data.servers
    assert (server.server, server.basis, server.stage) == ("sglang", "total", "queue")
    assert server.request_rate is None
    assert "metrics_total" in codes(found)
    ttft = next(row for row in server.times if row.name == "ttft")
    assert ttft.mean_ms == pytest.approx(213_653, rel=1e-4)
    assert (ttft.p95_ms, ttft.p95_low_ms, ttft.p95_high_ms) == (None, 30_000, None)
    itl = next(row for row in server.times if row.name == "itl")
    assert (itl.p50_low_ms, itl.p50_high_ms) == (75, 100)
    assert itl.p50_ms == pytest.approx(75 + 25 * (3_700_378.5 - 433_413) / (4_950_195 - 433_413))
    assert {one.kind for one in found.findings}.isdisjoint({"serving.stuck", "serving.preemption"})


def test_triton_states_means_alone() -> None:
    texts = [TRITON.format(finished=n, e2e_us=4e6 * n, queue_us=3e6 * n, waiting=7) for n in range(4)]
    found = judged(texts)
    queue = of(found, "queue")
    assert queue.polarity is Polarity.ABNORMAL
    assert (queue.metrics["mean_ms"], queue.metrics["request_pct"]) == (pytest.approx(3000), pytest.approx(75))
    assert "p95_ms" not in queue.metrics
    assert dict(found.not_seen)["metrics_absent"] == "triton: running, kv_usage, preemptions, ttft, itl, progress"


def test_tgi_counts_prefill_apart_from_decode() -> None:
    texts = [TGI.format(waiting=6, running=4, finished=10 * n, queue_s=25.0 * n, e2e_s=40.0 * n) for n in range(4)]
    found = judged(texts)
    assert of(found, "queue").metrics["mean_ms"] == pytest.approx(2500)
    assert found.data.servers[0].stage == "queue"
    assert next(row for row in found.data.servers[0].times if row.name == "prefill").requests == 30


def tgi(steps: int, finished: int = 5) -> str:
    text = TGI.format(waiting=1, running=4, finished=finished, queue_s=1, e2e_s=20)
    return f'{text}tgi_batch_inference_success{{method="decode"}} {steps}\n'


_LONG_ANSWERS = {
    "tgi": [tgi(900 + 20 * n) for n in range(8)],
    "llamacpp": [LLAMACPP.format(tokens=700, steps=50 + 20 * n, running=2, waiting=3) for n in range(8)],
    "lmdeploy": [LMDEPLOY.format(tokens=700 + 20 * n, running=2, waiting=3) for n in range(8)],
    "sglang": [
        f"sglang:num_running_reqs 2\nsglang:num_queue_reqs 1\nsglang:generation_tokens_total 7\n"
        f'sglang:realtime_tokens_total{{mode="decode"}} {900 * (n // 4)}\n'
        for n in range(8)
    ],
}


@pytest.mark.parametrize("server", _LONG_ANSWERS)
def test_long_answers_are_no_standstill_of_a_server_that_counts_finished_ones(server: str) -> None:
    found = judged(_LONG_ANSWERS[server])
    assert found.data.servers[0].server == server
    assert of(found, "stuck").polarity is Polarity.NORMAL
    assert "progress" not in dict(found.not_seen)["metrics_absent"]


@pytest.mark.parametrize("server", _LONG_ANSWERS)
def test_a_standstill_is_found_on_every_server(server: str) -> None:
    stuck = of(judged(_LONG_ANSWERS[server][:1] * 13), "stuck")
    assert (stuck.polarity, stuck.attributes["symptom"]) == (Polarity.ABNORMAL, "no_progress")


def test_a_server_that_counts_only_finished_requests_is_not_called_stuck() -> None:
    busy = [TRTLLM.format(running=2, waiting=1, finished=7, queue_s=2, e2e_s=20)] * 13
    pending = [TRITON.format(finished=3, e2e_us=4e6, queue_us=3e6, waiting=7)] * 13
    old_tgi = [TGI.format(waiting=1, running=4, finished=5, queue_s=1, e2e_s=20)] * 13
    for texts in (busy, pending, old_tgi):
        found = judged(texts)
        assert "serving.stuck" not in {one.kind for one in found.findings}
        assert dict(found.not_seen)["metrics_absent"].endswith("progress")
    silent = judged([busy[0], busy[0], None, None, None])
    assert of(silent, "stuck").attributes["symptom"] == "no_answer"


def test_tensorrt_llm_states_its_queue() -> None:
    texts = [TRTLLM.format(running=8, waiting=9, finished=4 * n, queue_s=14 * n, e2e_s=20 * n) for n in range(6)]
    found = judged(texts)
    assert found.data.servers[0].stage == "queue"
    assert of(found, "queue").metrics["mean_ms"] == pytest.approx(3500)


def test_few_requests_are_no_slowness_of_the_server() -> None:
    found = judged([vllm(tokens=10 * n, finished=n, ttft=(n, n, n)) for n in range(6)])
    client = of(found, "client")
    assert (client.polarity, client.attributes["symptom"]) == (Polarity.ABNORMAL, "few_requests")
    assert of(found, "latency").polarity is Polarity.NORMAL


def test_an_idle_device_while_requests_run_points_to_the_scheduler() -> None:
    gpu = "00000000:1b:00.0"
    readings = [(n * S, gpu, 1000, 0, 40, 90, 12, 0, 4, 16, 0) for n in range(4)]
    others = {"gpu_state": {"readings": readings, "processes": [(gpu, PID, "vllm", 1)]}}
    texts = [vllm(running=8, tokens=10 * n, finished=n, ttft=(n, n, n)) for n in range(6)]
    bound = of(judged(texts, others=others), "host_bound")
    assert (bound.polarity, bound.metrics["busy_pct"], bound.attributes["device"]) == (Polarity.ABNORMAL, 12, gpu)
    assert "no_device_state" in codes(judged(texts))


def test_a_part_that_appears_later_counts_from_zero() -> None:
    first, later = ("count", 0.0), ("bucket", 0.5)
    assert increases([{first: 2}, {first: 5, later: 3}]) == ([{first: 3, later: 3}], 0)
    assert increases([{first: 5, later: 3}, {first: 6, later: 1}]) == ([{first: 6, later: 1}], 1)


def test_a_histogram_that_decreases_is_read_as_level() -> None:
    broken = Distribution(10, 1.0, {0.1: 8, 0.5: 3, float("inf"): 10})
    most = broken.percentile(0.95)
    assert most is not None
    assert (most.low, most.high) == (0.5, None)
    assert Distribution(0, 0.0, {}).percentile(0.5) is None
