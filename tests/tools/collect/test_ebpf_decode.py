"""What the kernel side saw, as columns."""

from __future__ import annotations

from typing import Any

from whystall.bpf import layout as lay
from whystall.bpf import syscalls
from whystall.bpf.capture import BlockIo, Capture, Followed, OffTotal, Records
from whystall.bpf.collectors.block import BlockRows
from whystall.bpf.collectors.switches import SwitchRows
from whystall.tools.collect.ebpf_calls import BlockCollector, SwitchCollector, SyscallCollector
from whystall.tools.collect.ebpf_collector import losses
from whystall.tools.collect.ebpf_decode import Files, Stacks, block_tables, switch_tables
from whystall.tools.collect.ebpf_page_cache import PageCacheCollector
from whystall.tools.collect.ebpf_samples import SampleCollector

NUMBER = {name: nr for nr, name in syscalls.names().items()}
TARGET, WAKER = 7, 9


def test_a_flush_has_no_place_on_the_disk() -> None:
    write = BlockIo(1, "write", 10, 20, 90, 4096, 512, 7, 7, b"a")
    flush = write._replace(op="flush", sector=(1 << 64) - 1, bytes=0)
    slow = block_tables(BlockRows(block_ios=[write, flush]), lambda dev: "disk")["slow"]
    assert slow["sector"].to_list() == [4096, -1]


def segment(**members: Any) -> bytes:
    given = {"end": 1000, "tgid": TARGET, "tid": TARGET, "off_class": lay.OFF_S, "fd": -1, "waker_nr": -1} | members
    return bytes(lay.SegmentRecord(type=lay.RECORD_SEGMENT, asked_ns=given.pop("asked_ns", -1), **given))


def file(fs: bytes, mode: int, ino: int, *names: bytes) -> bytes:
    """A record of a file in file system 1, whose names come leaf first."""
    text = b"".join(name + b"\0" for name in names)
    head = lay.FileRecord(type=lay.RECORD_FILE, file=lay.FileKey(ino=ino, dev=1), mode=mode, length=len(text), fs=fs)
    return bytes(head)[: lay.FileRecord.text.offset] + text


def captured(records: list[bytes], **members: Any) -> Capture:
    found = Records(records)
    rows = SwitchRows(found.segments, members.pop("off_totals", []), members.pop("followed", []))
    empty = {name: {} for name in ("threads", "stacks", "lost", "seen", "variants")} | members
    return Capture(
        window_start=0, window_end=1, files=found.files, results={SwitchRows: rows}, hooks=(), **empty
    )  # fmt: skip


def tables(capture: Capture) -> dict[str, Any]:
    files, stacks = Files(capture, lambda pid, at: None), Stacks(lambda stack: [], lambda *ids: [])
    return switch_tables(capture, files, stacks, syscalls.name, own=1)


def test_the_object_of_a_wait_has_the_name_of_its_descriptor() -> None:
    places = [
        file(b"pipefs", 0o010600, 11),
        file(b"sockfs", 0o140777, 12),
        file(b"anon_inodefs", 0, 13, b"[eventpoll]"),
        file(b"pidfs", 0o100600, 14),
        file(b"tmpfs", 0o010644, 15, b"fifo", b"run"),
        file(b"devpts", 0o020620, 16, b"3", b"pts", b"dev"),
        file(b"ext4", 0o100644, 17, b"data", b"srv"),
    ]
    waits = [segment(fd=ino, file=lay.FileKey(ino=ino, dev=1)) for ino in (*range(11, 18), 99)]
    found = tables(captured([*waits, *places]))["segments"]
    assert found["object"].to_list() == [
        "pipe:[11]", "socket:[12]", "anon_inode:[eventpoll]", "anon_inode:[pidfd]", "/run/fifo", "/dev/pts/3", "", "",
    ]  # fmt: skip
    assert found["file"].to_list() == [-1] * 6 + [0, -1]
    assert found["fd"].to_list() == [*range(11, 18), 99]


def test_the_end_of_a_wait_is_decoded() -> None:
    woken = segment(
        run_ns=300, wake=700, wake_context=lay.WAKE_CONTEXTS.index("network"), waker_tgid=WAKER, waker_tid=WAKER,
        waker_nr=NUMBER["sendto"], waker_comm=b"sender\x1b", nr=NUMBER["recvfrom"], ran_tgid=5, ran_comm=b"hog",
        asked_ns=10**9,
    )  # fmt: skip
    columns = ["runnable_ns", "context", "waker_pid", "waker_syscall", "asked_ns", "ran_pid", "ran_comm"]
    found = tables(captured([woken, segment()]))["segments"].select(columns).rows()
    assert found == [(300, "network", WAKER, "sendto", 10**9, 5, "hog"), (0, "", 0, "", -1, -1, "")]


def test_followed_wakers_are_listed() -> None:
    records = [segment(), segment(tgid=WAKER, tid=WAKER + 1)]
    totals = [OffTotal(pid, pid, "S", -1, None, 0, 0, 0, 1, 1000, 1000, 0) for pid in (TARGET, WAKER)]
    found = tables(captured(records, off_totals=totals, followed=[Followed(5, WAKER, WAKER, b"worker", TARGET)]))
    assert found["followed"].rows() == [(5, WAKER, WAKER, "worker", TARGET)]
    assert found["segments"]["pid"].to_list() == [TARGET, WAKER]
    assert found["totals"]["pid"].to_list() == [TARGET, WAKER]


def test_a_loss_counts_for_the_collectors_that_it_affects() -> None:
    lost = {"ring_segment": [2], "ring_stack": [0, 5], "recursion_on_enter": [7], "targets_full": [100]}
    capture = captured([], lost=lost)
    kinds = (SwitchCollector, SyscallCollector, SampleCollector, BlockCollector, PageCacheCollector)
    counted = {kind.name: losses(capture, kind.name) for kind in kinds}
    assert counted == {"switches": 107, "syscalls": 112, "samples": 105, "block": 100, "page_cache": 100}
