"""Waits for a CPU: totals per thread, latencies per process."""

from __future__ import annotations

import struct
from collections.abc import Sequence
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


def decode(totals: lay.Items, slots: lay.Items) -> RunQueue:
    """Decode the maps' keys and values."""
    place, count = lay.unpacker(lay.QueueSlotKey), struct.Struct("<Q")
    return RunQueue(
        [
            QueueTotal(tgid, tid, comm.split(b"\0", 1)[0], *numbers)
            for (tgid, tid), (*numbers, comm) in lay.decode(totals, lay.QueueKey, lay.QueueTotal)
        ],
        [QueueSlot(*place.unpack(k), *count.unpack(v)) for k, v in slots],
    )
