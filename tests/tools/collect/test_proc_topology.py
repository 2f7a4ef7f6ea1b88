"""Where CPUs sit, from trees made by hand and from the real machine; and on which of them threads may run."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from whystall.tools.collect.proc_reader import ProcReader
from whystall.tools.collect.proc_topology import cpu_rows
from whystall.tools.recording.target import Target


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def two_nodes(root: Path) -> Path:
    """Two packages of two cores with two threads each; the last CPU is offline."""
    put(root, "cpu/present", "0-7\n")
    put(root, "cpu/online", "0-6\n")
    put(root, "node/node0/cpulist", "0-1,4-5\n")
    put(root, "node/node1/cpulist", "2-3,6\n")
    put(root, "node/has_cpu", "0-1\n")
    for cpu in range(7):
        put(root, f"cpu/cpu{cpu}/topology/core_id", f"{cpu % 2}\n")
        put(root, f"cpu/cpu{cpu}/topology/physical_package_id", f"{cpu // 2 % 2}\n")
    return root


def test_nodes_cores_and_packages_are_read(tmp_path: Path) -> None:
    rows = cpu_rows(two_nodes(tmp_path))
    assert [row[:2] for row in rows] == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 0), (5, 0), (6, 1), (7, -1)]
    assert rows[3] == (3, 1, 1, 1, True)
    assert rows[7] == (7, -1, -1, -1, False)


@pytest.mark.parametrize("damage", ["cpu/cpu3/topology/core_id", "node/node1/cpulist", "cpu/present"])
def test_damaged_files_are_unknown_and_no_error(tmp_path: Path, damage: str) -> None:
    root = two_nodes(tmp_path)
    put(root, damage, "3-1,\x00zz\n")
    rows = {row[0]: row for row in cpu_rows(root)}
    assert set(range(7)) <= set(rows)
    assert -1 in rows[3] or damage == "cpu/present"
    assert rows[0] == (0, 0, 0, 0, True)


def test_a_machine_without_sysfs_has_no_rows(tmp_path: Path) -> None:
    assert cpu_rows(tmp_path) == []


def test_this_machine_is_told_with_its_threads() -> None:
    """A thread that is moved to and fro is told once per place, not once per look."""
    allowed = sorted(os.sched_getaffinity(0))
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    it = ProcReader(Target(everything=False, pid=os.getpid(), pids=[os.getpid()]))
    it.start()
    masks = [{allowed[0]}, {allowed[-1]}, set(allowed)]
    try:
        for mask in masks:
            os.sched_setaffinity(thread.native_id or 0, mask)
            for _ in range(3):
                time.sleep(it.thread_tick_ns / 1e9)
                it.sample()
    finally:
        stop.set()
        thread.join()
    tables = it.read().tables
    cpus = tables["cpus"]
    assert cpus.filter("online").height == os.sysconf("SC_NPROCESSORS_ONLN")
    assert cpus["cpu"].n_unique() == cpus.height
    told = tables["affinity"].filter(tid=thread.native_id)["cpus"].to_list()
    assert len(told) == len([m for m, n in zip(masks, [set(allowed), *masks], strict=False) if m != n]) + 1
    assert tables["affinity"].filter(tid=os.getpid()).height == 1
