"""Limits of block I/O, read from trees laid out as the kernel does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from whystall.tools.collect.proc_io_limits import IoLimitReader, io_groups, read_io_limits, read_io_use
from whystall.tools.node.mounts import Mount


def mount(point: Path, fstype: str, *options: str) -> Mount:
    return Mount(1, "0:1", b"/", str(point).encode(), fstype, frozenset(options))


def fill(directory: Path, files: Mapping[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)


V1 = {f"blkio.throttle.{name}_device": "" for name in ("read_bps", "write_bps", "read_iops", "write_iops")}
BYTES = "7:0 Read 4096\n7:0 Write 512\n7:0 Sync 1\n7:0 Total 4608\nTotal 4608\n"
SERVED = "7:0 Read 3\n7:0 Write 1\n7:0 Total 4\nTotal 4\n"


def test_of_version_1_its_own_cgroup_alone_limits_a_process(tmp_path: Path) -> None:
    used = {"blkio.throttle.io_service_bytes": BYTES, "blkio.throttle.io_serviced": SERVED}
    fill(tmp_path / "job", {**V1, **used, "blkio.throttle.write_bps_device": "7:0 1\n"})
    limits = {"blkio.throttle.read_bps_device": "7:0 20971520\n", "blkio.throttle.write_iops_device": "8:16 100\n"}
    fill(tmp_path / "job/box", {**V1, **used, **limits})
    (group,), whole = io_groups([mount(tmp_path, "cgroup", "rw", "blkio")], {"blkio": b"/job/box", "": b"/"})
    assert (group.name, whole) == ("/job/box", True)
    assert read_io_limits(group) == {"7:0": (20971520, -1, -1, -1), "8:16": (-1, -1, -1, 100)}
    assert read_io_use(group) == {"7:0": (4096, 512, 3, 1)}


def v2(tmp_path: Path, top: Mapping[str, str]) -> IoLimitReader:
    fill(tmp_path, dict(top))
    fill(tmp_path / "a", {"cgroup.type": "domain", "io.max": "7:0 rbps=max wbps=1048576 riops=max wiops=max\n"})
    stat = "7:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n253:0 \n"
    fill(tmp_path / "a", {"io.stat": stat})
    fill(tmp_path / "a/b", {"cgroup.type": "domain"})
    times = iter(range(10, 99))
    return IoLimitReader([mount(tmp_path, "cgroup2", "rw")], lambda pid: {"": b"/a/b"}, lambda: next(times))


def test_of_version_2_all_above_limit_a_process(tmp_path: Path) -> None:
    reader = v2(tmp_path, {"cgroup.controllers": "cpu io memory\n"})
    reader.find([41])
    reader.sample()
    reader.find([41])
    assert reader.any
    assert reader.limits == [(10, 41, "/a", 2, "7:0", -1, 1048576, -1, -1), (10, 41, "/a/b", 2, "", -1, -1, -1, -1)]
    assert reader.use == [(11, "/a", "7:0", 1, 2, 3, 4)]
    (tmp_path / "a/io.max").write_text("7:0 rbps=max wbps=2097152 riops=max wiops=max\n")
    reader.find([41])
    assert [row[6] for row in reader.limits] == [1048576, -1, 2097152, -1]


def test_a_container_does_not_see_the_limits_above_it(tmp_path: Path) -> None:
    reader = v2(tmp_path, {"cgroup.controllers": "io\n", "cgroup.type": "domain\n"})
    reader.find([41])
    assert [row[4] for row in reader.limits] == ["7:0"]


def test_what_cannot_be_read_is_unknown_and_hostile_lines_are_left_out(tmp_path: Path) -> None:
    fill(tmp_path / "job", V1)
    (group,), _ = io_groups([mount(tmp_path, "cgroup", "rw", "blkio")], {"blkio": b"/job"})
    assert read_io_limits(group) == {}
    assert read_io_use(group) is None
    (tmp_path / "job/blkio.throttle.read_bps_device").write_text("7:0 5\n\x1b[2J 7\n7:1 " + "9" * 40 + "\n7:x 1\n")
    assert read_io_limits(group) == {"7:0": (5, -1, -1, -1)}
    (tmp_path / "job/blkio.throttle.read_bps_device").unlink()
    assert read_io_limits(group) is None
    assert io_groups([mount(tmp_path, "cgroup", "rw", "blkio")], {"blkio": b"/../x"}) == ([], False)
