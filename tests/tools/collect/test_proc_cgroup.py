"""Cgroups of both versions, read from trees laid out as the kernel does."""

from __future__ import annotations

from pathlib import Path

from whystall.tools.collect.proc_cgroup import Hierarchies, read_limits
from whystall.tools.node.mounts import Mount


def mount(point: Path, fstype: str, *options: str, root: bytes = b"/") -> Mount:
    return Mount(1, "0:1", root, str(point).encode(), fstype, frozenset(options))


def fill(directory: Path, files: dict[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)


def v1(tmp_path: Path) -> Hierarchies:
    cpu = {"cpu.stat": "nr_periods 40\nnr_throttled 7\nthrottled_time 900\n", "cpu.cfs_period_us": "100000\n"}
    fill(tmp_path / "cpu", {**cpu, "cpu.cfs_quota_us": "-1\n"})
    fill(tmp_path / "cpu/pod/box", {**cpu, "cpu.cfs_quota_us": "50000\n"})
    fill(tmp_path / "cpu/pod", {**cpu, "cpu.cfs_quota_us": "-1\n"})
    memory = {"memory.usage_in_bytes": "4096\n", "memory.failcnt": "3\n"}
    fill(tmp_path / "memory", {**memory, "memory.stat": "hierarchical_memory_limit 9223372036854771712\n"})
    fill(tmp_path / "memory/job", {**memory, "memory.stat": "cache 1\nhierarchical_memory_limit 8192\n"})
    return Hierarchies(
        [mount(tmp_path / "cpu", "cgroup", "rw", "cpu", "cpuacct"), mount(tmp_path / "memory", "cgroup", "memory")]
    )


def test_v1_follows_each_controllers_own_path_and_its_ancestors(tmp_path: Path) -> None:
    places = v1(tmp_path).places([{"cpu": b"/pod/box", "memory": b"/job"}])
    limits = {place.name: read_limits(place) for place in places}
    assert sorted(limits) == ["/", "/job", "/pod", "/pod/box"]
    box, job, root = limits["/pod/box"], limits["/job"], limits["/"]
    assert box is not None
    assert job is not None
    assert root is not None
    assert box == (40, 7, 900, 50000, 100000, -1, -1, -1)
    assert job == (-1, -1, -1, -1, -1, 4096, 8192, 3)
    assert (root.quota_us, root.memory_limit_bytes) == (-1, -1)


def test_v2_reads_throttling_in_microseconds_and_max_as_no_limit(tmp_path: Path) -> None:
    stat = "usage_usec 1\nnr_periods 5\nnr_throttled 2\nthrottled_usec 30\n"
    memory = {"memory.current": "100\n", "memory.events": "low 0\nhigh 0\nmax 9\noom 0\n"}
    fill(tmp_path, {"cgroup.controllers": "cpu memory\n"})
    fill(tmp_path / "a", {"cpu.stat": stat, "cpu.max": "max 100000\n", **memory, "memory.max": "max\n"})
    fill(tmp_path / "a/b", {"cpu.stat": stat, "cpu.max": "150000 100000\n", **memory, "memory.max": "200\n"})
    places = Hierarchies([mount(tmp_path, "cgroup2", "rw")]).places([{"": b"/a/b"}])
    assert [(p.name, p.version) for p in places] == [("/a", 2), ("/a/b", 2)]
    assert read_limits(places[0]) == (5, 2, 30000, -1, 100000, 100, -1, 9)
    assert read_limits(places[1]) == (5, 2, 30000, 150000, 100000, 100, 200, 9)


def test_a_container_sees_its_own_part_of_the_hierarchy(tmp_path: Path) -> None:
    fill(tmp_path / "job", {"cpu.stat": "nr_periods 1\n", "cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "1\n"})
    hierarchies = Hierarchies([mount(tmp_path, "cgroup", "cpu", root=b"/docker/x")])
    assert [p.name for p in hierarchies.places([{"cpu": b"/docker/x/job"}])] == ["/", "/job"]
    assert hierarchies.places([{"cpu": b"/docker/xy/job"}]) == []
    assert hierarchies.places([{"cpu": b"/../other"}]) == []


def test_a_cgroup_that_vanished_and_one_without_controllers(tmp_path: Path) -> None:
    hierarchies = v1(tmp_path)
    (gone,) = [p for p in hierarchies.places([{"cpu": b"/never"}]) if p.name == "/never"]
    assert read_limits(gone) is None
    assert Hierarchies([mount(tmp_path / "memory", "cgroup2", "rw")]).places([{"": b"/job"}]) == []


def test_hostile_names_come_out_inert(tmp_path: Path) -> None:
    places = v1(tmp_path).places([{"cpu": b"/\x1b[31m\n"}])
    assert places[-1].name == "/\\x1b[31m\\x0a"


def test_top_level_without_a_target(tmp_path: Path) -> None:
    assert sorted(p.name for p in v1(tmp_path).top_level()) == ["/job", "/pod"]


def test_the_cpuset_of_the_nearest_cgroup_with_the_controller_applies(tmp_path: Path) -> None:
    fill(tmp_path / "v2", {"cpuset.cpus.effective": "0-63\n"})
    fill(tmp_path / "v2/pod", {"cpuset.cpus.effective": "0-7\n"})
    fill(tmp_path / "v2/pod/box", {})
    unified = Hierarchies([mount(tmp_path / "v2", "cgroup2", "rw")])
    assert unified.cpuset({"": b"/pod/box"}) == "0-7"
    assert unified.cpuset({"": b"/other"}) == "0-63"
    fill(tmp_path / "v1/job", {"cpuset.effective_cpus": "3\n"})
    older = Hierarchies([mount(tmp_path / "v1", "cgroup", "rw", "cpuset")])
    assert older.cpuset({"cpuset": b"/job"}) == "3"
    assert Hierarchies([]).cpuset({"": b"/job"}) == ""
