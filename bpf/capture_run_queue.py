"""What a session saw of waits for a CPU: which hooks and maps it needs, and how those are decoded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from whystall.bpf import layout as lay
from whystall.bpf.libbpf import Object

PROGRAMS = ("on_queue_switch", "on_wakeup", "on_wakeup_new")
"""In this order: a wait may end whose beginning was not seen."""
WALK = "walk_queue"
_MAPS = ("queue_waiting", "queue_totals", "queue_slots")


@dataclass(frozen=True)
class QueueTotal:
    """Waits of one thread, one that lasts at the window's end included."""

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
    """Everything."""

    totals: list[QueueTotal]
    slots: list[QueueSlot]


def leave_out(made: Object) -> None:
    """Make no maps for the run queue; none of the programs may be loaded."""
    for name in _MAPS:
        made.map(name).set_autocreate(False)


def read(made: Object) -> RunQueue:
    """Everything the maps hold; the hooks must be gone."""
    return decode(made.map("queue_totals").items(), made.map("queue_slots").items())


Items = Iterable[tuple[bytes, bytes]]


def decode(totals: Items, slots: Items) -> RunQueue:
    """From the maps' keys and values."""
    key, value, place = (lay.unpacker(one) for one in (lay.QueueKey, lay.QueueTotalC, lay.QueueSlotKey))
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
