"""Decode the output of the child of our own BCC programs; calls and waits in progress at the window's ends."""

from __future__ import annotations

import contextlib
import ctypes as ct
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whystall.bpf import layout as lay
from whystall.bpf import syscalls
from whystall.bpf.collectors.switches import SwitchRows
from whystall.tools.collect.bcc import own_decode, own_open
from whystall.tools.collect.bcc.own_link import ThreadNow
from whystall.tools.collect.bcc.own_source import OwnState
from whystall.tools.recording.target import Target

NUMBER = {name: nr for nr, name in syscalls.names().items()}
SECOND = 1_000_000_000
BEGIN, END = 100 * SECOND, 110 * SECOND
NOTHING = own_open.Open([], [], [], [], {}, {}, [], [])


def counters(**given: int) -> list[tuple[bytes, bytes]]:
    """Return the map of counters on two CPUs, all counted on the second."""
    words = [0] * len(lay.COUNTERS) + [given.get(name, 0) for name in lay.COUNTERS]
    return [(bytes(4), struct.pack(f"<{len(words)}Q", *words))]


def segment(**members: int) -> bytes:
    return bytes(lay.SegmentRecord(type=lay.RECORD_SEGMENT, comm=b"trainer", **members))


def test_records_are_those_of_the_other_engine() -> None:
    raw = segment(start=BEGIN, end=END, tgid=7, tid=8, nr=NUMBER["fsync"], off_class=0, kstack=3)
    padded = raw + bytes(4)  # the perf buffer aligns what it holds
    seen = own_decode.decode({"counters": counters()}, [raw, padded], BEGIN, END, ["sched_switch"], {})
    assert [(s.tgid, s.tid, s.comm, s.off_class, s.kstack) for s in seen.of(SwitchRows).segments] == [
        (7, 8, b"trainer", "D", 3)
    ] * 2
    assert seen.hooks == ("sched_switch",)


def test_losses_are_reported_by_reason() -> None:
    rows = {"counters": counters(call_totals_full=3, self_calls=5)}
    seen = own_decode.decode(rows, [], BEGIN, END, [], {"ring_full": 2, "reader_full": 0})
    assert {name: sum(counts) for name, counts in seen.lost.items()} == {"call_totals_full": 3, "ring_full": 2}
    assert seen.seen["self_calls"] == 5
    assert seen.seen["calls"] == 3  # those that did not fit were calls, too


@pytest.mark.parametrize("record", [b"", b"\0", b"\x63" * 40, segment()[:-9], segment() + bytes(8), bytes([6]) * 300])
def test_another_shape_is_refused(record: bytes) -> None:
    with pytest.raises(ValueError, match="a record of"):
        own_decode.decode({"counters": counters()}, [record], BEGIN, END, [], {})


@given(st.dictionaries(st.sampled_from(["counters", "states", "stacks", "off_totals", "irq_totals", "requests"]),
                       st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=96)), max_size=3)),
       st.lists(st.binary(max_size=200), max_size=3))  # fmt: skip
@settings(max_examples=150, derandomize=True, deadline=None)
def test_nonsense_is_refused_and_nothing_else(rows: dict[str, list[tuple[bytes, bytes]]], raw: list[bytes]) -> None:
    with contextlib.suppress(ValueError, struct.error):
        own_decode.decode(rows, raw, BEGIN, END, [], {})


def test_addresses_distinguish_kernel_and_user_stacks() -> None:
    kernel, user = 0xFFFFFFFF81000000, 0x7F0000001000
    rows = [
        (struct.pack("<I", 4), struct.pack("<4Q", kernel, kernel + 8, 0, 0)),
        (struct.pack("<I", 9), struct.pack("<4Q", user, user + 8, user + 16, user + 24)),
        (struct.pack("<I", 11), bytes(32)),
    ]
    found = own_decode.stacks(rows)
    assert found[5] == (lay.STACK_KERNEL, (kernel, kernel + 8))
    assert found[10 | own_decode.USER_STACK].kind == lay.STACK_USER
    assert len(found) == 2


def state(**members: int) -> tuple[bytes, bytes]:
    made = OwnState(tgid=7, tid=8, off_nr=-1, call_nr=-1, **members)
    return (8).to_bytes(4, "little"), bytes(made)


def still_open(
    row: tuple[bytes, bytes],
    runs: int,
    call: str,
    *,
    everybody: bool = False,
    call_min_ns: int | None = 0,
    ran_ns: int = 5,
    selves: frozenset[int] = frozenset(),
) -> own_open.Open:
    wanted = own_open.Wanted(call_min_ns, 0, True, everybody, selves)
    threads = {8: ThreadNow(runs, call, ran_ns)}
    return own_open.still_open([row], threads, {8: 5}, BEGIN, END, wanted, lambda tid: b"trainer")


