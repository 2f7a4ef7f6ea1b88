"""A recorder without an end: a stall that a program logged itself is cut out of the past, also if it died."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import Child, child

from whystall.bpf import capture as cap
from whystall.bpf import layout as lay
from whystall.bpf.attached import MAX_TARGETS
from whystall.bpf.continuous import ContinuousSession, Detail
from whystall.bpf.errors import BpfError
from whystall.tools.collect.continuous import ContinuousRecorder, Limits, recording_from
from whystall.tools.collect.slice_history import history_rows
from whystall.tools.collect.slice_parts import map_items
from whystall.tools.collect.slice_scan import Scan, Waits
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.host.critical_path.tool import Params, judge
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target

MS = 1_000_000
# Steps with a short wait each, and one long wait.
TRAINING = """
def load_batch(): time.sleep(0.02)
def step(): sum(range(20000))
def checkpoint(): time.sleep(1.5)
go()
begun = time.monotonic()
while time.monotonic() < begun + 2: load_batch(); step()
timed("stall", checkpoint)
while True: load_batch(); step()
"""
RECORDER = """
import sys, time
from pathlib import Path
from whystall.bpf.continuous import ContinuousSession
from whystall.tools.collect.continuous import ContinuousRecorder, Limits
from whystall.tools.recording.target import Target
pid = int(sys.argv[1])
recorder = ContinuousRecorder(Target(everything=False, pid=pid, pids=[pid]), Limits(), Path(sys.argv[2]))
recorder.start()
print("ready", flush=True)
assert "polars" not in sys.modules
while True: time.sleep(0.2); recorder.poll()
"""


def stall_of(subject: Child) -> tuple[int, int]:
    (line,) = [line for line in subject.until("stall") if line["what"] == "stall"]
    return line["start"], line["end"]


def longest(recording: Recording) -> dict[str, Any]:
    rows = recording.table("switches.segments").to_dicts()
    return max(rows, key=lambda row: row["end_ns"] - row["start_ns"])


def assert_names_the_stall(recording: Recording, pid: int, start: int, end: int) -> None:
    wait = longest(recording)
    begun = recording.manifest.start_ns
    assert wait["pid"] == pid
    assert wait["syscall"] == "clock_nanosleep"
    assert start <= begun + wait["start_ns"] <= begun + wait["end_ns"] <= end
    assert wait["end_ns"] - wait["start_ns"] >= 1400 * MS
    row = next(row for row in judge(recording, Params(pid=pid)).data.rows if row.line.startswith("checkpoint"))
    assert row.what == "sleep"
    assert row.total_ms >= 1400


def test_a_stall_of_the_past_is_named(tmp_path: Path) -> None:
    with child(TRAINING) as subject:
        target = Target(everything=False, pid=subject.pid, pids=[subject.pid])
        recorder = ContinuousRecorder(target, Limits(slice_ns=1_000 * MS), tmp_path)
        recorder.start()
        try:
            subject.go()
            waits: list[Waits] = []
            until = time.monotonic() + 4.5
            while time.monotonic() < until:
                time.sleep(0.2)
                waits.append(recorder.poll())
            start, end = stall_of(subject)
            recording = recorder.recording(start - 1000 * MS, end + 300 * MS)
            cost = recorder.cost()
        finally:
            recorder.close()
    kept = history_rows(tmp_path, 0, time.time_ns())
    stalled = sum(row.waited_ns for row in kept if row.place.line.startswith("checkpoint ("))
    assert stalled == pytest.approx(1500 * MS, rel=0.2)
    assert {row.pid for row in kept} == {subject.pid}
    assert recording.manifest.start_ns == start - 1000 * MS
    assert recording.manifest.window_ns == end - start + 1300 * MS
    assert_names_the_stall(recording, subject.pid, start, end)
    (at,) = [(w, i) for w in waits for i in range(len(w)) if w.end_ns[i] - w.start_ns[i] >= 1400 * MS]
    assert start <= at[0].start_ns[at[1]] <= at[0].end_ns[at[1]] <= end
    steps = {p for w in waits for p, s, e in zip(w.place, w.start_ns, w.end_ns, strict=True) if e - s > 15 * MS}
    assert 2 <= len(steps) <= 10  # two lines that wait, and few others
    recording.save(tmp_path / "recording")
    stored = Recording.open(tmp_path / "recording", COLLECTORS)
    assert_names_the_stall(stored, subject.pid, start, end)
    assert stored.table("proc.threads")["pid"].unique().to_list() == [subject.pid]
    assert cost.lost == 0
    assert cost.events_per_s > 0
    assert 0 < cost.disk_bytes < 4 << 20


def test_what_a_killed_recorder_wrote_is_kept(tmp_path: Path) -> None:
    with child(TRAINING) as subject:
        command = [sys.executable, "-c", RECORDER, str(subject.pid), str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as recorder:
            assert recorder.stdout is not None
            assert recorder.stdout.readline() == "ready\n"
            subject.go()
            start, end = stall_of(subject)
            time.sleep(0.6)
            recorder.send_signal(signal.SIGKILL)
        assert_names_the_stall(recording_from(tmp_path, start - 500 * MS, end + 300 * MS), subject.pid, start, end)


def test_a_wait_in_progress_is_recorded_and_targets_change(tmp_path: Path) -> None:
    waiting = "def forever(): sys.stdin.readline()\ngo(); log(what='waits'); forever()"
    with child(waiting) as first, child(TRAINING) as second:
        recorder = ContinuousRecorder(Target(everything=False), Limits(), tmp_path)
        recorder.start()
        try:
            recorder.retarget(frozenset({first.pid}))
            first.go()
            first.until("waits")
            time.sleep(0.3)
            recorder.flush()
            now = time.monotonic_ns()
            recording = recording_from(tmp_path, now - 250 * MS, now)
            recorder.poll()
            recorder.retarget(frozenset({second.pid, 1 << 22}))
            second.go()
            time.sleep(0.5)
            waits = recorder.poll()
        finally:
            recorder.close()
    (held,) = recording.table("objects.threads").to_dicts()
    assert (held["pid"], held["syscall"]) == (first.pid, "read")
    assert held["object"].startswith("pipe:[")
    assert first.pid in recording.table("objects.ends").filter(reads=True)["pid"].to_list()
    (row,) = recording.table("switches.segments").to_dicts()
    assert (row["pid"], row["syscall"], row["open"], row["seeded"]) == (first.pid, "read", True, True)
    frames = dict(recording.table("switches.stacks").select("stack", "frames").iter_rows())[row["ustack"]]
    assert any(frame.startswith("forever (") for frame in frames)
    assert set(waits.tgid) == {second.pid}


def test_a_target_finds_room_among_children_that_have_ended_and_else_waits_for_it() -> None:
    with child(TRAINING) as subject:
        session = ContinuousSession(frozenset(), MS, 50 * MS, lambda record: None)
        session.load()
        try:
            session.start()
            assert session._targets is not None
            ended = range((1 << 22) + 1, (1 << 22) + 1 + MAX_TARGETS)  # larger than any process
            for pid in ended:
                session._targets.update(pid.to_bytes(4, "little"), bytes([lay.TRACED_TARGET]))
            session.set_targets(frozenset({subject.pid}))
            assert session.target_pids() == [subject.pid]
            session.set_targets(frozenset())
            alive = [int(name) for name in os.listdir("/proc/self/task")]
            for pid in [*ended[: MAX_TARGETS - len(alive)], *alive]:
                session._targets.update(pid.to_bytes(4, "little"), bytes([lay.TRACED_TARGET]))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(session, "_remove_ended", list)  # all live
                session.set_targets(frozenset({subject.pid}))
                assert subject.pid not in session.target_pids()
            session.prune()
            assert subject.pid in session.target_pids()
            with pytest.raises(BpfError):
                session.set_targets(frozenset(range(1, MAX_TARGETS + 2)))
        finally:
            session.close()


@pytest.mark.parametrize("directory", ["missing/below", "file"])
def test_without_a_directory_it_records_in_memory(tmp_path: Path, directory: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with child(TRAINING) as subject:
        target = Target(everything=False, pid=subject.pid, pids=[subject.pid])
        recorder = ContinuousRecorder(target, Limits(), tmp_path / directory)
        recorder.start()
        try:
            subject.go()
            time.sleep(0.5)
            now = time.monotonic_ns()
            recording = recorder.recording(now - 400 * MS, now)
            cost = recorder.cost()
        finally:
            recorder.close()
    assert recording.table("switches.segments").height > 0
    assert bool(cost.notes) == bool(cost.memory_bytes) == (directory == "file")
    assert os.listdir(tmp_path) == sorted(["file", "missing"] if directory != "file" else ["file"])


# Short waits, and a long one each time that it is asked.
NAPPING = """
def nap(): time.sleep(0.02)
def stall(): time.sleep(3.5)
go()
while True:
    begun = time.monotonic()
    while time.monotonic() < begun + 2: nap()
    timed("stall", stall)
