"""runqlat on recordings made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from recordings import COMM, PID, Scene

from whystall.tools.contract.findings import Finding, Polarity, Severity
from whystall.tools.contract.kinds import Mechanism
from whystall.tools.contract.registry import Judgement
from whystall.tools.host import runqlat

MS = 1_000_000


def waits(
    made: Scene, ms: float, count: int = 100, *, pid: int = PID, tid: int | None = None, max_ms: float = -1
) -> Scene:
    """A thread that waited `count` times, `ms` in all; `max_ms` -1: not told."""
    number = pid if tid is None else tid
    row = {"pid": pid, "tid": number, "comm": COMM, "count": count, "total_ns": int(ms * MS)}
    row["max_ns"] = int(max_ms * MS) if max_ms >= 0 else -1
    made.tables.setdefault("run_queue.totals", []).append(row)
    return made


def slots(made: Scene, *histogram: tuple[float, float, int], pid: int = PID) -> Scene:
    """Waits of a process: from so many ms to so many, how often."""
    for low, high, count in histogram:
        row = {"pid": pid, "comm": COMM, "low_ns": int(low * MS), "high_ns": int(high * MS), "count": count}
        made.tables.setdefault("run_queue.latency", []).append(row)
    return made


def judged(made: Scene, **build: Any) -> Judgement[runqlat.Data]:
    return runqlat.judge(made.build(**build), runqlat.Params(top=50))


def only(findings: list[Finding]) -> Finding:
    (found,) = findings
    return found


def test_a_thread_that_waits_much_is_told_with_its_quantiles() -> None:
    made = slots(waits(Scene(window_s=10), 3000, 100, max_ms=200), (8, 16, 50), (32, 64, 49), (128, 256, 1))
    told = judged(made)
    found = only(told.findings)
    assert (found.kind, found.polarity, found.severity) == (
        "sched.queue_latency",
        Polarity.ABNORMAL,
        Severity.MAJOR,
    )
    assert found.spec.mechanism is Mechanism.SWITCHES
    assert (found.subject.pid, found.subject.tid) == (PID, PID)
    assert found.metrics["window_pct"] == pytest.approx(30)
    assert 8 <= found.metrics["p50_ms"] <= 16
    assert 32 <= found.metrics["p99_ms"] <= 64
    assert found.metrics["max_ms"] == 200
    (row,) = told.data.rows
    assert [(b.low_us, b.count) for b in row.histogram if b.count]
    assert sum(b.count for b in row.histogram) == 100


def test_quantiles_of_a_process_are_not_said_of_one_of_several_threads() -> None:
    made = slots(waits(Scene(window_s=10), 3000, max_ms=20), (8, 16, 200))
    found = only(judged(waits(made, 10, tid=PID + 1, max_ms=1)).findings)
    assert "p50_ms" not in found.metrics


@pytest.mark.parametrize(
    ("ms", "max_ms", "severity"),
    [(499, 99, None), (500, 20, Severity.MINOR), (120, 110, Severity.MINOR), (4000, 20, Severity.CRITICAL)],
)
def test_one_very_long_wait_counts_as_much_as_many(ms: float, max_ms: float, severity: Severity | None) -> None:
    found = only(judged(slots(waits(Scene(window_s=10), ms, max_ms=max_ms), (0, 100, 100))).findings)
    if severity is None:
        assert (found.polarity, found.subject.pid, found.subject.tid) == (Polarity.NORMAL, PID, None)
        assert found.metrics["window_pct"] == pytest.approx(ms / 100)
    else:
        assert (found.polarity, found.severity) == (Polarity.ABNORMAL, severity)


@pytest.mark.parametrize("build", [{"lost": {"run_queue": 1}}, {"unproven": ["run_queue"]}])
def test_nothing_is_normal_where_something_may_be_missing(build: dict[str, Any]) -> None:
    assert judged(slots(waits(Scene(window_s=10), 1, max_ms=1), (0, 1, 100)), **build).findings == []


def test_the_schedulers_account_confirms_nothing_that_the_first_look_read_there_too() -> None:
    found = only(judged(waits(Scene(window_s=10), 3000)).findings)
    assert (found.kind, found.spec.mechanism) == ("sched.runqueue_delay", Mechanism.COUNTERS)
    assert found.metrics == {"window_pct": pytest.approx(30), "wait_s": pytest.approx(3)}


def test_waits_of_everybody_together_accuse_and_acquit_nobody() -> None:
    made = slots(Scene(window_s=10), (64, 128, 500), pid=-1)
    made.tables["run_queue.totals"] = [
        {"pid": -1, "tid": -1, "comm": "", "count": 500, "total_ns": -1, "max_ns": -1},
    ]
    told = judged(made)
    assert told.findings == []
    (row,) = told.data.rows
    assert (row.pid, row.threads, row.count, row.total_ms) == (None, None, 500, None)
    assert 64 <= (row.p50_ms or 0) <= 128


def test_on_a_whole_host_the_worst_are_told_and_nobody_is_normal() -> None:
    made = Scene(window_s=10, everything=True)
    for number in range(20):
        slots(waits(made, 600 + number, pid=5000 + number, max_ms=30), (0, 30, 100), pid=5000 + number)
    told = judged(made)
    assert [f.subject.pid for f in told.findings] == [5019 - n for n in range(8)]
    quiet = slots(waits(Scene(window_s=10, everything=True), 1, pid=7, max_ms=1), (0, 1, 100), pid=7)
    assert judged(quiet).findings == []
