"""Records as the kernel side would make them, and the tables that must come out."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from whystall.bpf import syscalls
from whystall.bpf.layout import TRACE_FLAGS, TRACE_TYPES, TraceRecord
from whystall.bpf.trace import RECORD_BYTES, Loss
from whystall.tools.collect.ftrace import bpf_decode
from whystall.tools.collect.ftrace.bpf_decode import Named, state_letter, tables
from whystall.tools.timeline.sched import TABLES

Row = dict[str, Any]


def record(kind: str, at: int, *, comm: bytes = b"", flags: str = "", **fields: int) -> bytes:
    padded = comm.ljust(16, b"\0")
    words = {"b": int.from_bytes(padded[:8], "little"), "c": int.from_bytes(padded[8:], "little")} if comm else {}
    numbers = {"type": TRACE_TYPES.index(kind) + 1, "flags": 1 << TRACE_FLAGS.index(flags) if flags else 0}
    return (48).to_bytes(8, "little") + bytes(TraceRecord(at=at, **words, **numbers, **fields))


def made(*records: bytes, **more: Any) -> dict[str, list[Row]]:
    found = tables(records, more.pop("losses", ()), more.pop("known", ()), lambda dev: f"disk{dev}", **more)
    assert {name: frame.schema for name, frame in found.items()} == TABLES
    return {name: frame.rows(named=True) for name, frame in found.items()}


def test_the_layout_is_that_of_the_ring_buffer() -> None:
    assert len(record("switch", 1)) == RECORD_BYTES


@pytest.mark.parametrize(
    ("state", "letter"),
    [
        *((0, "R"), (1, "S"), (2, "D"), (4, "T"), (8, "t"), (0x80 | 0x10, "X"), (0x80 | 0x20, "Z"), (0x40, "P")),
        *((0x402, "I"), (0x2002, "D"), (0x2001, "S"), (0x1000, "D"), (0x8000, "D"), (0x102, "D"), (0x100, "R")),
    ],
)
@pytest.mark.thorough
def test_states_are_named_as_the_kernel_prints_them(state: int, letter: str) -> None:
    assert state_letter(state, False) == letter
    assert state_letter(state, True) == "R"
    (row,) = made(record("switch", 5, value=state))["switches"]
    assert (row["prev_state"], row["preempted"]) == (letter, letter == "R")
    (row,) = made(record("switch", 5, value=state, flags="preempted"))["switches"]
    assert (row["prev_state"], row["preempted"]) == ("R", True)


def test_switches_come_sorted_with_unknown_priorities_as_minus_one() -> None:
    one = record("switch", 20, comm=b"one", cpu=1, tid=7, other=0, prio=255, prio2=120, a=15)
    two = record("switch", 10, comm=b"two", cpu=8191, tid=0, other=7, prio=120, prio2=139, value=2)
    rows = made(one, two)["switches"]
    assert [tuple(row.values()) for row in rows] == [
        (10, 8191, 0, 120, "D", False, 0, 7, 139),
        (20, 1, 7, -1, "R", True, 15, 0, 120),
    ]


@pytest.mark.parametrize("flags", ["", "task", "softirq", "hardirq", "nmi"])
@pytest.mark.parametrize("kind", ["waking", "wakeup", "new"])
def test_wakeups_say_in_which_context(kind: str, flags: str) -> None:
    (row,) = made(record(kind, 3, comm=b"x", cpu=2, tid=1, other=9, prio2=98, value=5, flags=flags))["wakeups"]
    assert tuple(row.values()) == (3, 2, kind, 1, flags, 9, 98, 5)


def test_migrations_interrupts_and_power() -> None:
    found = made(
        record("migrate", 1, cpu=3, tid=1, other=5, value=6, a=7),
        record("irq_entry", 2, cpu=1, tid=5, value=36, comm=b"", a=int.from_bytes(b"virtio1-", "little"), b=0x71, c=0),
        record("irq_exit", 3, cpu=1, tid=5, value=36),
        record("softirq_entry", 4, cpu=1, tid=5, value=9),
        record("softirq_exit", 5, cpu=1, tid=5, value=9),
        record("softirq_entry", 6, cpu=1, tid=5, value=10),
        record("idle", 7, cpu=0, value=4, a=(1 << 64) - 1),
        record("frequency", 8, cpu=0, value=4, a=2_400_000),
    )
    assert [tuple(row.values()) for row in found["migrations"]] == [(1, 3, 5, 6, 7)]
    assert [tuple(row.values()) for row in found["interrupts"]] == [
        (2, 1, 5, False, True, 36, "virtio1-q"),
        (3, 1, 5, False, False, 36, ""),
        (4, 1, 5, True, True, 9, "RCU"),
        (5, 1, 5, True, False, 9, "RCU"),
        (6, 1, 5, True, True, 10, ""),
    ]
    assert [tuple(row.values()) for row in found["power"]] == [(7, 4, "idle", -1), (8, 4, "frequency", 2_400_000)]


def test_system_calls_with_signed_arguments() -> None:
    number = next(nr for nr, name in syscalls.names().items() if name == "futex")
    enter = record("sys_enter", 1, tid=8, other=number, a=(1 << 64) - 5, b=128, c=3)
    left = record("sys_exit", 2, tid=8, other=number, a=(1 << 64) - 110)
    rows = made(enter, left)["syscalls"]
    assert [tuple(row.values()) for row in rows] == [
        (1, 0, 8, True, number, "futex", -5, 128, 3, 0),
        (2, 0, 8, False, number, "futex", 0, 0, 0, -110),
    ]


def test_requests() -> None:
    (row,) = made(record("block_issue", 1, cpu=1, tid=4, a=2048, b=4096, c=8 << 20, value=2))["block"]
    assert tuple(row.values()) == (1, 1, 4, "issue", "disk8388608", "sync_write", 2048, 4096)


LIFE = (
    record("fork", 10, comm=b"parent", tid=100, other=200, a=200),
    record("switch", 20, comm=b"parent", tid=0, other=200),
    record("rename", 30, comm=b"\x1b[2Jchild", tid=200, other=200, a=200),
    record("exec", 40, comm=b"\x1b[2Jchild", tid=200, other=201, a=200, cpu=1),
    record("switch", 50, comm=b"\x1b[2Jchild", tid=0, other=200),
    record("exit", 60, comm=b"\x1b[2Jchild", tid=200, a=200),
)


def test_the_life_of_a_thread_and_its_names() -> None:
    known = [Named(1, 100, 100, "parent"), Named(1, 1, 1, "init"), Named(70, 100, 100, "parent")]
    found = made(*LIFE, known=known)
    assert [(row["kind"], row["tid"], row["other_tid"], row["text"]) for row in found["tasks"]] == [
        ("fork", 100, 200, ""),
        ("rename", 200, -1, r"\x1b[2Jchild"),
        ("exec", 200, 201, ""),
        ("exit", 200, -1, ""),
    ]
    assert sorted(tuple(row.values()) for row in found["names"]) == [
        (1, 1, 1, "init"),
        (1, 100, 100, "parent"),
        (10, 200, 200, "parent"),
        (30, 200, 200, r"\x1b[2Jchild"),
    ]
    assert [row["kind"] for row in made(*LIFE, cpus={1})["tasks"]] == ["exec"]
    assert made(*LIFE, cpus={1}, known=known)["names"] == found["names"]


def test_a_process_is_known_from_whatever_says_it_first() -> None:
    switch, waking = record("switch", 5, comm=b"t", other=9), record("waking", 8, comm=b"t", other=9, a=7)
    assert [tuple(row.values()) for row in made(switch, waking)["names"]] == [(5, 9, 7, "t")]
    assert [tuple(row.values()) for row in made(switch)["names"]] == [(5, 9, -1, "t")]
    reused = record("fork", 9, comm=b"t", tid=1, other=9, a=9)
    assert [(row["at_ns"], row["pid"]) for row in made(switch, waking, reused)["names"]] == [(5, 7), (9, 9)]


def test_losses_are_holes() -> None:
    told = record("lost", 50, cpu=1, tid=3, a=40, b=12)
    holes = made(told, losses=[Loss(0, 5, 90, 3)])["holes"]
    assert [tuple(row.values()) for row in holes] == [(5, 90, 0, 3, "lost"), (40, 50, 1, 12, "lost")]


def test_nothing_is_no_problem_and_pieces_make_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(rows == [] for rows in made().values())
    whole = made(*LIFE)
    monkeypatch.setattr(bpf_decode, "_PIECE", 1)
    assert made(*LIFE) == whole
    assert pl.DataFrame(whole["names"]).height == 2
