"""The coarse history: rows by minute, place and part, from totals as the kernel side counts them, and records."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from slice_records import MS, PID, TID, code, sample, stack, total, wait

from whystall.bpf import layout as lay
from whystall.bpf.continuous import Cut
from whystall.tools.collect import slice_history
from whystall.tools.collect.slice_history import (
    PART_NS,
    PARTS,
    RUNNING,
    History,
    JobName,
    Place,
    history_minutes,
    history_rows,
)
from whystall.tools.collect.slice_peers import Peers
from whystall.tools.collect.slice_scan import Scan, Waits, framed

MINUTE = 60_000_000_000
LINE = "load (train.py:7)"


def cut_of(start: int, end: int, *totals: tuple[bytes, bytes], lost: int = 0) -> Cut:
    name = bytes(lay.ThreadInfoValue(tgid=PID, comm=b"train\x1b"))
    keys, values = b"".join(k for k, _ in totals), b"".join(v for _, v in totals)
    counters = {lay.LOSSES[0]: lost} if lost else {}
    return Cut(start * MS, end * MS, (keys, values), (TID.to_bytes(4, "little"), name), counters)


def file_record(ino: int, *names: bytes, fs: bytes = b"ext4") -> bytes:
    text = b"".join(name + b"\0" for name in reversed(names))
    record = lay.FileRecord(type=lay.RECORD_FILE, file=lay.FileKey(ino=ino, dev=1), length=len(text), fs=fs)
    return bytes(record)[: lay.FileRecord.text.offset] + text


class Clock:
    """Sets the clock of the history: one for both, so that the start of a slice is its time of day."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0
        patch.setattr(slice_history.time, "time_ns", lambda: self.now_ms * MS)
        patch.setattr(slice_history.time, "monotonic_ns", lambda: self.now_ms * MS)


def scan_of(*more: bytes, start: int = 0) -> Scan:
    scan = Scan()
    scan.details.begin(start * MS)
    words = [9 << lay.FRAME_CODE_SHIFT]
    scan.read(framed([code(9, b"load"), stack(5, *words), *more]), Waits())
    return scan


def test_waits_are_summed_by_minute_part_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    base = 7 * 60_000
    history = History(tmp_path)
    history.name_jobs({PID: JobName("slurm:7", "llama")})
    clock.now_ms = base + 5_000
    both = total(3, 40, 20, pystack=5), total(1, 5, 5, tgid=99)
    lowered = {PID: 5 * MS, 99: 1000 * MS}
    history.add(cut_of(base, base + 5_000, *both, lost=2), {PID}, scan_of(start=base), 2 * MS, lowered)
    clock.now_ms = base + 30_000
    history.name_jobs({})  # the job has ended
    history.add(cut_of(base + 25_000, base + 30_000, total(1, 60, 60, pystack=5)), {PID}, scan_of())
    clock.now_ms = base + 65_000
    history.add(cut_of(base + 60_000, base + 65_000, total(1, 2, 2)), {PID}, scan_of())
    history.close()
    first, second = history_minutes(tmp_path, 0, 100 * MINUTE)
    (row,) = first.rows
    assert row.place == Place(row.place.comm, False, "S", "futex", LINE)
    assert (row.parts_ns, row.number, row.longest_ns) == ((40 * MS, 0, 60 * MS, 0, 0, 0), 4, 60 * MS)
    assert "\x1b" not in row.place.comm
    assert first.recorded_ns == (5_000 * MS, 0, 5_000 * MS, 0, 0, 0)
    assert (first.lowered, second.lowered) == ({PID: 5 * MS}, {})
    assert (first.min_ns, first.lost, first.jobs) == (2 * MS, 2, {PID: JobName("slurm:7", "llama")})
    assert (second.minute_ns, second.rows[0].place.line, second.rows[0].waited_ns) == (8 * MINUTE, "", 2 * MS)
    assert history_rows(tmp_path, 8 * MINUTE, 9 * MINUTE) == list(second.rows)


def test_a_long_wait_counts_in_each_part_in_which_it_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    base = 7 * 60_000
    history = History(tmp_path)
    began = base + 2_000
    clock.now_ms = base + 10_000
    waits = wait(began, base + 10_000, flags=lay.RECORD_OPEN, pystack=5, futex=0x70)
    history.add(cut_of(base, base + 10_000), {PID}, scan_of(waits, start=base))
    clock.now_ms = base + 20_000
    ended = wait(began, base + 13_000, pystack=5, futex=0x70, wake=(base + 13_000) * MS, waker_tgid=PID,
                 wake_context=lay.WAKE_CONTEXTS.index("task"), waker_comm=b"holder-12")  # fmt: skip
    totals = total(3, 11_000 + 7, 11_000, pystack=5)
    history.add(cut_of(base + 10_000, base + 20_000, totals), {PID}, scan_of(ended, start=base + 10_000))
    history.close()
    ((short, held),) = (sorted(m.rows, key=lambda row: row.waited_ns) for m in history_minutes(tmp_path, 0, MINUTE * 9))
    assert held.place.object == "futex 0x70"
    assert (held.parts_ns[:2], held.number, held.longest_ns) == ((8_000 * MS, 3_000 * MS), 1, 11_000 * MS)
    assert held.enders == (("thread holder-*", 3_000 * MS),)
    assert (short.place.object, short.waited_ns, short.number) == ("", 7 * MS, 2)


