"""Judge the stages of one inference server: queue, prefill, decode, cache, standstill, device, clients. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from whystall.tools.contract.findings import Finding, Polarity, Severity, Subject
from whystall.tools.contract.kinds.serving import STAGES
from whystall.tools.host.common.findings import finding, severity, window
from whystall.tools.host.inference_latency.data import Params, TimesRow
from whystall.tools.host.inference_latency.distribution import Distribution
from whystall.tools.host.inference_latency.readings import Readings

_STUCK_S, _STUCK_WHOLE_S = 5.0, 2.0
"""No request advances for so long; the whole time between readings, if it is at least the second one."""
_FULL_RATIO = 0.95
"""A cache that is used so far has no room for a request of usual length: vLLM keeps a few blocks free."""
_MOSTLY_PCT = 50.0
_FEW_PCT = 80.0
_PREEMPTED_RATIO = 0.05
_UNSENT_BYTES = 16_384
"""Tokens of a stream are some hundred bytes each: so much is not read for seconds."""


@dataclass
class Surroundings:
    """What is known besides the metrics: status of /health and whether metrics were answered, in each request; the
    busy share of the device, bytes that clients have not read."""

    health: str = ""
    unanswered_s: float = 0.0
    unanswered_pct: float = 0.0
    device: str = ""
    busy_pct: float | None = None
    unsent_bytes: int = 0
    slow_connections: int = 0
    window_ns: int = 0


@dataclass
class Stages:
    """The findings and latencies of a server; `slow`: the slowest stage, empty if none is slow."""

    findings: list[Finding] = field(default_factory=list)
    times: list[TimesRow] = field(default_factory=list)
    slow: str = ""


class Judge:
    """Judges `own`, the readings of a server, beside `around`."""

    def __init__(self, own: Readings, around: Surroundings, params: Params, comm: str | None) -> None:
        self._own, self._around, self._params = own, around, params
        self._subject = Subject(
            type="process", pid=own.pid if own.pid > 0 else None, comm=comm if own.pid > 0 else None
        )
        self._words = {"server": own.server, "basis": "total" if own.whole else "window"}
        self._rows = {row.name: row for row in self._times()}

    def judged(self) -> Stages:
        """Return the findings, the latencies, and the slowest stage."""
        found = [one for one in self._findings() if one is not None]
        bad = {one.kind.removeprefix("serving.") for one in found if one.polarity is Polarity.ABNORMAL}
        slow = next((stage for stage in STAGES if stage in bad), "")
        found = [*self._latency(slow, found), *found]
        return Stages(found, list(self._rows.values()), slow)

    # --- latencies ------------------------------------------------------------------------------------------------

    def _times(self) -> Iterator[TimesRow]:
        own = self._own
        whole = self._duration("e2e")
        ttft, queue = own.total("ttft"), self._duration("queue")
        sums = whole.sum if whole is not None and whole.sum else None
        for name in ("e2e", "ttft", "queue", "prefill", "itl", "decode"):
            known = self._duration(name)
            if known is not None and known.count > 0:
                share = name in ("queue", "prefill", "decode") and not (name == "prefill" and own.server == "tgi")
                yield _row(name, known, sums if share else None)
            elif name == "prefill" and ttft is not None and ttft.mean is not None and queue is not None:
                mean = max(ttft.mean - (queue.mean or 0.0), 0.0)
                yield TimesRow(name=name, requests=ttft.count, mean_ms=mean * 1e3, request_pct=_pct(mean, whole))
            elif name == "decode" and ttft is not None and ttft.mean is not None and whole and whole.mean is not None:
                mean = max(whole.mean - ttft.mean, 0.0)
                yield TimesRow(name=name, requests=whole.count, mean_ms=mean * 1e3, request_pct=_pct(mean, whole))

    def _duration(self, name: str) -> Distribution | None:
        """Return a latency, also one that is stated as a counter of seconds alone."""
        if (known := self._own.total(name)) is not None:
            return known
        total, finished = self._own.count(f"{name}_time"), self._own.count("finished")
        return Distribution(finished, total) if total is not None and finished else None

    def _latency(self, slow: str, found: list[Finding]) -> Iterator[Finding]:
        whole, first = self._rows.get("e2e"), self._rows.get("ttft")
        row = whole or first
        if row is None:
            return
        metrics = _metrics(row) | {
            "e2e_ms": whole.mean_ms if whole else None,
            "ttft_ms": first.mean_ms if first else None,
            "request_rate": self._own.rate("finished"),
            "token_rate": self._own.rate("generated_tokens"),
        }
        worst = max(
            (one.severity for one in found if one.kind == f"serving.{slow}"), key=lambda s: s.rank, default=None
        )
        worst = None if slow == "client" else worst  # a server with little to do is not slow
        yield self._finding("latency", metrics, worst, {"stage": slow} if slow else {})

    # --- stages ---------------------------------------------------------------------------------------------------

    def _findings(self) -> Iterator[Finding | None]:
        yield self._stuck()
        yield self._cache()
        yield self._preemption()
        yield self._queue()
        yield self._prefill()
        yield self._decode()
        yield self._host_bound()
        yield self._client()

    def _stuck(self) -> Finding | None:
        """No request advances although there are some; also if the server does not answer any more."""
        own, around = self._own, self._around
        advanced = own.advanced()
        longest = total = run = 0.0
        for number, moved in enumerate(advanced or ()):
            seconds = (own.at_ns[number + 1] - own.at_ns[number]) / 1e9
            there = all(own.at("waiting", n) + own.at("running", n) > 0 for n in (number, number + 1))
            run = run + seconds if there and not moved else 0.0
            total += seconds if there and not moved else 0.0
            longest = max(longest, run)
        share = 100.0 * total / own.seconds if own.seconds > 0 else 0.0
        scheduled = (own.most("running") or 0.0) > 0
        reason = "no_progress" if scheduled else "not_scheduled"
        if around.unanswered_s > longest:
            longest, share, reason = around.unanswered_s, around.unanswered_pct, "no_answer"
        elif advanced is None:
            return None
        least = 0.0 if reason == "no_answer" else own.seldom_s
        whole = share > 99.0 and longest >= _STUCK_WHOLE_S + least
        bad = severity(share) if longest >= _STUCK_S + least or whole else None
        words = {"symptom": reason} if bad else {}
        words |= {"probe": around.health} if around.health else {}
        metrics = {
            "waiting": own.mean("waiting"),
            "running": own.mean("running"),
            "stuck_pct": share,
            "longest_s": longest,
        }
        return self._finding("stuck", metrics, bad, words)

    def _cache(self) -> Finding | None:
        own = self._own
        usage = own.gauges.get("kv_usage")
        if not usage:
            return None
        preempted = own.grown.get("preemptions", [])
        full = 0
        for number, used in enumerate(usage):
            lost = not own.whole and any(one.count > 0 for one in preempted[max(number - 1, 0) : number + 1])
            # an engine preempts only when it has no block left, whatever the use at the instant of the reading
            full += lost or ((used or 0.0) >= _FULL_RATIO and own.at("waiting", number) > 0)
        share = 100.0 * full / len(usage)
        metrics = {
            "usage_pct": 100.0 * max(own.most("kv_usage") or 0.0, 0.0),
            "waiting": own.mean("waiting"),
            "running": own.mean("running"),
            "full_pct": share,
        }
        return self._finding("kv_cache", metrics, severity(share) if share >= _MOSTLY_PCT else None)

    def _preemption(self) -> Finding | None:
        own = self._own
        count = own.count("preemptions")
        if count is None:
            return None
        finished = own.count("finished")
        ratio = count / finished if finished else None
        bad = None
        if count > 0 and (ratio is None or ratio >= _PREEMPTED_RATIO):
            bad = Severity.MAJOR if ratio is None or ratio >= 1.0 else Severity.MINOR
        metrics = {
            "count": count,
            "preemption_rate": own.rate("preemptions"),
            "per_request_ratio": ratio,
            "requests": finished,
        }
        return self._finding("preemption", metrics, bad)

    def _queue(self) -> Finding | None:
        own, row = self._own, self._rows.get("queue")
        waiting = own.gauges.get("waiting")
        if row is None and not waiting:
            return None
        share = 100.0 * sum((one or 0.0) > 0 for one in waiting) / len(waiting) if waiting else None
        limit = self._params.max_ttft_ms
        slow = row is not None and _late(row) > limit
        short = row is not None and row.mean_ms is not None and row.mean_ms < limit / 10 and not own.whole
        bad = None
        if slow or ((share or 0.0) >= _MOSTLY_PCT and not short):
            bad = severity(max((row.request_pct if row else None) or 0.0, 10.0))
        metrics = (_metrics(row) if row else {}) | {
            "waiting": own.mean("waiting"),
            "running": own.mean("running"),
            "waiting_pct": share,
        }
        return self._finding("queue", metrics, bad)

    def _prefill(self) -> Finding | None:
        row, first, queue = (self._rows.get(name) for name in ("prefill", "ttft", "queue"))
        if row is None:
            return None
        limit = self._params.max_ttft_ms
        slow = _late(row) > limit
        late = first is not None and _late(first) > limit
        mostly = (row.mean_ms or 0.0) >= ((queue.mean_ms if queue else None) or 0.0)
        bad = severity(max(row.request_pct or 0.0, 10.0)) if slow or (late and mostly) else None
        return self._finding("prefill", _metrics(row) | {"token_rate": self._own.rate("prompt_tokens")}, bad)

    def _decode(self) -> Finding | None:
        row, whole = self._rows.get("itl"), self._rows.get("decode")
        if row is None:
            return None
        slow = _late(row) > self._params.max_itl_ms
        share = whole.request_pct if whole else None
        metrics = _metrics(row) | {"token_rate": self._own.rate("generated_tokens"), "request_pct": share}
        return self._finding("decode", metrics, severity(max(share or 0.0, 10.0)) if slow else None)

    def _host_bound(self) -> Finding | None:
        """The device idles while requests run: what schedules them on the CPU is the limit."""
        own, around = self._own, self._around
        running = own.gauges.get("running")
        if around.busy_pct is None or not running or min(one or 0.0 for one in running) <= 0:
            return None
        idle = 100.0 - around.busy_pct
        metrics = {"busy_pct": around.busy_pct, "running": own.mean("running"), "idle_pct": idle}
        words = {"device": around.device} if around.device else {}
        return self._finding("host_bound", metrics, severity(idle) if idle >= _MOSTLY_PCT else None, words)

    def _client(self) -> Finding | None:
        own, around = self._own, self._around
        pairs = [own.at("waiting", n) + own.at("running", n) for n in range(len(own.at_ns))]
        known = "waiting" in own.gauges and "running" in own.gauges
        few = known and not own.whole and 100.0 * sum(one == 0 for one in pairs) / len(pairs) >= _FEW_PCT
        slow = around.slow_connections > 0 and around.unsent_bytes >= _UNSENT_BYTES
        if not known and not slow:
            return None
        metrics = {
            "running": own.mean("running"),
            "waiting": own.mean("waiting"),
            "request_rate": own.rate("finished"),
            "unsent_bytes": float(around.unsent_bytes),
            "connections": float(around.slow_connections),
        }
        words = {"symptom": "slow_reader" if slow else "few_requests"} if slow or few else {}
        return self._finding("client", metrics, Severity.MINOR if slow or few else None, words)

    def _finding(
        self,
        name: str,
        metrics: dict[str, float | None],
        bad: Severity | None,
        words: dict[str, str] | None = None,
    ) -> Finding:
        attributes = self._words | (words or {})
        return finding(f"serving.{name}", self._subject, window(self._around.window_ns), metrics, bad, attributes)


def _row(name: str, known: Distribution, sums: float | None) -> TimesRow:
    half, most = known.percentile(0.5), known.percentile(0.95)
    return TimesRow(
        name=name,
        requests=known.count,
        mean_ms=_ms(known.mean),
        p50_ms=_ms(half.value if half and half.high is not None else None),
        p50_low_ms=_ms(half.low if half else None),
        p50_high_ms=_ms(half.high if half else None),
        p95_ms=_ms(most.value if most and most.high is not None else None),
        p95_low_ms=_ms(most.low if most else None),
        p95_high_ms=_ms(most.high if most else None),
        request_pct=min(100.0 * known.sum / sums, 100.0) if sums and known.sum is not None else None,
    )


def _late(row: TimesRow) -> float:
    """Return the 95th percentile, at least its lower bound, in ms; without buckets the mean."""
    return row.p95_ms or row.p95_low_ms or row.mean_ms or 0.0


def _metrics(row: TimesRow) -> dict[str, float | None]:
    return row.model_dump(exclude={"name"})


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _pct(mean: float, whole: Distribution | None) -> float | None:
    if whole is None or not whole.mean:
        return None
    return min(100.0 * mean / whole.mean, 100.0)
