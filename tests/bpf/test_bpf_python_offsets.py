"""Published offsets of CPython 3.13 and 3.14, and what is refused."""

from __future__ import annotations

import struct

import pytest

from whystall.bpf import layout
from whystall.bpf.python_offsets import (
    NEWEST,
    OLDEST,
    PUBLISHED_BYTES,
    UnknownLayout,
    offsets_of,
    published,
)

# The words after the cookie in 3.13.0 and Debian's 3.14.10, both for x86_64, group by group.
_OBJECTS = (16, 8, 416, 24, 88, 168)
_NUMBERS_AND_TEXTS = (24, 16, 32, 16, 24, 40, 16, 32, 64, 32, 16, 40)
PUBLISHED = {
    13: [
        *(0x030D00F0, 0),
        *(283320, 608, 632),
        *(194968, 7272, 7264, 7344, 7400, 7656, 7640, 7648, 16, 7752, 0, 7768, 7760),
        *(304, 0, 8, 16, 72, 152, 160, 232, 32),
        *(80, 8, 0, 56, 72, 70),
        *(208, 112, 120, 128, 136, 68, 52, 96, 104, 200),
        *(*_OBJECTS, 32, 24, 16, 40, 24, 16, 48, 32, 40, *_NUMBERS_AND_TEXTS),
    ],
    14: [
        *(0x030E0AF0, 0),
        *(316616, 784, 808),
        *(225864, 7280, 7272, 7344, 7360, 7408, 7688, 7672, 7680, 16, 7784, 0, 7800, 7792, 7992, 0),
        *(832, 0, 8, 16, 72, 152, 160, 232, 32),
        *(88, 8, 0, 56, 80, 74, 64, 0),
        *(216, 112, 120, 128, 136, 68, 52, 96, 104, 208, 0),
        *(*_OBJECTS, 40, 32, 16, 40, 24, 16, 200, 24, 40, 32, 48, 32, 40, *_NUMBERS_AND_TEXTS),
    ],
}


def start(words: list[int]) -> bytes:
    return (b"xdebugpy" + struct.pack(f"<{len(words)}Q", *words)).ljust(PUBLISHED_BYTES, b"\0")


@pytest.mark.parametrize(("minor", "first", "owner"), [(13, 200, 70), (14, 208, 74)])
def test_published_offsets(minor: int, first: int, owner: int) -> None:
    found = published(start(PUBLISHED[minor]))
    assert found is not None
    assert found[0] == minor
    offsets = found[1]
    assert (offsets.code_first, offsets.frame_owner, offsets.thread_id, offsets.thread_frame) == (first, owner, 160, 72)
    assert (offsets.code_file, offsets.code_name, offsets.code_lines, offsets.code_line) == (112, 128, 136, 68)
    assert offsets.code_version == 92
    assert (offsets.interpreter_gil, offsets.gil_holder, offsets.gil_locked) == (16, 8, 16)
    assert (offsets.text_state, offsets.text_length, offsets.text_ascii, offsets.text_compact) == (32, 16, 40, 56)
    assert (offsets.bytes_length, offsets.bytes_data) == (16, 32)
    assert offsets.frame_bytes == owner + 1


def test_what_publishes_nothing_is_told_apart() -> None:
    assert published(bytes(PUBLISHED_BYTES)) is None
    assert published(b"") is None


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (0, 0x030F00F0, "CPython 3.15"),
        (0, 0x040D00F0, "CPython 4.13"),
        (0, 1 << 60, "CPython"),
        (1, 1, "without a global lock"),
        (4, 1 << 40, "invalid offsets"),
        (18 + 4, 400, "invalid offsets"),  # a thread's frame behind its thread
        (27 + 5, 1 << 33, "invalid offsets"),
        (33 + 9, 70000, "invalid offsets"),
    ],
)
def test_what_cannot_be_walked_is_refused(at: int, value: int, why: str) -> None:
    words = list(PUBLISHED[13])
    words[at] = value
    with pytest.raises(UnknownLayout, match=why):
        published(start(words))


def test_a_cut_table_is_refused() -> None:
    with pytest.raises(UnknownLayout):
        published(start(PUBLISHED[13])[:100])


def test_the_table_of_older_versions() -> None:
    for minor in (10, 11, 12):
        offsets = offsets_of(minor)
        assert offsets.frame_bytes <= layout.PYTHON_BYTES
        assert offsets.code_lines + 8 <= layout.PYTHON_BYTES
    for minor in (OLDEST - 1, 13, NEWEST + 1):
        with pytest.raises(UnknownLayout):
            offsets_of(minor)
