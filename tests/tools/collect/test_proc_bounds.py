"""What keeps processes outside of the target from the CPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whystall.tools.collect.proc_bounds import BoundsReader
from whystall.tools.collect.proc_cgroup import Hierarchies
from whystall.tools.node.mounts import Mount


def test_the_quota_that_bound_most_and_the_cpus_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit, throttled in (("pods", "max", 0), ("pods/a", "400000", 7), ("pods/a/b", "20000", 5_000)):
        place = tmp_path / name
        place.mkdir()
        (place / "cpu.max").write_text(f"{limit} 100000\n")
        (place / "cpu.stat").write_text(f"nr_periods 50\nnr_throttled 40\nthrottled_usec {throttled}\n")
    mount = Mount(1, "0:1", b"/", str(tmp_path).encode(), "cgroup2", frozenset({"rw"}))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1} if pid == 12 else {0, 1, 2, 3})
    memberships = {10: {"": b"/pods/a/b"}, 11: {"": b"/pods"}, 12: {"": b"/pods"}, 13: {"": b"/pods/a"}, 14: {"": b"/"}}
    rows = BoundsReader(Hierarchies([mount]), lambda: 9).look(memberships, but={13})
    assert rows == [
        (9, 10, "/pods/a/b", 5_000_000, 50, 40, 20_000, 100_000, ""),
        (9, 12, "", -1, -1, -1, -1, -1, "0-1"),
    ]
