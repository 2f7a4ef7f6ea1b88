"""The reader against trees that change under it, and against the real /proc."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import polars as pl
import pytest

from whystall.tools.collect.proc_block import BlockTotals
from whystall.tools.collect.proc_reader import ProcReader
from whystall.tools.collect.procfs_engine import ProcfsEngine
from whystall.tools.collect.tables import PROC
from whystall.tools.recording.collector import Options
from whystall.tools.recording.target import Target

STAT = "{pid} ({comm}) S 1 9 9 0 -1 0 1 0 0 0 {user} 0 0 0 20 0 1 0 5 1 1" + " 0" * 30 + "\n"


def put(root: Path, pid: int, user: int, comm: str = "x") -> None:
    """A process with one thread, as far as the reader looks."""
    task = root / str(pid) / "task" / str(pid)
    task.mkdir(parents=True, exist_ok=True)
    for place in (task, root / str(pid)):
        (place / "stat").write_text(STAT.format(pid=pid, comm=comm, user=user))
    (task / "schedstat").write_text(f"{user * 10_000_000} 7 3\n")
    (task / "status").write_text("voluntary_ctxt_switches:\t4\nnonvoluntary_ctxt_switches:\t5\n")
    (root / str(pid) / "io").write_text("rchar: 1\nread_bytes: 2\nwrite_bytes: 3\n")
    (root / str(pid) / "cgroup").write_text("0::/job\n")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text("")
    (tmp_path / "stat").write_text("cpu 1 0 0 1\ncpu0 1 0 0 1\nprocs_running 2\n")
    (tmp_path / "loadavg").write_text("0.1 0.2 0.3 1/2 3\n")
    (tmp_path / "meminfo").write_text("MemTotal: 8 kB\n")
    (tmp_path / "vmstat").write_text("pgmajfault 3\n")
    (tmp_path / "diskstats").write_text("")
    put(tmp_path, 4242, 10)
    put(tmp_path, 4243, 10)
    return tmp_path


class Clock:
    """A clock that moves only when told."""

    now = 1_000

    def __call__(self) -> int:
        return self.now


def reader(tree: Path, clock: Clock) -> ProcReader:
    target = Target(everything=False, pid=4242, pids=[4242])
    return ProcReader(target, 1_000_000_000, tree, clock)


def test_tables_have_their_schemas_and_absent_things_are_said(tree: Path) -> None:
    clock = Clock()
    it = reader(tree, clock)
    it.start()
    clock.now += 2_000_000_000
    put(tree, 4242, 60)
    capture = it.read()
    assert {name: frame.schema for name, frame in capture.tables.items()} == PROC
    threads = capture.tables["threads"]
    assert threads["user_ns"].to_list() == [100_000_000, 600_000_000]
    assert threads["voluntary"].to_list() == [4, 4]
    assert set(capture.tables["processes"]["pid"]) == {4242, 4243}
    assert set(capture.tables["processes"]["cgroup"]) == {"/job"}
    assert ("psi_absent", "") in capture.not_seen
    assert ("cgroup_absent", "cpu") in capture.not_seen
    assert not capture.proven  # our own process is not in this tree: nothing shows that the numbers are live


def test_threads_are_read_only_when_due_and_less_often_when_there_are_many(tree: Path) -> None:
    clock = Clock()
    it = reader(tree, clock)
    it.start()
    for _ in range(2):
        few = it.thread_tick_ns
        clock.now += few - 1
        it.sample()  # not due
        clock.now += 1
        it.sample()
    for tid in range(5000, 5200):
        shutil.copytree(tree / "4242/task/4242", tree / f"4242/task/{tid}")
    clock.now += it.thread_tick_ns
    it.sample()
    assert it.thread_tick_ns > 2 * few
    assert it.read().tables["threads"].filter(tid=4242).height == 1 + 2 + 1 + 1


def test_a_target_that_vanishes_is_judged_to_its_last_sample(tree: Path) -> None:
    clock = Clock()
    it = reader(tree, clock)
    it.start()
    clock.now += 500_000_000
    put(tree, 4242, 30)
    it.sample()
    shutil.rmtree(tree / "4242")
    clock.now += 3_000_000_000
    it.sample()
    threads = it.read().tables["threads"]
    assert threads["at_ns"].to_list() == [1_000, 500_001_000]
    assert threads["user_ns"].to_list() == [100_000_000, 300_000_000]


def test_an_exiting_threads_empty_files_are_a_race_and_not_an_error(tree: Path) -> None:
    it = reader(tree, Clock())
    (tree / "4242/task/4242/schedstat").write_text("")
    (tree / "4243/stat").unlink()
    it.start()
    assert it.read().tables["threads"].is_empty()


def test_our_own_process_proves_the_real_proc() -> None:
    it = ProcReader(Target(everything=False, pid=os.getpid(), pids=[os.getpid()]))
    it.start()
    deadline = os.times().user + 0.2
    while os.times().user < deadline:
        pass
    capture = it.read()
    assert capture.proven
    mine = capture.tables["threads"].filter(tid=os.getpid())
    assert mine["run_ns"][-1] - mine["run_ns"][0] > 100_000_000
    cpus = capture.tables["host"].filter(name="cpu_count")["value"]
    assert cpus.to_list() == [os.sysconf("SC_NPROCESSORS_ONLN")] * 2
    busy = capture.tables["cpu_times"].group_by("cpu").agg(pl.col("busy_ns").last() - pl.col("busy_ns").first())
    assert busy.height == os.sysconf("SC_NPROCESSORS_ONLN")
    assert busy["busy_ns"].sum() >= 100_000_000


def test_block_totals_are_deltas_per_operation_and_survive_a_replaced_disk(tmp_path: Path) -> None:
    stats = tmp_path / "diskstats"
    block = BlockTotals(frozenset({"sda", "sdb"}), str(stats))
    line = " 8 0 {name} {reads} 0 {sectors} {ms} 0 0 0 0 0 9 9 0 0 0 0 0 0\n"

    def write(sda: tuple[int, int, int], sdb: int) -> None:
        text = line.format(name="sda", reads=sda[0], sectors=sda[1], ms=sda[2])
        text += line.format(name="sdb", reads=sdb, sectors=sdb, ms=sdb) + line.format(
            name="sda1", reads=99, sectors=99, ms=99
        )
        stats.write_text(text)
        block.sample()

    write((100, 1000, 500), 900)
    write((110, 1080, 520), 3)  # ten requests of 2 ms; sdb is another disk now
    write((112, 1096, 720), 5)  # two of 100 ms
    rows = block.tables()["totals"].rows(named=True)
    assert [(r["device"], r["operation"], r["count"]) for r in rows] == [("sda", "read", 12), ("sdb", "read", 2)]
    assert (rows[0]["bytes"], rows[0]["device_ns"], rows[0]["max_ns"]) == (96 * 512, 220_000_000, 100_000_000)
    assert block.tables()["latency"].is_empty()


def test_what_happens_after_the_window_is_not_counted() -> None:
    """All engines are stopped before the first is read, which may take seconds."""
    engine = ProcfsEngine()
    me = Target(everything=False, pid=os.getpid(), pids=[os.getpid()])
    try:
        engine.load({"proc": Options()}, me)
        engine.start()
        stopped = engine.stop()
        until = time.thread_time() + 0.5
        while time.thread_time() < until:
            pass
        rows = engine.read()["proc"].tables["threads"].filter(pl.col("tid") == threading.get_native_id())
    finally:
        engine.close()
    assert rows["at_ns"].max() <= stopped == engine.stop()
    assert (rows["run_ns"][-1] - rows["run_ns"][0]) / 1e9 < 0.4
