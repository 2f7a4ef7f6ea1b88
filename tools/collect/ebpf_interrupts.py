"""The collectors ``interrupts`` and ``run_queue`` of the ``ebpf`` engine: their tables and proofs."""

from __future__ import annotations

import os
from collections.abc import Mapping

import polars as pl

from whystall.bpf import layout
from whystall.bpf.capture import Capture as BpfCapture
from whystall.bpf.collectors.interrupts import Interrupts, InterruptTimes
from whystall.bpf.collectors.run_queue import RunQueue, RunQueueWaits
from whystall.bpf.session import Session
from whystall.tools.collect.ebpf_collector import EbpfCollector, SessionResult, losses
from whystall.tools.collect.proc_interrupts import SOFT, InterruptCounts
from whystall.tools.collect.tables import INTERRUPTS, RUN_QUEUE, filled
from whystall.tools.contract.text import clean
from whystall.tools.recording.collector import Capture, Options

# Share of softirqs that may be missing without counting as lost: a busy 6.18 emits no events for up to 1 %.
_MISSING = 0.02


class InterruptCollector(EbpfCollector):
    """The collector ``interrupts``, with the kernel's own counts of the same span."""

    name = "interrupts"
    losses = frozenset({"interrupts_full"})

    def __init__(self, wanted: Mapping[str, Options]) -> None:
        self.kernel = InterruptTimes()
        self._counts: InterruptCounts | None = None

    def started(self, session: Session) -> None:
        """Read the kernel's own counts."""
        self._counts = InterruptCounts()

    def stopping(self, session: Session) -> None:
        """Read them again."""
        if self._counts is not None:
            self._counts.stop()

    def capture(self, result: SessionResult) -> Capture:
        """Return the tables."""
        if self._counts is None:
            raise ValueError("not started")
        return interrupt_capture(result.raw, self._counts, losses(result.raw, self.name))


class RunQueueCollector(EbpfCollector):
    """The collector ``run_queue``."""

    name = "run_queue"
    losses = frozenset({"waits_full"})

    def __init__(self, wanted: Mapping[str, Options]) -> None:
        self.kernel = RunQueueWaits()

    def capture(self, result: SessionResult) -> Capture:
        """Return the tables."""
        return run_queue_capture(result.raw, losses(result.raw, self.name))


def interrupt_capture(raw: BpfCapture, counts: InterruptCounts, lost: int) -> Capture:
    """Return the capture of `interrupts`, checked against the kernel's own `counts` of softirqs.

    At most one softirq per CPU may be running at each end; a larger difference means missing events.
    """
    interrupts = raw.of(Interrupts)
    tables = interrupt_tables(interrupts)
    expected = counts.softirqs()
    softirqs = sum(total.count for total in interrupts.totals if total.kind == SOFT)
    missing = max(0, (expected or 0) - softirqs - (os.cpu_count() or 1))
    others = pl.DataFrame(counts.architecture_rows(), INTERRUPTS["totals"], orient="row")
    tables["totals"] = pl.concat([tables["totals"], others])
    tables["cpus"] = pl.DataFrame(counts.cpu_rows(), INTERRUPTS["cpus"], orient="row")
    not_seen = [("untimed_interrupts", "")] if others.height else []
    if missing:
        not_seen.append(("untold_interrupts", f"{missing} of {expected} softirqs"))
    not_seen += [("not_permitted", f"/proc/{name}") for name in counts.denied]
    return Capture(
        tables=tables,
        hooks=list(raw.hooks),
        seen=sum(total.count for total in interrupts.totals),
        kept=0,
        lost=lost + (missing if missing > _MISSING * (expected or 0) else 0),
        proven=softirqs > 0,
        not_seen=not_seen,
    )


def interrupt_tables(interrupts: Interrupts) -> dict[str, pl.DataFrame]:
    """Return the tables of `interrupts`, except ``cpus``."""
    totals = sorted(interrupts.totals, key=lambda t: (t.kind, t.name, t.cpu))
    slots = sorted(interrupts.slots, key=lambda s: (s.kind, s.name, s.slot))
    return filled(
        INTERRUPTS,
        totals=[(t.kind, clean(t.name), t.cpu, t.count, t.total_ns, t.max_ns) for t in totals],
        latency=[(s.kind, clean(s.name), *layout.slot_bounds(s.slot), s.count) for s in slots],
        stolen=[
            (s.tgid, s.tid, clean(s.comm), s.kind, clean(s.name), s.count, s.total_ns, s.max_ns, s.in_call_ns)
            for s in interrupts.stolen
        ],
    )


def run_queue_capture(raw: BpfCapture, lost: int) -> Capture:
    """Return the capture of `run_queue`; proven by our own wait for a CPU after our own sleep."""
    waits = raw.of(RunQueue)
    count = sum(total.count for total in waits.totals)
    return Capture(
        tables=run_queue_tables(waits),
        hooks=list(raw.hooks),
        seen=count,
        kept=0,
        lost=lost,
        proven=raw.seen["self_waits"] > 0,
    )


def run_queue_tables(waits: RunQueue) -> dict[str, pl.DataFrame]:
    """Return the tables of `run_queue`; a process is named after its main thread, else after any that waited."""
    named: dict[int, str] = {}
    for total in sorted(waits.totals, key=lambda t: t.tid == t.tgid):
        named[total.tgid] = clean(total.comm)
    totals = [(t.tgid, t.tid, clean(t.comm), t.count, t.total_ns, t.max_ns) for t in waits.totals]
    slots = [
        (s.tgid, named.get(s.tgid, ""), *layout.slot_bounds(s.slot), s.count)
        for s in sorted(waits.slots, key=lambda s: (s.tgid, s.slot))
    ]
    return filled(RUN_QUEUE, latency=slots, totals=totals)
