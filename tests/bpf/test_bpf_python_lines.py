"""Line tables against what the running interpreter itself says of its code."""

from __future__ import annotations

import json.decoder
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from whystall.bpf.python_lines import line_of

PAIRS = sys.version_info < (3, 11)


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def compiled(module: Any) -> types.CodeType:
    with open(module.__file__, encoding="utf-8") as source:
        return compile(source.read(), module.__file__, "exec")


@pytest.mark.parametrize("module", [json.decoder, threading, types, sys.modules[__name__]])
def test_every_instruction_has_the_line_that_the_interpreter_says(module: Any) -> None:
    seen = 0
    for code in codes(compiled(module)):
        for start, end, line in code.co_lines():
            for at in range(start // 2, end // 2):
                assert line_of(code.co_linetable, code.co_firstlineno, at, pairs=PAIRS) == (line or 0), code.co_name
                seen += 1
    assert seen > 30


def test_code_that_has_not_begun_is_at_its_first_line() -> None:
    code = codes.__code__
    assert line_of(code.co_linetable, code.co_firstlineno, -1, pairs=PAIRS) == code.co_firstlineno


# from CPython's Objects/lnotab_notes.txt and Objects/locations.md
def test_a_table_of_pairs() -> None:
    table = bytes([6, 0, 4, 2, 8, 128, 2, 255, 4, 3])  # lines 10, 12, none, 11, 14
    lines = [line_of(table, 10, at, pairs=True) for at in range(13)]
    assert lines == [10, 10, 10, 12, 12, 0, 0, 0, 0, 11, 14, 14, 0]


def test_a_table_of_locations() -> None:
    def head(code: int, length: int) -> int:
        return 0x80 | code << 3 | length - 1

    table = bytes(
        [head(0, 2), 0x25, head(11, 1), 3, 9, head(15, 2), head(13, 8), 0b11, head(14, 1), 0b1000010, 0b1, 2, 5, 7]
    )
    lines = [line_of(table, 100, at, pairs=False) for at in range(15)]
    #   short form     +1      none      -1, eight instructions    +33 (two bytes), and the end
    assert lines == [100, 100, 101, 0, 0, *[100] * 8, 133, 0]


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("table", [b"", b"\xff", b"\x80", b"\xf0" * 5000, b"\xe8" + b"\x7f" * 100, bytes(range(256))])
def test_hostile_tables_have_no_lines_that_cannot_be(table: bytes, pairs: bool) -> None:
    for at in (-1, 0, 1, 5, 1 << 22):
        assert line_of(table, 1, at, pairs=pairs) >= 0