"""


def read_waits(session: ContinuousSession, scan: Scan, seconds: float) -> Waits:
    found = Waits()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.5)
        scan.read(session.take(), found)
    return found


def waits_of(session: ContinuousSession, scan: Scan, seconds: float) -> list[tuple[int, int]]:
    found = read_waits(session, scan, seconds)
    return list(zip(found.start_ns, found.end_ns, strict=True))


def test_without_hooks_at_switches_long_waits_are_found_and_others_afterwards() -> None:
    with child(NAPPING) as subject:
        session = ContinuousSession(frozenset({subject.pid}), MS, 50 * MS, lambda record: None)
        session.load()
        try:
            session.start()
            hooks = set(session.hooks)
            session.set_details([Detail(MS, MS, 0)], 1000 * MS)
            session.limit({subject.pid: 1}, 1)
            assert "on_switch" not in session.hooks
            subject.go()
            scan = Scan()
            looked = waits_of(session, scan, 9)
            session.limit({subject.pid: 0}, 1)
            assert set(session.hooks) == hooks
            hooked = waits_of(session, scan, 3)
        finally:
            session.close()
        start, end = stall_of(subject)
    # Where no tick has shown the offset of the scheduler's clock (idle CPUs), a wait begins with the look at it.
    near = [one for one in looked if -200 * MS < one[0] - start < 1700 * MS]
    assert len(near) == 1
    assert abs(near[0][1] - end) < 1500 * MS  # it ran more than once until the next look
    assert all(one[1] - one[0] >= 800 * MS for one in looked)
    assert len([one for one in hooked if 15 * MS < one[1] - one[0] < 500 * MS]) > 10


def test_one_process_is_only_looked_at_while_another_keeps_its_hooks() -> None:
    with child(NAPPING) as first, child(NAPPING) as second:
        session = ContinuousSession(frozenset({first.pid, second.pid}), MS, 50 * MS, lambda record: None)
        session.load()
        try:
            session.start()
            session.set_details([Detail(MS, MS, 0), Detail(5 * MS, 50 * MS, 1000 * MS)], 1000 * MS)
            session.limit({first.pid: 2, second.pid: 1}, 1)
            assert "on_switch" in session.hooks
            first.go()
            second.go()
            session.measure(True)
            found = read_waits(session, Scan(), 9)
            costs = session.measure(False)
        finally:
            session.close()
        stalls = {one.pid: stall_of(one) for one in (first, second)}
    lengths = {first.pid: [], second.pid: []}
    for tgid, start, end in zip(found.tgid, found.start_ns, found.end_ns, strict=True):
        lengths[tgid].append(end - start)
    assert min(lengths[first.pid]) >= 800 * MS
    assert len([one for one in lengths[second.pid] if one < 500 * MS]) > 20
    exact = [one for one in lengths[second.pid] if one > 3000 * MS]
    start, end = stalls[second.pid]
    assert exact[0] == pytest.approx(end - start, rel=0.1)
    assert costs[second.pid].ns > costs[second.pid].runs > 20
    assert first.pid not in costs


def test_brief_waits_are_counted_and_a_long_one_among_them_is_recorded() -> None:
    switching = """
