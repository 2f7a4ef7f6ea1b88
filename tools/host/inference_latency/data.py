"""The parameters and the data of inference_latency."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from whystall.tools.contract.params import LiveParams
from whystall.tools.contract.result import Model

_PATH = 4096


class Params(LiveParams):
    """Parameters of inference_latency. The usual limits of both latencies are those that MLPerf Inference sets for
    Llama 2 70B in the server scenario: 2 s until the first token, 200 ms per further token (inference_rules.adoc of
    mlcommons/inference_policies, 99th percentile; here the 95th is compared).
    """

    metrics_url: Annotated[
        str | None,
        Field(
            min_length=8,
            max_length=2048,
            pattern=r"^http://",
            description="where metrics are served, like http://127.0.0.1:8000/metrics; else a port of the process",
        ),
    ] = None
    metrics: Annotated[
        list[str] | None,
        Field(max_length=64, description="path of saved metrics to judge instead; repeatable, of different times"),
    ] = None
    device: Annotated[bool, Field(description="also how busy the GPU is, where it can be read")] = True
    max_ttft_ms: Annotated[float, Field(ge=1, le=3.6e6, description="more until the first token is slow, ms")] = 2000.0
    max_itl_ms: Annotated[float, Field(ge=0.01, le=3.6e6, description="more between two tokens is slow, ms")] = 200.0

    @model_validator(mode="after")
    def _one_source(self) -> Params:
        if self.metrics is not None and self.metrics_url is not None:
            raise ValueError("give only one of metrics, metrics_url")
        if self.metrics is not None and (not self.metrics or any(not 0 < len(path) <= _PATH for path in self.metrics)):
            raise ValueError(f"a path of metrics has 1 to {_PATH} characters")
        return self


class TimesRow(Model):
    """A latency of requests in ms. A percentile lies between `_low_ms` and `_high_ms`, the bounds of its bucket;
    without an upper one it is at least `_low_ms`. `request_pct`: share of the time of finished requests."""

    name: str
    requests: float
    mean_ms: float | None = None
    p50_ms: float | None = None
    p50_low_ms: float | None = None
    p50_high_ms: float | None = None
    p95_ms: float | None = None
    p95_low_ms: float | None = None
    p95_high_ms: float | None = None
    request_pct: float | None = None


class ReadingRow(Model):
    """One reading: gauges, and what was counted since the one before."""

    at_s: float
    waiting: float | None = None
    running: float | None = None
    kv_usage_pct: float | None = None
    tokens: float | None = None
    finished: float | None = None


class ServerRow(Model):
    """A server. `stage`: the slowest one, empty if none is slow; `basis`: window, or total (one reading: since the
    server's start); `resets`: how often its counters began anew."""

    server: str
    local: str
    pid: int | None
    readings: int
    seconds: float
    basis: str
    stage: str = ""
    resets: int = 0
    request_rate: float | None = None
    token_rate: float | None = None
    preemptions: float | None = None
    health: str = ""
    times: list[TimesRow] = Field(default_factory=list)


class Data(Model):
    """The servers, and the readings of the first one."""

    servers: list[ServerRow] = Field(default_factory=list)
    readings: list[ReadingRow] = Field(default_factory=list)
