"""Handlers of interrupts against the kernel's own counts, and whom they take a CPU from."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest
from kernel_sessions import kernel_session
from scripted import PRELUDE, child

from whystall.bpf import layout
from whystall.tools.collect.ebpf_engine import EbpfEngine
from whystall.tools.collect.proc_interrupts import HARD, SOFT, InterruptCounts
from whystall.tools.collect.procfs_engine import ProcfsEngine
from whystall.tools.contract.params import TargetParams
from whystall.tools.host import interrupts
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import resolve
from whystall.tools.recording.window import observe

OLD_WAYS = dict.fromkeys(("pt_regs_helper", "current_btf", "plain_loads"), False)
DATAGRAMS = 4000
# Some kernels do not tell all (ebpf_interrupts), and what runs at the moment of a reading is counted by one side only.
TOLD = 0.95


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))


def send_to_ourselves(datagrams: int = DATAGRAMS) -> None:
    """Each datagram over loopback is received in a softirq NET_RX, at the end of the call that sent it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(datagrams):
                sender.sendto(b"x", receiver.getsockname())


def write_to_disk(directory: Path) -> None:
    with (directory / "written").open("wb", buffering=0) as file:
        for _ in range(20):
            file.write(bytes(4096))
            os.fsync(file.fileno())


@pytest.mark.parametrize("variants", [{}, OLD_WAYS], ids=["newest", "oldest"])
def test_handlers_are_counted_as_the_kernel_counts_them(tmp_path: Path, variants: dict[str, bool]) -> None:
    config = partial(kernel_session, targets=None, syscalls=False, switches=False, interrupts=True, variants=variants)
    with config() as session:
        theirs = InterruptCounts()
        send_to_ourselves()
        write_to_disk(tmp_path)
        theirs.stop()
        seen = session.read()
    assert seen.lost == {}
    assert seen.interrupts is not None
    grown = theirs.grown()
    assert sum(grown[SOFT, "NET_RX"].values()) >= DATAGRAMS
    told: dict[tuple[str, str], int] = {}
    for total in seen.interrupts.totals:
        key = (total.kind, total.name.decode())
        told[key] = told.get(key, 0) + total.count
        assert 0 < total.max_ns <= total.total_ns
    for (kind, name), counts in grown.items():
        here = sum(counts.values())
        shared = kind == HARD and (", " in name or (kind, name) not in told)
        if kind == SOFT or not shared:
            assert told.get((kind, name), 0) >= TOLD * here - 2 * (os.cpu_count() or 1), name
    # ours was the longer look, so there may be more, and what the architecture handles itself has no action
    known = {name for kind, name in grown if kind == HARD}
    names = {name for kind, name in told if kind == HARD and told[kind, name] > 2}
    assert names <= known
    for kind, name in told:
        slots = [s for s in seen.interrupts.slots if (s.kind, s.name.decode()) == (kind, name)]
        assert sum(slot.count for slot in slots) == told[kind, name]
        assert all(layout.slot_bounds(slot.slot)[0] >= 0 for slot in slots)


def watched(pid: int | None, engine: type[EbpfEngine] | type[ProcfsEngine], seconds: float = 1.0) -> Recording:
    return anyio.run(lambda: observe([Need("interrupts")], resolve(TargetParams(pid=pid)), seconds, [engine]))


def test_what_a_thread_sends_to_its_own_host_is_its_own_work() -> None:
    code = """
import socket
go()
receiver, sender = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
receiver.bind(("127.0.0.1", 0))
end = time.monotonic() + 60
while time.monotonic() < end: sender.sendto(b"x" * 1000, receiver.getsockname())
"""
    with child(code) as sender:
        sender.go()
        recording = watched(sender.pid, EbpfEngine)
    told = interrupts.judge(recording, interrupts.Params())
    (row,) = [row for row in told.data.stolen if row.interrupt == "softirq NET_RX"]
    assert (row.pid, row.tid) == (sender.pid, sender.pid)
    assert row.count > 1000
    assert row.in_call_ms >= 0.9 * row.total_ms
    assert not [f for f in told.findings if f.kind == "irq.steal" and f.attributes.get("interrupt") == row.interrupt]
    assert recording.manifest.collectors["interrupts"].proven


BURNER = """
os.sched_setaffinity(0, {int(sys.argv[1])})
log(what="ready")
while True: pass
"""
# In a network of its own, whose received packets are handled on another CPU (receive packet steering).
FLOOD = """
import socket, subprocess
subprocess.run(["mount", "-t", "sysfs", "none", "/sys"], check=True)
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
with open("/sys/class/net/lo/queues/rx-0/rps_cpus", "w") as file: file.write("%x" % (1 << int(sys.argv[1])))
os.sched_setaffinity(0, {int(sys.argv[2])})
receiver, sender = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
receiver.bind(("127.0.0.1", 0))
log(what="ready")
while True: sender.sendto(b"x", receiver.getsockname())
"""


@pytest.fixture
def flood() -> Iterator[int]:
    """The CPU on which packets sent by another one arrive."""
    sender, *_, victim = sorted(os.sched_getaffinity(0))
    if victim == sender:
        pytest.skip("needs two CPUs")
    command = ["unshare", "-n", "-m", sys.executable, "-c", PRELUDE + FLOOD, str(victim), str(sender)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        yield victim
    finally:
        process.kill()
        process.communicate()


def test_packets_that_others_send_are_stolen_from_a_thread_that_computes(flood: int) -> None:
    with child(BURNER, str(flood)) as burner:
        config = partial(
            kernel_session, targets=frozenset({burner.pid}), syscalls=False, switches=False, interrupts=True
        )
        with config() as session:
            theirs, ran, began = InterruptCounts(), ran_ns(burner.pid), time.monotonic_ns()
            time.sleep(1.5)
            share = (ran_ns(burner.pid) - ran) / (time.monotonic_ns() - began)
            theirs.stop()
            seen = session.read()
    assert seen.interrupts is not None
    (row,) = [row for row in seen.interrupts.stolen if (row.kind, row.name) == ("softirq", b"NET_RX")]
    arrived = theirs.grown()[SOFT, "NET_RX"][flood]
    assert (row.tgid, row.tid) == (burner.pid, burner.pid)
    # It computes in user mode: nothing of this is its own. Others may have had that CPU for a part of the time.
    assert row.in_call_ns <= 0.2 * row.total_ns
    assert arrived > 500
    assert row.count >= 0.25 * share * arrived - 50
    (total,) = [t for t in seen.interrupts.totals if (t.name, t.cpu) == (b"NET_RX", flood)]
    assert row.count <= total.count
    assert row.total_ns <= total.total_ns


def ran_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def test_counts_alone_are_the_same_counts_and_say_that_they_are_no_more() -> None:
    before = InterruptCounts()
    send_to_ourselves(100)
    recording = watched(None, ProcfsEngine)
    time.sleep(0.01)
    before.stop()
    totals = recording.table("interrupts.totals")
    for (kind, name), counts in before.grown().items():
        mine = int(totals.filter(kind=kind, name=name)["count"].sum())
        assert mine <= sum(counts.values())
    assert {"untimed_interrupts"} <= {spot.code for spot in recording.manifest.collectors["interrupts"].not_seen}
    assert (totals["total_ns"] == -1).all()
    assert totals.height > 0
