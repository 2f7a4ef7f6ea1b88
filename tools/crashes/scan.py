"""Find the places of a log where something may have crashed: one pass in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import polars as pl

_CHUNK, _SLICE = 2 << 20, 2 << 20
WINDOW = 256 << 10
"""Bytes from a place on that its reader gets."""
BEFORE = 16 << 10
"""Bytes before a place in which its time is looked for."""
_ASCII = bytes(range(128)) + b"?" * 128


class Readable(Protocol):
    """A file that is read from its start to its end."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, at most `size`; none at the end."""


class Place(NamedTuple):
    """A line that may begin a report. `offset`: of its line in the file; `window`: from there on, at most `WINDOW`
    bytes; `before`: what precedes it, at most `BEFORE` bytes; `line`: its number, from 1."""

    offset: int
    window: bytes
    before: bytes
    line: int


def places(file: Readable, texts: Sequence[str], taken: Callable[[int], bool]) -> Iterator[Place]:
    """Yield the lines of `file` that contain one of `texts`, in order.

    Args:
        texts: plain ASCII.
        taken: whether the line at an offset belongs to what a place before was the beginning of; it is left out then.

    Raises what reading `file` raises. A line is found by its last `BEFORE` bytes before the text.
    """
    patterns = list(texts)
    held, base, searched = b"", 0, 0
    counted, line = 0, 1  # the number of the line at `counted` in `data`
    longest = max(len(text) for text in patterns)
    either = "|".join(re.escape(text) for text in patterns)
    while True:
        chunk = file.read(_CHUNK)
        data = held + chunk
        done = not chunk
        # of a place near the end the window is not complete yet
        limit = len(data) if done else max(len(data) - WINDOW, 0)
        if limit > searched or done:
            hits = _hits(data[searched : min(limit + longest - 1, len(data))], patterns, either, longest)
            for hit in hits:
                at = searched + hit
                if at >= limit and not done:
                    break
                start = data.rfind(b"\n", max(at - BEFORE, 0), at) + 1 or max(at - BEFORE, 0)
                if taken(base + start):
                    continue
                counted, line = start, line + data.count(b"\n", counted, start)
                yield Place(base + start, data[start : start + WINDOW], data[max(start - BEFORE, 0) : start], line)
            searched = max(limit, searched)
        if done:
            return
        drop = max(searched - 2 * BEFORE, 0)
        if drop > counted:
            counted, line = drop, line + data.count(b"\n", counted, drop)
        counted -= drop
        held, base, searched = data[drop:], base + drop, searched - drop


def _hits(data: bytes, patterns: list[str], either: str, longest: int) -> list[int]:
    """Return where one of `patterns` begins in `data`, sorted; one per line.

    A slice is searched for any of them first (a regular expression, `either`), which is faster than finding all.
    """
    plain = data if data.isascii() else data.translate(_ASCII)
    cuts = range(0, len(plain), _SLICE)
    slices = pl.Series([plain[at : at + _SLICE + longest - 1] for at in cuts], dtype=pl.Binary).cast(pl.String)
    starts: list[int] = []
    last_end = -1
    for number in slices.str.contains(either).arg_true().to_list():
        found = slices[number : number + 1].str.find_many(patterns)[0]
        for at in (cuts[number] + one for one in found.sort().to_list()):
            if at > last_end:
                starts.append(at)
                end = data.find(b"\n", at)
                last_end = len(data) if end < 0 else end
    return starts
