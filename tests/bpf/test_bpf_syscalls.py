"""The table of system calls against this machine's own headers and the kernel's own numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from whystall.bpf import layout, syscalls

X86_HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_numbers_are_those_of_the_abi(machine: str) -> None:
    known = {name: number for number, name in syscalls.names(machine).items()}
    stated = {
        "x86_64": {"read": 0, "openat": 257, "fsync": 74, "futex": 202, "getrandom": 318, "cachestat": 451},
        "aarch64": {"read": 63, "openat": 56, "fsync": 82, "futex": 98, "getrandom": 278, "cachestat": 451},
    }[machine]
    assert {name: known[name] for name in stated} == stated


@pytest.mark.skipif(not X86_HEADER.exists(), reason="no x86_64 kernel headers here")
def test_the_installed_header_agrees() -> None:
    known = syscalls.names("x86_64")
    found = re.findall(r"^#define __NR_(\w+)\s+(\d+)$", X86_HEADER.read_text(), re.M)
    assert len(found) > 300
    assert {number: known.get(int(number)) for _, number in found} == {number: name for name, number in found}


def test_every_described_call_exists_somewhere() -> None:
    known = set(syscalls.names("x86_64").values()) | set(syscalls.names("aarch64").values())
    described = {name for line in syscalls._ROWS.strip().splitlines() for name in line.split(" | ")[0].split()}
    assert described <= known


def test_the_image_carries_the_rows() -> None:
    image = (layout.SyscallRow * layout.SYSCALL_ROWS).from_buffer_copy(syscalls.rows_image("x86_64"))
    fsync, pwritev2, renameat2 = image[74], image[328], image[316]
    assert (fsync.flags, fsync.fd, fsync.size) == (layout.ROW_FILE_OP, 0, layout.NO_ARG)
    assert pwritev2.flags == layout.ROW_FILE_OP | layout.ROW_BYTES | layout.ROW_VECTOR | layout.ROW_WRITES
    assert (pwritev2.fd, pwritev2.size, pwritev2.offset) == (0, 2, 3)
    assert (renameat2.dir, renameat2.path, renameat2.dir2, renameat2.path2) == (0, 1, 2, 3)
    assert image[layout.SYSCALL_ROWS - 1].flags == 0


def test_names_of_the_unknown() -> None:
    assert syscalls.name(-1) == ""
    assert syscalls.name(9999) == "syscall_9999"
    assert syscalls.row("unlink")["flags"] & layout.ROW_METADATA
    assert not syscalls.row("write")["flags"] & layout.ROW_METADATA
    assert not syscalls.is_file_operation("getrandom")
    with pytest.raises(KeyError):
        syscalls.names("sparc")


def test_time_outs_are_described() -> None:
    rows = {call: syscalls.row(call) for call in ("poll", "futex", "clock_nanosleep", "epoll_wait", "read")}
    described = {call: (row.get("time_kind", 0), row.get("time", 0)) for call, row in rows.items()}
    assert described == {
        "poll": (layout.TIME_MS, 2),
        "futex": (layout.TIME_FUTEX, 3),
        "clock_nanosleep": (layout.TIME_SLEEP, 2),
        "epoll_wait": (layout.TIME_MS, 3),
        "read": (layout.TIME_NONE, 0),
    }
    assert rows["poll"]["fd"] == layout.NO_ARG
    assert rows["futex"]["flags"] == layout.ROW_FUTEX
