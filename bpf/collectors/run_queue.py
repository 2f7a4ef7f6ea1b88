"""Waits for a CPU: totals per thread, latencies per process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from whystall.bpf import layout as lay
from whystall.bpf.collector import Collector, Window


@dataclass(frozen=True)
class QueueTotal:
    """Waits of one thread, including one still open at the window's end."""

    tgid: int
    tid: int
    comm: bytes
    count: int
    total_ns: int
    max_ns: int


@dataclass(frozen=True)
class QueueSlot:
    """Waits of one process in one latency slot (layout.slot_bounds)."""

    tgid: int
    slot: int
    count: int


class RunQueue(NamedTuple):
    """The waits of one window."""

    totals: list[QueueTotal]
    slots: list[QueueSlot]


class RunQueueWaits(Collector):
    """Measure waits for a CPU."""

    maps = ("queue_waiting", "queue_totals", "queue_slots")
    start_iterators = stop_iterators = ("walk_queue",)

    def programs(self) -> Sequence[str]:
        """Return the end of waits first: an end without a start is ignored."""
        return ("on_queue_switch", "on_wakeup", "on_wakeup_new")

    def read(self, window: Window) -> RunQueue:
        """Return the contents of the maps."""
        return decode(window.made.map("queue_totals").items(), window.made.map("queue_slots").items())


Items = Iterable[tuple[bytes, bytes]]


def decode(totals: Items, slots: Items) -> RunQueue:
    """Decode the maps' keys and values."""
    key, value, place = (lay.unpacker(one) for one in (lay.QueueKey, lay.QueueTotal, lay.QueueSlotKey))
    rows = []
    for k, v in totals:
        count, total, longest, comm = value.unpack(v)
        tgid, tid = key.unpack(k)
        rows.append(QueueTotal(tgid, tid, comm.split(b"\0", 1)[0], count, total, longest))
    counted = []
    for k, v in slots:
        tgid, slot = place.unpack(k)
        counted.append(QueueSlot(tgid, slot, int.from_bytes(v, "little")))
    return RunQueue(rows, counted)
