"""inference_latency: which stage of an inference server delays requests, by its own metrics?"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from whystall.tools.collect.options import ServingOptions
from whystall.tools.collect.serving.engine import COLLECTOR
from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.host.common.findings import finding, severity, window
from whystall.tools.host.inference_latency.data import Data, Params, ReadingRow, ServerRow
from whystall.tools.host.inference_latency.readings import Readings, readings_of
from whystall.tools.host.inference_latency.stages import Judge, Surroundings
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording

_GPUS, _SOCKETS = "gpu_state", "objects"
_ESSENTIAL = ("waiting", "running", "kv_usage", "preemptions", "ttft", "itl", "e2e", "queue")
_NOT_ASKED = -2
_UNREAD_BYTES = 1024
_MOST_READINGS = 200


def _needs(params: Params) -> list[Need]:
    urls = frozenset({params.metrics_url} if params.metrics_url else ())
    device = [Need(_GPUS, optional=True)] if params.device else []
    return [Need(COLLECTOR, ServingOptions(urls=urls)), *device, Need(_SOCKETS, optional=True)]


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Judge the stages of each server in `recording`."""
    scrapes, values = recording.table(f"{COLLECTOR}.scrapes"), recording.table(f"{COLLECTOR}.values")
    found: list[Finding] = []
    data, spots = Data(), list[tuple[str, str]]()
    answered = set()
    for own in readings_of(values):
        around = _around(recording, scrapes.filter(pl.col("local") == own.local), own)
        stages = Judge(own, around, params, recording.manifest.target.comm).judged()
        answered.add(own.local)
        found += stages.findings
        data.servers.append(
            ServerRow(
                server=own.server,
                local=own.local,
                pid=own.pid if own.pid > 0 else None,
                readings=len(own.at_ns),
                seconds=own.seconds,
                basis="total" if own.whole else "window",
                stage=stages.slow,
                resets=own.resets,
                request_rate=own.rate("finished"),
                token_rate=own.rate("generated_tokens"),
                preemptions=own.count("preemptions"),
                health=around.health,
                times=stages.times,
            )
        )
        data.readings = data.readings or list(_reading_rows(own))
        spots += _unseen(recording, own)
    for (local,), group in scrapes.group_by("local", maintain_order=True):
        if str(local) not in answered:
            found += _silent(group, recording.manifest.window_ns)
        failed = group.filter(pl.col("error") != "")
        if failed.height:
            codes = ", ".join(sorted(set(failed["error"].to_list())))
            spots.append(("metrics_unread", f"{local}: {failed.height} of {group.height} ({codes})"))
    totals = {"servers": len(data.servers), "readings": len(data.readings)}
    data.servers = data.servers[: params.top]
    data.readings = data.readings[: max(params.top, _MOST_READINGS)]
    return Judgement(findings=found, data=data, seen=values.height + scrapes.height, totals=totals, not_seen=spots)


def _around(recording: Recording, scrapes: pl.DataFrame, own: Readings) -> Surroundings:
    around = Surroundings(health=_health(scrapes), window_ns=recording.manifest.window_ns)
    around.unanswered_s, around.unanswered_pct = _unanswered(scrapes, around.window_ns)
    if recording.has(_GPUS):
        around.device, around.busy_pct = _busiest(recording, own.pid)
    if recording.has(_SOCKETS) and own.local:
        around.unsent_bytes, around.slow_connections = _unsent(recording, own)
    return around


def _health(scrapes: pl.DataFrame) -> str:
    """Return the last status of /health; none without an answer, empty if it was not asked."""
    if scrapes.is_empty():
        return ""
    last = int(scrapes.sort("at_ns")["health"][-1])
    return "" if last == _NOT_ASKED else str(last) if last > 0 else "none"


def _unanswered(scrapes: pl.DataFrame, window_ns: int) -> tuple[float, float]:
    """Return for how long at the end of the window the server let requests for metrics time out, s, and its share."""
    longest = since = 0
    for at, error, took in scrapes.sort("at_ns").select("at_ns", "error", "answer_ns").iter_rows():
        since = since + took if error == "timeout" else 0
        longest = max(longest, since)
        del at
    return longest / 1e9, min(100.0 * longest / window_ns, 100.0) if window_ns else 0.0


