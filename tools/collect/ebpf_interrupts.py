"""The collectors ``interrupts`` and ``run_queue``: what the kernel side saw as columns, and their proof of life."""

from __future__ import annotations

import os
from collections.abc import Mapping

import polars as pl

from whystall.bpf import layout
from whystall.bpf.capture import Capture as Seen
from whystall.bpf.collectors.interrupts import Interrupts, InterruptTimes
from whystall.bpf.collectors.run_queue import RunQueue, RunQueueWaits
from whystall.bpf.session import Session
from whystall.tools.collect.ebpf_collector import EbpfCollector, Found, losses
from whystall.tools.collect.proc_interrupts import SOFT, InterruptCounts
from whystall.tools.collect.tables import INTERRUPTS, RUN_QUEUE
from whystall.tools.contract.text import clean
from whystall.tools.recording.collector import Capture, Options

# Some kernels do not tell all that happens: of softirqs on a busy 6.18 up to one in a hundred. So few, no longer than
# the others, change no judgement.
_UNTOLD = 0.02


class InterruptCollector(EbpfCollector):
    """The collector ``interrupts``, with the kernel's own counts of the same span."""

    name = "interrupts"
    losses = frozenset({"interrupts_full"})

    def __init__(self, wanted: Mapping[str, Options]) -> None:
        self.kernel = InterruptTimes()
        self._look: InterruptLook | None = None

    def started(self, session: Session) -> None:
        """Read the kernel's own counts."""
        self._look = InterruptLook()

    def stopping(self, session: Session) -> None:
        """Read them again."""
        if self._look is not None:
            self._look.finish()

    def capture(self, found: Found) -> Capture:
        """Return the tables."""
        if self._look is None:
            raise ValueError("not started")
        return self._look.capture(found.seen.of(Interrupts), found.seen, losses(found.seen, self.name))


class RunQueueCollector(EbpfCollector):
    """The collector ``run_queue``."""

    name = "run_queue"
    losses = frozenset({"waits_full"})

    def __init__(self, wanted: Mapping[str, Options]) -> None:
        self.kernel = RunQueueWaits()

    def capture(self, found: Found) -> Capture:
        """Return the tables."""
        return run_queue_capture(found.seen.of(RunQueue), found.seen, losses(found.seen, self.name))


class InterruptLook:
    """The kernel's own counts around a session: made when counting starts, finished before it stops."""

    def __init__(self) -> None:
        self._counts = InterruptCounts()

    def finish(self) -> None:
        """Read the counts again."""
        self._counts.finish()

    def capture(self, interrupts: Interrupts, seen: Seen, lost: int) -> Capture:
        """Proven by the kernel's own count of softirqs: so many, less one that may be running on each CPU, must have
        been seen. What is missing was not told, and is a loss where it is more than a few."""
        tables = interrupt_tables(interrupts)
        theirs = self._counts.softirqs()
        mine = sum(total.count for total in interrupts.totals if total.kind == SOFT)
        missing = max(0, (theirs or 0) - mine - (os.cpu_count() or 1))
        others = pl.DataFrame(self._counts.architecture_rows(), INTERRUPTS["totals"], orient="row")
        tables["totals"] = pl.concat([tables["totals"], others])
        tables["cpus"] = pl.DataFrame(self._counts.cpu_rows(), INTERRUPTS["cpus"], orient="row")
        not_seen = [("untimed_interrupts", "")] if others.height else []
        if missing:
            not_seen.append(("untold_interrupts", f"{missing} of {theirs} softirqs"))
        not_seen += [("not_permitted", f"/proc/{name}") for name in self._counts.denied]
        count = sum(total.count for total in interrupts.totals)
        return Capture(
            tables=tables,
            hooks=list(seen.hooks),
            seen=count,
            kept=0,
            lost=lost + (missing if missing > _UNTOLD * (theirs or 0) else 0),
            proven=mine > 0,
            not_seen=not_seen,
        )


def interrupt_tables(interrupts: Interrupts) -> dict[str, pl.DataFrame]:
    """Tables of `interrupts`. Pure."""
    rows: dict[str, list[tuple[object, ...]]] = {
        "totals": [
            (t.kind, clean(t.name), t.cpu, t.count, t.total_ns, t.max_ns)
            for t in sorted(interrupts.totals, key=lambda t: (t.kind, t.name, t.cpu))
        ],
        "latency": [
            (s.kind, clean(s.name), *layout.slot_bounds(s.slot), s.count)
            for s in sorted(interrupts.slots, key=lambda s: (s.kind, s.name, s.slot))
        ],
        "stolen": [
            (s.tgid, s.tid, clean(s.comm), s.kind, clean(s.name), s.count, s.total_ns, s.max_ns, s.in_call_ns)
            for s in interrupts.stolen
        ],
    }
    return {name: pl.DataFrame(rows.get(name, []), schema, orient="row") for name, schema in INTERRUPTS.items()}


def run_queue_capture(waits: RunQueue, seen: Seen, lost: int) -> Capture:
    """Proven by our own wait for a CPU after our own sleep."""
    count = sum(total.count for total in waits.totals)
    return Capture(
        tables=run_queue_tables(waits),
        hooks=list(seen.hooks),
        seen=count,
        kept=0,
        lost=lost,
        proven=seen.seen["self_waits"] > 0,
    )


def run_queue_tables(waits: RunQueue) -> dict[str, pl.DataFrame]:
    """Tables of `run_queue`; a process is named after its main thread, or after any that waited. Pure."""
    named: dict[int, str] = {}
    for total in sorted(waits.totals, key=lambda t: t.tid == t.tgid):
        named[total.tgid] = clean(total.comm)
    totals = [(t.tgid, t.tid, clean(t.comm), t.count, t.total_ns, t.max_ns) for t in waits.totals]
    slots = [
        (s.tgid, named.get(s.tgid, ""), *layout.slot_bounds(s.slot), s.count)
        for s in sorted(waits.slots, key=lambda s: (s.tgid, s.slot))
    ]
    return {
        "latency": pl.DataFrame(slots, RUN_QUEUE["latency"], orient="row"),
        "totals": pl.DataFrame(totals, RUN_QUEUE["totals"], orient="row"),
    }