def test_a_thread_without_a_cpu_since_still_waits() -> None:
    number = NUMBER["fsync"]
    row = state(off_start=BEGIN + SECOND, off_runs=41, call_start=BEGIN + SECOND // 2)
    OwnState.from_buffer_copy(row[1])
    made = OwnState.from_buffer_copy(row[1])
    made.off_nr = made.call_nr = number
    found = still_open((row[0], bytes(made)), 41, f"{number} 0x3 0x0 0x0 0x0 0x0 0x0 0x7ffe 0x7f00")
    (one,) = found.segments
    assert (one.start, one.end, one.off_class, one.nr, one.tid) == (BEGIN + SECOND, END, "D", number, 8)
    assert one.flags & lay.RECORD_OPEN
    assert not one.flags & lay.RECORD_SEEDED
    (call,) = found.calls
    assert (call.start, call.end, call.nr, call.fd, call.d_ns) == (BEGIN + SECOND // 2, END, number, 3, 9 * SECOND)
    assert call.cpu_ns == SECOND // 2
    assert [(t.count, t.wall_ns) for t in found.call_totals] == [(1, call.end - call.start)]
    assert [t.total_ns for t in found.off_totals] == [9 * SECOND]


def test_a_thread_that_ran_since_is_not_reported() -> None:
    found = still_open(state(off_start=BEGIN, off_runs=41), 42, "running")
    assert found == NOTHING


def test_a_call_that_ended_is_not_reported() -> None:
    made = OwnState(tgid=7, tid=8, off_start=BEGIN, off_runs=1, call_start=BEGIN, call_nr=NUMBER["read"], off_nr=-1)
    found = still_open((bytes(4), bytes(made)), 1, f"{NUMBER['write']} 0x1 0x0 0x0 0x0 0x0 0x0 0x0 0x0")
    assert len(found.segments) == 1
    assert found.calls == []


def test_a_wait_for_a_cpu_lasts_until_the_end() -> None:
    found = still_open(state(queued=END - SECOND, off_runs=3, off_start=BEGIN, off_class=1), 3, "running")
    assert [(t.tid, t.count, t.total_ns, t.max_ns) for t in found.queue_totals] == [(8, 1, SECOND, SECOND)]
    (slot,) = found.queue_slots
    low, high = lay.slot_bounds(slot.slot)
    assert low <= SECOND < high
    new = still_open(state(queued=END - SECOND), 0, "running")
    assert len(new.queue_totals) == 1
    assert new.segments == []
    assert still_open(state(queued=END - SECOND, off_runs=3, off_start=BEGIN), 4, "running") == NOTHING


def test_a_thread_in_state_r_waited_only_if_it_did_not_run() -> None:
    """/proc does not show whether a thread in state R has a CPU: one that computes is not reported as waiting."""
    seeded = state(queued=1, off_start=1, off_runs=3, off_class=2)
    starved = still_open(seeded, 3, "running", ran_ns=5)
    assert [(t.count, t.total_ns) for t in starved.queue_totals] == [(1, END - BEGIN)]
    (segment,) = starved.segments
    assert (segment.off_class, segment.runnable_ns) == ("R", END - BEGIN)
    assert still_open(seeded, 3, "running", ran_ns=6) == NOTHING


def test_our_own_waits_are_not_reported() -> None:
    row = state(off_start=BEGIN, off_runs=1, off_class=1)
    assert still_open(row, 1, "0 0x0 0x0").segments
    assert still_open(row, 1, "0 0x0 0x0", selves=frozenset({7})) == NOTHING


def test_a_wait_from_before_the_window_is_cut_to_it() -> None:
    found = still_open(state(off_start=1, off_runs=1, off_class=1), 1, "-1 0x0 0x0")
    (one,) = found.segments
    assert (one.start, one.end, one.off_class) == (BEGIN, END, "S")
    assert one.flags & lay.RECORD_SEEDED


def test_awake_without_a_cpu_is_waiting_for_one() -> None:
    woken = state(off_start=BEGIN, off_runs=1, off_class=1, wake=END - SECOND)
    preempted = state(off_start=BEGIN, off_runs=1, off_class=2)
    assert still_open(woken, 1, "").segments[0].runnable_ns == SECOND
    assert still_open(preempted, 1, "").segments[0].runnable_ns == END - BEGIN


def test_on_a_whole_host_only_calls_on_storage_are_reported(tmp_path: Path) -> None:
    number = NUMBER["read"]
    read, write = os.pipe()
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        for descriptor, expected in ((read, 0), (file, 1)):
            made = OwnState(tgid=os.getpid(), tid=8, off_start=BEGIN, off_runs=1, call_start=BEGIN, call_nr=number)
            call = f"{number} {descriptor:#x} 0x0 0x10 0x0 0x0 0x0 0x0 0x0"
            found = still_open((bytes(4), bytes(made)), 1, call, everybody=True)
            assert len(found.calls) == expected
        ((path, size),) = [(f.path, f.size) for f in found.files.values()]
        assert (path, size) == (os.fsencode(tmp_path / "file"), 0)
    finally:
        for descriptor in (read, write, file):
            os.close(descriptor)


@pytest.fixture
def waiting() -> Iterator[int]:
    """A thread of ours that reads from a pipe without a writer."""
    read, write = os.pipe()
    thread = threading.Thread(target=os.read, args=(read, 1))
    thread.start()
    try:
        yield thread.native_id or 0
    finally:
        os.write(write, b"x")
        thread.join()
        os.close(read)
        os.close(write)


def test_a_blocked_thread_gets_the_state_that_the_programs_write(waiting: int) -> None:
    target = Target(everything=False, pid=os.getpid(), pids=[os.getpid()])
    seeds: list[own_open.Seed] = []
    while not any(seed.tid == waiting and seed.off_class == "S" for seed in seeds):  # it has not blocked yet
        seeds, whole = own_open.seeds(target, ())
        assert whole
    (seed,) = [seed for seed in seeds if seed.tid == waiting]
    ((key, value),) = own_open.state_rows([seed], everybody=False)
    made = OwnState.from_buffer_copy(value)
    assert int.from_bytes(key, "little") == waiting
    assert (made.tgid, made.tid, lay.OFF_CLASSES[made.off_class]) == (os.getpid(), waiting, "S")
    assert 0 < made.off_start < BEGIN
    assert len(value) == ct.sizeof(OwnState)
    if seed.call is not None:  # a hardened host hides calls
        assert (made.off_nr, made.call_start) == (NUMBER["read"], 1)
