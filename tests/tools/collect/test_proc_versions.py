"""Versions of loaded libraries: names and constants of hostile processes."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from whystall.tools.collect.proc_versions import Row, Versions, component_of


class Process:
    """A process 7 in a /proc of its own, whose root directory is `root`."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.root = folder / "top"
        self.maps: list[str] = []
        self.mounts = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        (self.proc / "7").mkdir(parents=True)
        self.root.mkdir()
        (self.proc / "7" / "root").symlink_to(self.root)

    def file(self, path: str, content: bytes = b"", dev: str = "08:01") -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        self.maps.append(f"7f00-7f10 r-xp 00000000 {dev} {len(self.maps) + 1}    {path}\n")

    def rows(self) -> list[tuple[str, str, str]]:
        (self.proc / "7" / "maps").write_text("".join(self.maps), "utf-8")
        (self.proc / "7" / "mountinfo").write_text(self.mounts, "utf-8")
        found = Versions([7], str(self.root), str(self.proc)).rows()
        return sorted((row.component, row.version, row.where) for row in found if row.pid == 7)


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path)


SITE = "/opt/venv/lib/python3.11/site-packages"


def test_names_of_libraries_packages_and_constants_of_binaries(process: Process) -> None:
    process.file("/usr/lib/libnccl.so.2.21.5")
    process.file("/usr/bin/python3.11", b"x\0/opt/python-3.11.7\0y")
    process.file("/lib/libc.so.6", b"\0GNU C Library (Debian GLIBC 2.36-9+deb12u10) stable release version 2.36.\n\0")
    process.file(f"{SITE}/torch/lib/libtorch.so")
    for name in ("torch-2.7.0+cu126", "nvidia_nccl_cu12-2.26.2", "yaml-6.0", "vllm-not a version"):
        (process.root / SITE.lstrip("/") / f"{name}.dist-info").mkdir()
    process.file("/opt/rocm/.info/version", b"6.4.1-83\n")
    assert process.rows() == [
        ("glibc", "2.36", "binary"),
        ("nccl", "2.21.5", "library"),
        ("nccl", "2.26.2", "package"),
        ("python", "3.11.7", "binary"),
        ("rocm", "6.4.1", "file"),
        ("torch", "2.7.0+cu126", "package"),
    ]


def test_network_file_systems_are_not_touched(process: Process) -> None:
    process.mounts += "2 1 0:50 / /nfs rw - nfs4 server:/ rw\n"
    process.file("/nfs/site-packages/torch/x.so", dev="00:32")
    (process.root / "nfs/site-packages/torch-2.7.0.dist-info").mkdir()
    process.file("/nfs/libnccl.so.2.21.5", dev="00:32")
    assert process.rows() == [("nccl", "2.21.5", "library")]


def test_links_pipes_and_odd_names_are_left_out(process: Process, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "torch-2.7.0.dist-info").mkdir(parents=True)
    (process.root / "evil").mkdir()
    (process.root / "evil/site-packages").symlink_to(elsewhere)
    process.maps.append("7f00-7f10 r-xp 00000000 08:01 1    /evil/site-packages/a.so\n")
    os.mkfifo(process.root / "python3.11")
    process.maps.append("7f00-7f10 r-xp 00000000 08:01 2    /python3.11\n")
    process.maps.append("7f00-7f10 r-xp 00000000 08:01 3    /lib/libnccl.so.99999.1.2.3.4.5\n")
    process.maps += ["\n", "garbage\n", "7f00-7f10 r-xp 0 08:01 4 /x\x1b[31m/libnccl.so.1.2.3\n"]
    assert process.rows() in ([], [("nccl", "1.2.3", "library")])


def test_two_constants_that_differ_are_no_version(process: Process) -> None:
    process.file("/usr/bin/python3.11", b"\0003.11.7\0\0003.11.9\0")
    assert process.rows() == []


def test_a_process_that_has_gone_is_counted(tmp_path: Path) -> None:
    capture = Versions([4_194_303]).read()
    assert capture.not_seen == [("versions_unread", "1 of 1")]
    assert capture.proven


def test_this_process_is_read() -> None:
    found = Versions([os.getpid()]).rows()
    mine = [row for row in found if row.pid == os.getpid()]
    python = ".".join(map(str, sys.version_info[:3]))
    assert Row("python", python, "binary", os.getpid(), False) in mine
    assert any(row.component == "kernel" for row in found)
    assert version("packaging")


@pytest.mark.parametrize(
    ("name", "component"),
    [("nvidia-nccl-cu12", "nccl"), ("torch", "torch"), ("torchvision", ""), ("nvidia_nccl_evil", ""), ("", "")],
)
def test_packages_are_known_by_their_whole_name(name: str, component: str) -> None:
    assert component_of(name) == component


def test_the_firmware_of_connectx_adapters_is_read_and_of_no_others(tmp_path: Path) -> None:
    for name, vendor, firmware in (
        ("mlx5_0", "0x15b3", "28.39.3560\n"),
        ("mlx5_1", "0x15b3", "28.39.3560\n"),
        ("mlx5_2", "0x15b3", "\x1b[31mno version\n"),
        ("irdma0", "0x8086", "1.71.0\n"),
    ):
        place = tmp_path / "sys/class/infiniband" / name
        (place / "device").mkdir(parents=True)
        (place / "device/vendor").write_text(f"{vendor}\n")
        (place / "fw_ver").write_text(firmware)
    (tmp_path / "proc").mkdir()
    found = Versions(root=str(tmp_path), proc=str(tmp_path / "proc")).rows()
    firmware = [(row.version, row.where, row.pid) for row in found if row.component == "connectx_firmware"]
    assert firmware == [("28.39.3560", "driver", -1)]
