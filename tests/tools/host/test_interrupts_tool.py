"""interrupts on recordings made by hand: who is accused, of what, and when nobody is."""

from __future__ import annotations

from typing import Any

import pytest
from recordings import COMM, PID, Scene

from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.registry import Judgement
from whystall.tools.host import interrupts

WINDOW_MS = 10_000
MS = 1_000_000


def scene(everything: bool = False) -> Scene:
    made = Scene(window_s=10, everything=everything)
    handler(made, "TIMER", cpu=0, ms=10, count=1000)
    return account(made, 0)


def handler(made: Scene, name: str, *, cpu: int, ms: float, count: int, kind: str = "softirq") -> Scene:
    """A handler that took `ms` of a CPU in `count` runs; `ms` -1: counted only."""
    total = int(ms * MS) if ms >= 0 else -1
    longest = max(1, 2 * total // count) if ms >= 0 else -1
    row = {"kind": kind, "name": name, "cpu": cpu, "count": count, "total_ns": total, "max_ns": longest}
    made.tables.setdefault("interrupts.totals", []).append(row)
    if ms >= 0:
        low = total // count
        slot = {"kind": kind, "name": name, "low_ns": low, "high_ns": low + 1000, "count": count}
        made.tables.setdefault("interrupts.latency", []).append(slot)
    return made


def account(made: Scene, cpu: int, softirq_ms: float = 0.0) -> Scene:
    row = {"cpu": cpu, "hardirq_ns": 0, "softirq_ns": int(softirq_ms * MS)}
    made.tables.setdefault("interrupts.cpus", []).append(row)
    return made


def stolen(made: Scene, ms: float, name: str = "NET_RX", *, in_call_ms: float = 0.0, kind: str = "softirq") -> Scene:
    row = {"pid": PID, "tid": PID, "comm": COMM, "kind": kind, "name": name, "count": 100}
    row |= {"total_ns": int(ms * MS), "max_ns": MS, "in_call_ns": int(in_call_ms * MS)}
    made.tables.setdefault("interrupts.stolen", []).append(row)
    return made


def judged(made: Scene, **build: Any) -> Judgement[interrupts.Data]:
    return interrupts.judge(made.build(**build), interrupts.Params(top=50))


def bad(findings: list[Finding]) -> list[Finding]:
    return [f for f in findings if f.polarity is Polarity.ABNORMAL]


def test_a_storm_on_a_cpu_and_what_it_takes_of_the_thread_are_told_apart() -> None:
    made = handler(scene(), "NET_RX", cpu=1, ms=4000, count=200_000)
    steal, load = bad(judged(stolen(made, 3000)).findings)
    assert (steal.kind, steal.subject.tid, steal.attributes) == ("irq.steal", PID, {"interrupt": "softirq NET_RX"})
    assert steal.metrics["window_pct"] == pytest.approx(30)
    assert (load.kind, load.attributes) == ("irq.load", {"interrupt": "softirq NET_RX", "cpus": "1"})
    assert load.metrics["cpu_pct"] == pytest.approx(40)


@pytest.mark.parametrize(
    ("name", "kind", "in_call_ms", "accused"),
    [
        ("NET_RX", "softirq", 1000, False),  # packets that it sends to its own host
        ("NET_RX", "softirq", 400, True),
        ("eth0", "hardirq", 1000, True),  # a device interrupts a system call as well
    ],
)
def test_work_within_the_threads_own_call_is_not_called_stolen(
    name: str, kind: str, in_call_ms: float, accused: bool
) -> None:
    findings = judged(stolen(scene(), 1000, name, in_call_ms=in_call_ms, kind=kind)).findings
    assert bool(bad(findings)) is accused
    assert [f.kind for f in findings if f.kind == "irq.steal"] == (["irq.steal"] if accused else [])


def test_little_is_normal_only_where_every_cpu_is_quiet() -> None:
    quiet = judged(stolen(scene(), 20)).findings
    assert {(f.kind, f.polarity) for f in quiet} == {
        ("irq.steal", Polarity.NORMAL),
        ("irq.load", Polarity.NORMAL),
    }
    busy = judged(handler(stolen(scene(), 20), "NET_RX", cpu=1, ms=1000, count=9)).findings
    assert busy == []  # not enough to accuse, and it may have kept the thread from running
    # a thousand calls between CPUs a second are nothing, a hundred thousand may not be
    for rate, normal in ((1000, True), (100_000, False)):
        counted = handler(scene(), "CAL", cpu=0, ms=-1, count=10 * rate, kind="hardirq")
        assert bool(judged(counted).findings) is normal


@pytest.mark.parametrize("build", [{"lost": {"interrupts": 1}}, {"unproven": ["interrupts"]}])
def test_nothing_is_normal_where_something_may_be_missing(build: dict[str, Any]) -> None:
    assert judged(stolen(scene(), 20), **build).findings == []
    assert bad(judged(stolen(scene(), 2000), **build).findings)


def test_counts_alone_accuse_by_the_kernels_account_and_never_acquit() -> None:
    made = Scene(window_s=10)
    handler(made, "NET_RX", cpu=0, ms=-1, count=500_000)
    (load,) = judged(account(made, 0, softirq_ms=2500)).findings
    assert (load.kind, load.polarity) == ("irq.load", Polarity.ABNORMAL)
    assert load.metrics == {"cpu_pct": pytest.approx(25), "rate": 50_000, "count": 500_000}
    little = handler(Scene(window_s=10), "NET_RX", cpu=0, ms=-1, count=5)
    assert judged(account(little, 0, softirq_ms=10)).findings == []


def test_the_whole_host_has_no_victim() -> None:
    assert {f.kind for f in judged(scene(everything=True)).findings} == {"irq.load"}


def test_an_engine_that_tells_no_cpus_still_shows_its_handlers() -> None:
    made = Scene(window_s=10)
    handler(made, "eth0", cpu=-1, ms=50, count=1000, kind="hardirq")
    told = judged(made)
    assert told.findings == []
    (row,) = told.data.rows
    assert (row.cpu, row.cpu_pct, row.count, row.total_ms, row.event_rate) == (None, None, 1000, 50, 100)
    assert row.p50_us == pytest.approx(50.5)
    assert row.max_us == pytest.approx(100)


def test_interrupts_within_a_softirq_are_not_counted_twice_against_a_cpu() -> None:
    made = handler(scene(), "NET_RX", cpu=0, ms=1500, count=100)
    handler(made, "eth0", cpu=0, ms=1200, count=100, kind="hardirq")
    assert bad(judged(made).findings) == []


def test_a_recording_of_another_engine_without_the_extra_tables_can_be_judged() -> None:
    recording = scene().build()
    for table in ("stolen", "cpus"):
        recording._tables.pop(f"interrupts.{table}")
    told = interrupts.judge(recording, interrupts.Params())
    assert told.seen == 1000