def test_samples_are_cpu_time_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    history = History(tmp_path)
    clock.now_ms = 5_000
    records = [*[sample(10, pystack=5)] * 3, sample(20), sample(30, tgid=99)]
    history.add(cut_of(0, 5_000, total(1, 30, 30)), {PID}, scan_of(*records), MS, sample_ns=50 * MS)
    clock.now_ms = 15_000
    history.add(cut_of(10_000, 15_000), {PID}, scan_of(sample(9_000, pystack=5)), MS, sample_ns=100 * MS)
    history.close()
    (minute,) = history_minutes(tmp_path, 0, MINUTE)
    ran = {row.place.line: row for row in minute.rows if row.place.state == RUNNING}
    assert {line: row.parts_ns[:2] for line, row in ran.items()} == {LINE: (150 * MS, 100 * MS), "": (50 * MS, 0)}
    assert {(row.number, row.longest_ns, row.place.main) for row in ran.values()} == {(0, 0, False)}
    assert minute.sample_ns == 100 * MS
    (wait,) = history_rows(tmp_path, 0, MINUTE)
    assert wait.place.state == "S"


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (file_record(4, b"data", b"shard-0012.bin"), "/data/shard-*.bin"),
        (file_record(4, fs=b"pipefs"), "pipe"),
        (file_record(4, fs=b"sockfs"), "socket"),
        (None, ""),
    ],
)
def test_the_file_of_a_wait_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: bytes | None, name: str
) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr("whystall.tools.collect.slice_peers.Channels", _no_channels)
    history = History(tmp_path)
    clock.now_ms = 5_000
    key: dict[str, Any] = {"file": lay.FileKey(ino=4, dev=1), "nr": 0}
    history.add(cut_of(0, 5_000, total(1, 30, 30, **key)), {PID}, scan_of(*([record] if record else [])))
    history.close()
    (row,) = history_rows(tmp_path, 0, MINUTE)
    assert (row.place.call, row.place.object) == ("read", name)


def _no_channels(namespace: str, most: int) -> None:
    raise OSError(1, "not here")


def test_the_peer_of_a_connection_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as one:
            peers = Peers()
            assert peers.name(os.getpid(), os.fstat(one.fileno()).st_ino, "socket") == f"tcp 127.0.0.1:{port}"
            assert peers.name(os.getpid(), 1, "socket") == "socket"
            assert peers.name(os.getpid(), 1, "pipe") == "pipe"


def test_rows_beyond_the_limit_are_summed_by_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    history = History(tmp_path)
    clock.now_ms = 5_000
    files = [file_record(ino, b"x" * ino) for ino in range(1, 501)]
    totals = [total(1, ino, ino, file=lay.FileKey(ino=ino, dev=1), nr=0) for ino in range(1, 501)]
    history.add(cut_of(0, 5_000, *totals), {PID}, scan_of(*files))
    history.close()
    rows = history_rows(tmp_path, 0, MINUTE)
    assert len(rows) == 401
    (rest,) = [row for row in rows if not row.place.call]
    assert rest.waited_ns == sum(range(1, 101)) * MS
    assert (PART_NS * PARTS, len(rest.parts_ns)) == (MINUTE, PARTS)


def test_a_killed_watch_loses_only_the_part_in_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    base = 9 * 60_000
    history = History(tmp_path)
    for second in (5, 15, 25):
        clock.now_ms = base + 1000 * second
        history.add(cut_of(clock.now_ms - 4000, clock.now_ms, total(3, 40, 20)), {PID}, scan_of(start=base))
    (minute,) = history_minutes(tmp_path, 0, 100 * MINUTE)  # as a killed one leaves it
    assert [took > 0 for took in minute.recorded_ns] == [True, True, False, False, False, False]
    assert sum(row.number for row in minute.rows) == 6
    clock.now_ms = base + 65_000
    history.add(cut_of(clock.now_ms - 4000, clock.now_ms, total(3, 40, 20)), {PID}, scan_of(start=base))
    history.close()
    whole, after = history_minutes(tmp_path, 0, 100 * MINUTE)
    assert (sum(row.number for row in whole.rows), sum(row.number for row in after.rows)) == (9, 3)
