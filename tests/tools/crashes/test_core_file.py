"""Headers of core files, whole and half-written."""

from __future__ import annotations

import io
import struct

import pytest

from whystall.tools.crashes.core_file import core_file, is_core


def made(signal: int = 11, pid: int = 4711, comm: bytes = b"trainer") -> bytes:
    """Return a core file with two notes and a segment of 64 bytes."""
    status = bytearray(336)
    struct.pack_into("<i", status, 0, signal)
    struct.pack_into("<h", status, 12, signal)
    struct.pack_into("<i", status, 32, pid)
    info = bytearray(136)
    struct.pack_into("<i", info, 24, pid)
    info[40 : 40 + len(comm)] = comm
    notes = b"".join(
        struct.pack("<III", 5, len(body), kind) + b"CORE\0\0\0\0" + bytes(body)
        for kind, body in ((1, status), (3, info))
    )
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 4, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0
    )
    at = 64 + 2 * 56
    headers = struct.pack("<IIQQQQQQ", 4, 0, at, 0, 0, len(notes), 0, 4)
    headers += struct.pack("<IIQQQQQQ", 1, 0, at + len(notes), 0, 0, 64, 64, 4)
    return head + headers + notes + bytes(64)


def test_signal_and_process_are_read() -> None:
    data = made()
    assert is_core(data[:64])
    core = core_file(io.BytesIO(data), len(data))
    assert (core.signal, core.pid, core.comm, core.missing_bytes, core.complete) == (
        "SIGSEGV",
        4711,
        "trainer",
        0,
        True,
    )


def test_a_half_written_core_file_states_what_is_missing() -> None:
    data = made()[:-40]
    core = core_file(io.BytesIO(data), len(data))
    assert (core.signal, core.missing_bytes) == ("SIGSEGV", 40)


def test_every_truncation_is_read_or_refused() -> None:
    data = made()
    for size in range(18, len(data), 3):
        core_file(io.BytesIO(data[:size]), size)
    for size in range(0, 18, 7):
        with pytest.raises(ValueError, match="no core file"):
            core_file(io.BytesIO(data[:size]), size)


def test_a_table_beyond_the_end_of_the_file_is_not_read() -> None:
    data = bytearray(made())
    struct.pack_into("<Q", data, 32, (1 << 64) - 1)
    assert not core_file(io.BytesIO(bytes(data)), len(data)).complete


def test_sizes_that_lie_are_bounded() -> None:
    data = bytearray(made())
    struct.pack_into("<Q", data, 64 + 32, 1 << 62)  # length of the notes
    struct.pack_into("<I", data, 64 + 112 + 4, 1 << 31)  # length of the first note
    core = core_file(io.BytesIO(bytes(data)), len(data))
    assert core.missing_bytes > 1 << 60
