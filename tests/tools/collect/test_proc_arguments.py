"""What a call waits for, by its arguments."""

from __future__ import annotations

import struct
import time

import pytest

from whystall.bpf import layout as lay
from whystall.tools.collect.proc_arguments import asked_ns, descriptor
from whystall.tools.collect.tables import FD_UNREAD

S, MS = 1_000_000_000, 1_000_000
NOW = {time.CLOCK_REALTIME: 1000 * S, time.CLOCK_MONOTONIC: 50 * S}


class Parts:
    """Memory that has something at a few addresses."""

    def __init__(self, parts: dict[int, bytes]) -> None:
        self._parts = parts

    def read(self, address: int, size: int) -> bytes:
        found = self._parts.get(address, b"")[:size]
        if len(found) != size:
            raise OSError("unmapped")
        return found


MEMORY = Parts(
    {
        0x100: struct.pack("<qq", 2, 500 * MS),
        0x200: struct.pack("<qq", 52, 0),  # a deadline
        0x300: struct.pack("<qq", 1, 250_000),
        0x400: struct.pack("<qq", 1, -1),
        0x500: struct.pack("<ihhihh", -1, 1, 0, 7, 1, 0),
        0x600: (1 << 70).to_bytes(16, "little"),
    }
)


@pytest.mark.parametrize(
    ("name", "args", "asked"),
    [
        ("nanosleep", (0x100, 0, 0, 0, 0, 0), 2500 * MS),
        ("nanosleep", (0x999, 0, 0, 0, 0, 0), -1),
        ("nanosleep", (0x400, 0, 0, 0, 0, 0), -1),
        ("clock_nanosleep", (1, 0, 0x100, 0, 0, 0), 2500 * MS),
        ("clock_nanosleep", (1, 1, 0x200, 0, 0, 0), 2 * S),
        ("clock_nanosleep", (2, 1, 0x200, 0, 0, 0), -1),  # the clock of a process
        ("poll", (0x500, 2, 5000, 0, 0, 0), 5 * S),
        ("poll", (0x500, 2, 0xFFFFFFFF, 0, 0, 0), -1),
        ("epoll_wait", (3, 0, 64, 10, 0, 0), 10 * MS),
        ("ppoll", (0x500, 2, 0, 0, 0, 0), -1),
        ("select", (71, 0x600, 0, 0, 0x300, 0), 1250 * MS),
        ("futex", (0x10, 0x80, 0, 0x100, 0, 0), 2500 * MS),
        ("futex", (0x10, 0x89, 0, 0x200, 0, 0), 2 * S),
        ("futex", (0x10, 0x189, 0, 0x200, 0, 0), 0),  # past
        ("futex", (0x10, 0x80, 0, 0, 0, 0), -1),
        ("read", (3, 0x100, 1, 0, 0, 0), -1),
    ],
)
def test_the_time_that_a_call_asked_for(name: str, args: tuple[int, ...], asked: int) -> None:
    assert asked_ns(name, args, MEMORY, NOW.__getitem__) == asked


@pytest.mark.parametrize(
    ("name", "args", "fd"),
    [
        ("read", (3, 0, 0, 0, 0, 0), 3),
        ("recvfrom", (0xFFFFFFFF00000004, 0, 0, 0, 0, 0), 4),
        ("poll", (0x500, 2, 0, 0, 0, 0), 7),
        ("poll", (0x500, 1, 0, 0, 0, 0), -1),
        ("poll", (0x999, 1, 0, 0, 0, 0), FD_UNREAD),
        ("poll", (0, 0, 5, 0, 0, 0), -1),
        ("pselect6", (71, 0x600, 0, 0, 0, 0), 70),
        ("pselect6", (70, 0x600, 0, 0, 0, 0), -1),
        ("pselect6", (71, 0x999, 0, 0, 0, 0), FD_UNREAD),
        ("pselect6", (0, 0, 0, 0, 0x100, 0), -1),
        ("futex", (3, 0, 0, 0, 0, 0), -1),
    ],
)
def test_the_descriptor_that_a_call_waits_for(name: str, args: tuple[int, ...], fd: int) -> None:
    assert descriptor(name, args, MEMORY) == fd


def test_without_memory_only_registers_are_known() -> None:
    assert asked_ns("poll", (0x500, 2, 5, 0, 0, 0), None) == 5 * MS
    assert asked_ns("nanosleep", (0x100, 0, 0, 0, 0, 0), None) == -1
    assert descriptor("poll", (0x500, 2, 5, 0, 0, 0), None) == FD_UNREAD
    assert descriptor("poll", (0, 0, 5, 0, 0, 0), None) == -1
    assert descriptor("select", (5, 0x600, 0, 0, 0, 0), None) == FD_UNREAD


def test_the_kernel_side_uses_the_same_code_for_descriptors_that_were_not_read() -> None:
    assert lay.FD_UNREAD == FD_UNREAD
