"""What the kernel side's maps hold, as columns."""

from __future__ import annotations

import struct

from whystall.bpf import layout
from whystall.bpf.collectors import interrupts, run_queue
from whystall.tools.collect.ebpf_interrupts import interrupt_tables, run_queue_tables

A, B = 0xFFFF_8880_0000_1000, 0xFFFF_8880_0000_2000
HARD, SOFT = 0, 1


def key(number: int, kind: int, last: int) -> bytes:
    return struct.pack("<QII", number, kind, last)


def total(*values: int) -> bytes:
    return struct.pack("<3Q", *values)


def test_handlers_are_named_and_two_actions_of_one_name_are_one_row() -> None:
    seen = interrupts.decode(
        totals=[
            (key(A, HARD, 0), total(2, 200, 150)),
            (key(B, HARD, 0), total(1, 500, 500)),
            (key(3, SOFT, 1), total(7, 70, 20)),
            (key(40, SOFT, 1), total(1, 1, 1)),
        ],
        slots=[(key(A, HARD, 12), struct.pack("<Q", 2)), (key(B, HARD, 12), struct.pack("<Q", 1))],
        names=[(struct.pack("<Q", at), b"eth0\x1b[1m\0junk".ljust(64, b"\0")) for at in (A, B)],
        stolen=[(key(3, SOFT, 11), struct.pack("<4QII16s", 5, 50, 20, 10, 10, 0, b"train\0xxxxx"))],
    )
    tables = interrupt_tables(seen)
    name = tables["totals"].filter(kind="hardirq")["name"][0]
    assert name.startswith("eth0")
    assert "\x1b" not in name
    assert tables["totals"].rows() == [
        ("hardirq", name, 0, 3, 700, 500),
        ("softirq", "40", 1, 1, 1, 1),
        ("softirq", "NET_RX", 1, 7, 70, 20),
    ]
    low, high = layout.slot_bounds(12)
    assert tables["latency"].rows() == [("hardirq", name, low, high, 3)]
    assert tables["stolen"].rows() == [(10, 11, "train", "softirq", "NET_RX", 5, 50, 20, 10)]


def test_waits_are_told_per_thread_and_their_lengths_per_process() -> None:
    seen = run_queue.decode(
        totals=[
            (struct.pack("<II", 10, 10), struct.pack("<3Q16s", 2, 30, 20, b"main")),
            (struct.pack("<II", 10, 11), struct.pack("<3Q16s", 1, 5, 5, b"worker")),
        ],
        slots=[(struct.pack("<II", 10, 5), struct.pack("<Q", 3)), (struct.pack("<II", 12, 5), struct.pack("<Q", 1))],
    )
    tables = run_queue_tables(seen)
    assert tables["latency"].rows() == [(10, "main", 5, 6, 3), (12, "", 5, 6, 1)]
    assert tables["totals"].rows() == [(10, 10, "main", 2, 30, 20), (10, 11, "worker", 1, 5, 5)]
