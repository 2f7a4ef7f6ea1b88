"""Kinds of findings about the stages of an inference server, by its own metrics."""

from __future__ import annotations

from whystall.tools.contract.kinds.spec import KindSpec, Mechanism, kind

# Percentiles of histograms: the value interpolated in its bucket, and the bounds of the bucket (`_low_ms`, `_high_ms`;
# no upper one for the last bucket). `requests`: how many the distribution is of; `request_pct`: of the time of
# finished requests. `server`: kind of server; `basis`: window, or total for one reading since its start.
_TIMES = "mean_ms p50_ms p50_low_ms p50_high_ms p95_ms p95_low_ms p95_high_ms requests request_pct"
_WORDS = "server basis"

STAGES = ("stuck", "kv_cache", "preemption", "queue", "prefill", "decode", "host_bound", "client")
"""Kinds after ``serving.``, in the order in which the slowest stage is named: each makes those after it slow, too."""

KINDS: dict[str, KindSpec] = {
    # the whole request: time to its first token, and until its end; `stage`: the slowest one
    "serving.latency": kind(
        Mechanism.METRICS, "process", f"{_TIMES} ttft_ms e2e_ms request_rate token_rate", f"{_WORDS} stage"
    ),
    # `waiting_pct`: of the time in which requests waited; waiting, running: means
    "serving.queue": kind(
        Mechanism.METRICS, "process", f"{_TIMES} waiting running waiting_pct", _WORDS, share="waiting_pct"
    ),
    # from the queue until the first token
    "serving.prefill": kind(Mechanism.METRICS, "process", f"{_TIMES} token_rate", _WORDS, share="request_pct"),
    # between two tokens of a request
    "serving.decode": kind(Mechanism.METRICS, "process", f"{_TIMES} token_rate", _WORDS, share="request_pct"),
    # requests stopped and computed anew; `per_request_ratio`: preemptions of each finished request
    "serving.preemption": kind(
        Mechanism.METRICS, "process", "count preemption_rate per_request_ratio requests", _WORDS
    ),
    # `full_pct`: of the time in which the cache was full while requests waited or were preempted
    "serving.kv_cache": kind(
        Mechanism.METRICS, "process", "usage_pct waiting running full_pct", _WORDS, share="full_pct"
    ),
    # `stuck_pct`: of the time in which requests were there and none advanced; `longest_s`; `symptom`: not_scheduled
    # (waiting, none running), no_progress, no_answer (to the request for metrics); `probe`: status of /health
    "serving.stuck": kind(
        Mechanism.METRICS,
        "process",
        "waiting running stuck_pct longest_s",
        f"{_WORDS} symptom probe",
        share="stuck_pct",
    ),
    # the device was idle while requests ran; `busy_pct`: of the device
    "serving.host_bound": kind(
        Mechanism.METRICS, "process", "busy_pct running idle_pct", f"{_WORDS} device", share="idle_pct"
    ),
    # `symptom`: few_requests, or slow_reader (answers not read: `unsent_bytes` in `connections`)
    "serving.client": kind(
        Mechanism.METRICS, "process", "running waiting request_rate unsent_bytes connections", f"{_WORDS} symptom"
    ),
}