def _busiest(recording: Recording, pid: int) -> tuple[str, float | None]:
    """Return the device of `pid` that works most, and the mean share of time in which a kernel ran on it."""
    own = set(recording.table(f"{_GPUS}.processes").filter(pl.col("pid") == pid)["device"].to_list())
    readings = recording.table(f"{_GPUS}.readings").filter(pl.col("busy_pct") >= 0)
    if own:
        readings = readings.filter(pl.col("device").is_in(sorted(own)))
    by_device = readings.group_by("device").agg(pl.col("busy_pct").mean()).sort("busy_pct", descending=True)
    return (by_device["device"][0], float(by_device["busy_pct"][0])) if by_device.height else ("", None)


def _unsent(recording: Recording, own: Readings) -> tuple[int, int]:
    """Return the bytes that clients of the server have not taken in both the first and the last reading of sockets."""
    sockets = recording.table(f"{_SOCKETS}.sockets")
    port = own.local.rpartition(":")[2]
    open_ones = sockets.filter(
        (pl.col("state") == "established") & pl.col("local").str.ends_with(f":{port}") & (pl.col("pid") == own.pid)
    )
    times = sorted(open_ones["at_ns"].unique().to_list())
    if len(times) < 2:
        return 0, 0
    ends = open_ones.filter(pl.col("at_ns").is_in([times[0], times[-1]]) & (pl.col("send_queue") >= _UNREAD_BYTES))
    both = ends.group_by("inode").agg(pl.len(), pl.col("send_queue").min()).filter(pl.col("len") > 1)
    return int(both["send_queue"].sum()), both.height


def _silent(scrapes: pl.DataFrame, window_ns: int) -> Iterator[Finding]:
    """Yield a finding about a server that accepts connections and never answers."""
    longest, share = _unanswered(scrapes, window_ns)
    if not longest:
        return
    pid = int(scrapes["pid"][0])
    words = {"symptom": "no_answer", "probe": _health(scrapes)}
    subject = Subject(type="process", pid=pid if pid > 0 else None)
    metrics = {"stuck_pct": share, "longest_s": longest}
    bad = severity(share) if share else Severity.MINOR
    yield finding("serving.stuck", subject, window(window_ns), metrics, bad, {n: t for n, t in words.items() if t})


def _unseen(recording: Recording, own: Readings) -> Iterator[tuple[str, str]]:
    """Yield what the server does not state, and what limits the judgement."""
    if own.whole:
        yield "metrics_total", own.local
    if own.resets:
        yield "metrics_reset", f"{own.local} {own.resets}".strip()
    known = {*own.gauges, *own.grown}
    known |= {name.removesuffix("_time") for name in known}
    missing = [name for name in _ESSENTIAL if name not in known]
    if own.advanced() is None and not own.whole:
        missing.append("progress")
    if missing:
        yield "metrics_absent", f"{own.server}: {', '.join(missing)}"
    if not recording.has(_GPUS) or recording.table(f"{_GPUS}.readings").is_empty():
        yield "no_device_state", ""


def _reading_rows(own: Readings) -> Iterator[ReadingRow]:
    for number, at_ns in enumerate(own.at_ns):
        usage = own.gauges.get("kv_usage", [None] * len(own.at_ns))[number]
        yield ReadingRow(
            at_s=at_ns / 1e9,
            waiting=own.gauges["waiting"][number] if "waiting" in own.gauges else None,
            running=own.gauges["running"][number] if "running" in own.gauges else None,
            kv_usage_pct=None if usage is None else 100.0 * usage,
            tokens=_since(own, "generated_tokens", number),
            finished=_since(own, "finished", number),
        )


def _since(own: Readings, name: str, number: int) -> float | None:
    parts = own.grown.get(name)
    if parts is None or own.whole:
        return None
    return parts[number - 1].count if number else 0.0


TOOL = Tool(
    name="inference_latency",
    title="Latency of inference servers",
    description=(
        "Which stage of a vLLM, SGLang, TGI, Triton, TensorRT-LLM, LMDeploy or llama.cpp server delays requests, by "
        "its metrics: queue, prefill, decode, preemption, KV cache, a standstill, host, clients. Asks a loopback port "
        "of the process, or metrics_url."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset(
        f"serving.{name}"
        for name in (
            *("latency", "queue", "prefill", "decode", "preemption", "kv_cache", "stuck", "host_bound", "client"),
        )
    ),
)
