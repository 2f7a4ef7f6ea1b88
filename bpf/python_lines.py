"""Decode line tables of CPython code objects: the source line of an instruction.

Formats: 3.10: PEP 626 (Objects/lnotab_notes.txt); 3.11 and later: PEP 657 (Objects/locations.md, later
InternalDocs/code_objects.md). The bytes are untrusted: undecodable ones have no line.
"""

from __future__ import annotations

from collections.abc import Iterator

_NO_LINE = -128  # of a 3.10 table
_MOST_ENTRIES = 1 << 18


def line_of(table: bytes, first_line: int, instruction: int, *, pairs: bool) -> int:
    """Return the line of an instruction (-1: the code has not begun); 0 if unknown. `pairs`: a CPython 3.10 table."""
    if instruction < 0:
        return max(first_line, 0)
    spans = _pairs(table, first_line) if pairs else _locations(table, first_line)
    reached = 0
    for at, (length, line) in enumerate(spans):
        reached += length
        if instruction < reached:
            return max(line, 0)
        if at > _MOST_ENTRIES:
            break
    return 0


def _pairs(table: bytes, line: int) -> Iterator[tuple[int, int]]:
    """Yield (instructions, line) of a table of pairs: bytes of code, line increment."""
    for at in range(0, len(table) - 1, 2):
        delta = table[at + 1] - (256 if table[at + 1] > 127 else 0)
        if delta != _NO_LINE:
            line += delta
        yield table[at] // 2, 0 if delta == _NO_LINE else line


def _locations(table: bytes, line: int) -> Iterator[tuple[int, int]]:
    """Yield (instructions, line) of a table of entries that each begin with a byte above 127."""
    at, end = 0, len(table)
    while at < end:
        head = table[at]
        code, length = head >> 3 & 15, (head & 7) + 1
        if code in (13, 14):  # with a line increment of any size
            delta, read = _signed(table, at + 1)
            if not read:
                return
            line += delta
        elif 10 <= code <= 12:
            line += code - 10
        yield length, 0 if code == 15 else line
        at += 1
        while at < end and table[at] < 128:
            at += 1


def _signed(table: bytes, at: int) -> tuple[int, int]:
    """Return a number (6 bits per byte, lowest first, sign in the lowest bit) and its length; 0 if it is cut."""
    value = shift = read = 0
    while at + read < len(table):
        byte = table[at + read]
        value |= (byte & 63) << shift
        shift += 6
        read += 1
        if not byte & 64:
            return (-(value >> 1) if value & 1 else value >> 1), read
        if shift > 60:
            break
    return 0, 0
