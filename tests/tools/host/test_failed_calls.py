"""System calls that fail, and file systems that are full."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recordings import COMM, PID, Scene

from whystall.tools.collect.proc_filesystems import filesystems
from whystall.tools.contract.findings import Finding, Polarity, Severity
from whystall.tools.host import syscall_time
from whystall.tools.host.host_snapshot import tool as host_snapshot


def failing(error: str, count: int, syscall: str = "write") -> Scene:
    scene = Scene()
    row = {"pid": PID, "tid": PID, "comm": COMM, "syscall": syscall, "error": error, "count": count}
    where = {"file": scene.file("/data/chk_7.bin"), "object": "", "first_ns": 10**9, "last_ns": 9 * 10**9}
    scene.tables["syscalls.failures"] = [row | where]
    return scene


def failed(scene: Scene, **how: object) -> list[Finding]:
    found = syscall_time.judge(scene.build(**how), syscall_time.Params(pid=PID)).findings  # type: ignore[arg-type]
    return [f for f in found if f.kind == "syscall.failed"]


@pytest.mark.parametrize(
    ("error", "count", "severity", "syscall"),
    [
        ("ENOSPC", 1, Severity.MAJOR, "write"),
        ("ECONNREFUSED", 3, Severity.MINOR, "connect"),
        ("ECONNRESET", 2, None, "write"),
        ("ENOENT", 10_000, None, "openat"),
        ("EAGAIN", 3, Severity.MINOR, "flock"),
        ("EAGAIN", 10_000, None, "read"),
        ("EAGAIN", 3, Severity.MAJOR, "clone3"),
        ("EADDRNOTAVAIL", 3, Severity.MINOR, "connect"),
        ("ENOTCONN", 3, Severity.MINOR, "newfstatat"),
    ],
)
def test_errors_that_mean_trouble_are_findings(error: str, count: int, severity: Severity | None, syscall: str) -> None:
    (finding,) = failed(failing(error, count, syscall))
    assert (finding.severity if finding.polarity is Polarity.ABNORMAL else None) == severity
    if severity is not None:
        assert finding.attributes == {"syscall": syscall, "error": error, "path": "/data/chk_7.bin"}
        assert (finding.subject.path, finding.metrics["count"]) == ("/data/chk_7.bin", count)


def test_a_socket_that_is_not_connected_is_no_fault() -> None:
    scene = failing("ENOTCONN", 100, "getpeername")
    scene.tables["syscalls.failures"][0] |= {"file": -1, "object": "socket:[7]"}
    (finding,) = failed(scene)
    assert finding.polarity is Polarity.NORMAL


def test_without_the_table_or_with_losses_nothing_is_ruled_out() -> None:
    assert failed(Scene()) == []
    assert failed(failing("ENOENT", 1), lost={"syscalls": 1}) == []


@pytest.mark.parametrize(
    ("free", "inodes", "open_files", "severity"),
    [
        (0, 900_000, 1, Severity.MAJOR),
        (0, 900_000, 0, Severity.MINOR),
        (50 << 30, 0, 1, Severity.MAJOR),
        (50 << 30, 900_000, 1, None),
    ],
)
def test_a_file_system_is_full_without_bytes_or_inodes(
    free: int, inodes: int, open_files: int, severity: Severity | None
) -> None:
    scene = Scene().thread()
    sizes = {"size_bytes": 100 << 30, "free_bytes": free, "inodes": 1_000_000, "free_inodes": inodes}
    row = {"path": "/data", "dev": "7:0", "fstype": "ext4", **sizes, "open_files": open_files}
    scene.tables["proc.filesystems"] = [{"at_ns": 0, **row}, {"at_ns": scene.window_ns, **row, "open_files": 0}]
    result = host_snapshot.judge(scene.build(), host_snapshot.Params(pid=PID))
    (finding,) = [f for f in result.findings if f.kind == "filesystem.full"]
    assert (finding.severity if finding.polarity is Polarity.ABNORMAL else None) == severity
    assert result.data.filesystems[0].open_files == open_files


def test_the_file_system_of_an_open_file_is_read(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        dev = os.fstat(file.fileno()).st_dev
        found = {row[1]: row for row in filesystems("/proc", [os.getpid()])}
    row = found[f"{os.major(dev)}:{os.minor(dev)}"]
    assert row[3] >= row[4] > 0
    assert row[-1] >= 1
