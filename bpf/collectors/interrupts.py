"""Handlers of interrupts and softirqs of the whole host: their times, and the time taken from targets' threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from whystall.bpf import layout as lay
from whystall.bpf.collector import Collector, Window

# include/linux/interrupt.h, as /proc/softirqs names them
SOFTIRQS = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")


@dataclass(frozen=True)
class IrqTotal:
    """One handler on one CPU. A softirq's time includes that of interrupts within it."""

    kind: str
    """hardirq or softirq."""
    name: bytes
    """Of a hardirq the name of its action, from the driver: untrusted text."""
    cpu: int
    count: int
    total_ns: int
    max_ns: int


@dataclass(frozen=True)
class IrqSlot:
    """Runs of one handler, on all CPUs, in one latency slot (layout.slot_bounds)."""

    kind: str
    name: bytes
    slot: int
    count: int


@dataclass(frozen=True)
class Stolen:
    """Time that one handler took from a target's thread, without interrupts within a softirq."""

    tgid: int
    tid: int
    comm: bytes
    kind: str
    name: bytes
    count: int
    total_ns: int
    max_ns: int
    in_call_ns: int
    """Part of total_ns while the thread was in a system call."""


class Interrupts(NamedTuple):
    """The handlers of one window."""

    totals: list[IrqTotal]
    slots: list[IrqSlot]
    stolen: list[Stolen]


class InterruptTimes(Collector):
    """Time the handlers."""

    maps = ("irq_totals", "irq_slots", "irq_names", "stolen_totals", "irq_runs")

    def programs(self) -> Sequence[str]:
        """Return exits first: no handler's start is recorded without its end."""
        return ("on_irq_exit", "on_irq_entry", "on_softirq_exit", "on_softirq_entry")

    def read(self, window: Window) -> Interrupts:
        """Return the contents of the maps."""
        names = ("irq_totals", "irq_slots", "irq_names", "stolen_totals")
        return decode(*(window.made.map(name).items() for name in names))


def decode(totals: lay.Items, slots: lay.Items, names: lay.Items, stolen: lay.Items) -> Interrupts:
    """Decode the maps' keys and values. Actions of one name and CPU become one row."""
    known = {int.from_bytes(k, "little"): v.split(b"\0", 1)[0] for k, v in names}
    slot_key = lay.unpacker(lay.IrqSlotKey)
    merged: dict[tuple[str, bytes, int], tuple[int, int, int]] = {}
    for (number, kind, cpu), (count, total, longest) in lay.decode(totals, lay.IrqKey, lay.IrqTotal):
        handler = (*_named(kind, number, known), cpu)
        before = merged.get(handler, (0, 0, 0))
        merged[handler] = (before[0] + count, before[1] + total, max(before[2], longest))
    counted: dict[tuple[str, bytes, int], int] = {}
    for k, v in slots:
        number, kind, slot = slot_key.unpack(k)
        place = (*_named(kind, number, known), slot)
        counted[place] = counted.get(place, 0) + int.from_bytes(v, "little")
    taken = []
    for (number, kind, tid), (*numbers, tgid, _, comm) in lay.decode(stolen, lay.StolenKey, lay.StolenTotal):
        taken.append(Stolen(tgid, tid, comm.split(b"\0", 1)[0], *_named(kind, number, known), *numbers))
    return Interrupts(
        totals=[IrqTotal(*handler, *sums) for handler, sums in merged.items()],
        slots=[IrqSlot(*place, count) for place, count in counted.items()],
        stolen=taken,
    )


def _named(kind: int, number: int, names: Mapping[int, bytes]) -> tuple[str, bytes]:
    if kind == lay.IRQ_KINDS.index("softirq"):
        name = SOFTIRQS[number].encode() if number < len(SOFTIRQS) else b"%d" % number
    else:
        name = names.get(number, b"")
    return lay.IRQ_KINDS[kind], name
