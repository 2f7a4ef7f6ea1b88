"""Owners of locks in memory, as glibc lays them out; what is no lock has none."""

from __future__ import annotations

import struct

import pytest

from whystall.tools.collect.objects_locks import NONE, Lock, lock_at

WORD = 0x1000
TASKS = {7: 1007, 8: 1008, 70_000: 70_001}
PRIVATE_WAIT, SHARED_WAIT, LOCK_PI, CONDITION_WAIT = 0x80, 0x109, 0x86, 0x8B


class Memory:
    def __init__(self, content: dict[int, bytes]) -> None:
        self.content = content

    def read(self, address: int, size: int) -> bytes:
        for start, raw in self.content.items():
            if start <= address and address + size <= start + len(raw):
                return raw[address - start : address - start + size]
        raise OSError("unmapped")


def at(*words: int) -> Memory:
    return Memory({WORD: struct.pack(f"<{len(words)}I", *words).ljust(24, b"\0")})


def stream(tid: int) -> Memory:
    """A contended lock of a stdio stream, which points to its owner's struct pthread."""
    thread = 0x7F00_0000_0000
    owner = bytes(208) + struct.pack("<I", tid) + bytes(508) + struct.pack("<I", tid)
    return Memory({WORD: struct.pack("<IIQ", 2, 1, thread).ljust(24, b"\0"), thread: owner})


def read_by(readers: int, *, futex: int = 1, word: int = 8, announced: int = 2) -> Memory:
    """A read-write lock that so many threads read, and for which a writer waits on the word at the offset `word`."""
    raw = struct.pack("<7I", readers << 3 | announced, 0, 2, futex, 0, 0, 0)
    return Memory({WORD - word: raw.ljust(56, b"\0")})


@pytest.mark.parametrize(
    ("memory", "operation", "expected", "found"),
    [
        (at(2, 1, 7, 1, 0), PRIVATE_WAIT, 2, Lock("mutex", 1007)),
        (at(2, 0, 555, 1, 0), PRIVATE_WAIT, 2, Lock("mutex", -1, 555)),  # its owner ended, or is in the parent
        (at(2, 0, 555, 1, 0x80), 0, 2, Lock("mutex", -1, 555, shared=True)),
        (at(2, 0, 555, 0, 0), PRIVATE_WAIT, 2, NONE),  # a lock that keeps no owner: that of an arena of malloc
        (at(0x80000007), PRIVATE_WAIT, 0x80000007, Lock("mutex", 1007)),
        (at(0x80000007), LOCK_PI, 0, Lock("mutex", 1007)),
        (at(70_000), SHARED_WAIT, 70_000, Lock("join", 70_001)),
        (at(3, 3, 0, 0, 7), PRIVATE_WAIT, 3, Lock("rwlock", 1007)),
        (at(3, 0, 0, 7), PRIVATE_WAIT, 3, Lock("rwlock", 1007)),
        (read_by(2), PRIVATE_WAIT, 2, Lock("rwlock", readers=2)),
        (read_by(2, futex=3, word=12), PRIVATE_WAIT, 3, Lock("rwlock", readers=2)),  # behind another writer
        (read_by(2), SHARED_WAIT, 2, NONE),  # processes share it: their readers are not known
        (read_by(9), PRIVATE_WAIT, 2, NONE),  # more than there are threads
        (read_by(0), PRIVATE_WAIT, 2, NONE),
        (read_by(2, announced=0), PRIVATE_WAIT, 2, NONE),
        (stream(7), PRIVATE_WAIT, 2, Lock("stdio", 1007)),
        (stream(9), PRIVATE_WAIT, 2, NONE),
        (at(0, 1), 0x189, 0, NONE),  # a semaphore
        (at(2, 1, 7), PRIVATE_WAIT, 1, NONE),  # released meanwhile
        (at(2, 1, 7), CONDITION_WAIT, 2, NONE),
        (at(2, 1, 7), 1, 2, NONE),  # a wake
        (at(0x80000000), PRIVATE_WAIT, 0x80000000, NONE),
        (Memory({}), PRIVATE_WAIT, 2, NONE),
        (Memory({WORD: b"\2\0\0\0"}), PRIVATE_WAIT, 2, NONE),
    ],
)
def test_owner(memory: Memory, operation: int, expected: int, found: Lock) -> None:
    assert lock_at(memory, WORD, operation, expected, TASKS) == found