def nap(): time.sleep(0.0002)
def stall(): nap(); time.sleep(0.4)
go()
begun = time.monotonic()
while time.monotonic() < begun + 2: nap()
timed("stall", stall)
while True: nap()
"""
    with child(switching) as subject:
        session = ContinuousSession(frozenset({subject.pid}), MS, 50 * MS, lambda record: None)
        session.load()
        try:
            session.start()
            session.set_details([Detail(5 * MS, 50 * MS, 1000 * MS)], 1000 * MS)
            session.limit({subject.pid: 0}, 1)
            subject.go()
            waits = waits_of(session, Scan(), 3.5)
            totals = session.cut().totals
        finally:
            session.close()
        start, end = stall_of(subject)
    near = [one for one in waits if one[1] - one[0] > 350 * MS]
    assert len(near) == 1
    assert start - MS <= near[0][0] <= near[0][1] <= end + MS
    counts = [one.count for one in cap.off_totals(map_items(*totals, lay.unpacker(lay.OffKey).size))]
    assert sum(counts) > 2000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_on_a_disk_that_takes_nothing_it_records_in_memory(small_disk: Path, fault: str) -> None:
    if fault == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with child(TRAINING) as subject:
        target = Target(everything=False, pid=subject.pid, pids=[subject.pid])
        recorder = ContinuousRecorder(target, Limits(), small_disk / "watch")
        recorder.start()
        try:
            subject.go()
            until = time.monotonic() + 4.5
            while time.monotonic() < until:
                time.sleep(0.2)
                recorder.poll()
            _, end = stall_of(subject)
            recording = recorder.recording(end - 2000 * MS, end)
            cost = recorder.cost()
        finally:
            recorder.close()
    assert longest(recording)["syscall"] == "clock_nanosleep"
    assert any(note.startswith("kept in memory only") for note in cost.notes)
    assert cost.disk_bytes == 0
    assert cost.memory_bytes > 0
    assert shutil.disk_usage(small_disk).used < 9 << 20  # the history fits, nothing else is left over


def test_it_shrinks_when_its_control_group_is_short_of_memory(tmp_path: Path) -> None:
    group = Path(f"/sys/fs/cgroup/memory/whystall-test-{os.getpid()}")
    group.mkdir()
    into = ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(group / "cgroup.procs"), sys.executable, "-c"]
    hog = "import time; kept = b'x' * (380 << 20); print('full', flush=True); time.sleep(60)"
    log = tmp_path / "slices"
    try:
        (group / "memory.limit_in_bytes").write_text(str(446 << 20))
        with child(TRAINING) as subject:
            command = [*into, RECORDER, str(subject.pid), str(tmp_path)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as recorder:
                assert recorder.stdout is not None
                assert recorder.stdout.readline() == "ready\n"
                subject.go()
                whole = log.stat().st_size
                assert whole > 64 << 20
                with subprocess.Popen([*into, hog], stdout=subprocess.PIPE, text=True) as eater:
                    assert eater.stdout is not None
                    assert eater.stdout.readline() == "full\n"
                    until = time.monotonic() + 30
                    while log.stat().st_size == whole and time.monotonic() < until:
                        time.sleep(0.2)
                    eater.kill()
                assert recorder.poll() is None
                recorder.kill()
        assert log.stat().st_size < whole // 3
        recording_from(tmp_path, 0, time.monotonic_ns())
    finally:
        time.sleep(0.3)
        group.rmdir()
