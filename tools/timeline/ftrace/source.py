"""Read a trace's text in blocks of whole lines: plain, packed, or in a page of systrace."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.ftrace.wrapped import BEGIN, Ahead, Stream, is_page, sections, unwrapped

BLOCK = 4 << 20
"""Bytes read at once: few enough for a CPU's cache."""
TOGETHER = 4
"""Blocks handed on together: enough for columns to pay."""

_GZIP = b"\x1f\x8b"
# One of them is in no line, so that a reader of separated columns takes each line as one.
_SEPARATORS = [bytes([code]) for code in range(1, 32) if code not in b"\t\n\r"]


@dataclass
class Source:
    """The text of a trace: the file `path`, or `stream`, which came from it.

    `size`: bytes in all (0: unknown); `share`: of them, read so far. `dropped`: beginnings of lines longer than a
    block, and of an incomplete last line: a number cut short would be wrong. `cut`: the file ends in the middle.
    `remedy`: advice for a file without an event.
    """

    path: Path
    stream: Stream | None = None
    remedy: str = "give a kernel trace as text: tracefs's `trace`, `trace-cmd report`, `perf script`, a systrace page"
    size: int = 0
    share: float = 1.0
    cut: bool = False
    dropped: list[bytes] = field(default_factory=list)

    def lines(self) -> Iterator[pl.DataFrame]:
        """Yield the lines of `TOGETHER` blocks as the columns `row`, from 0, and `line` (text; null when empty)."""
        parts: list[pl.DataFrame] = []
        for block, end in self.blocks():
            parts.append(lines_of(block, end))
            if len(parts) == TOGETHER:
                yield pl.concat(parts).rechunk().with_row_index("row")
                parts = []
        if parts:
            yield pl.concat(parts).rechunk().with_row_index("row")

    def blocks(self) -> Iterator[tuple[bytes, int]]:
        """Yield UTF-8 text, about `BLOCK` bytes at a time, and how many of them are whole lines; the rest, less than a
        line, comes again with the next block. What is not UTF-8 is escaped.

        A file that grows is read up to the size it had. Raises `ToolError` when it cannot be read.
        """
        if self.stream is not None:
            yield from self._unwrapped(_Bounded(self.stream, 0))
            return
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise _unreadable(self.path, error) from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise ToolError(ErrorCode.BAD_TRACE, f"{self.path.name} is not a file", "give a trace file")
        self.size = status.st_size
        with open(descriptor, "rb", buffering=0) as file:
            try:
                yield from self._unwrapped(_Bounded(file, self.size))
            except OSError as error:
                raise _unreadable(self.path, error) from error

    def _unwrapped(self, raw: _Bounded) -> Iterator[tuple[bytes, int]]:
        stream: Stream = raw
        begin = raw.peek(BEGIN)
        if begin.startswith(_GZIP):
            stream = ahead = Ahead(_Unpacked(raw, self))
            begin = ahead.begin
        stream = unwrapped(stream, begin, self.path.name)
        blocks = _lines(stream, self)
        if is_page(begin):
            self.remedy = "give the page that systrace wrote, or the text; of another page the trace it was made from"
            blocks = sections(blocks)
        for block, end in blocks:
            self.share = raw.done / self.size if self.size else 1.0
            yield _decoded(block, end)
        if is_page(begin):
            self.dropped.clear()  # the end of the page
        self.cut = self.cut or getattr(stream, "cut", False)


class _Bounded:
    """A file up to a size; one without a size (tracefs) up to its present end."""

    def __init__(self, file: Stream, size: int) -> None:
        self._file, self._left, self._ahead = file, size or 1 << 62, b""
        self.done = 0
        self.seekable = size > 0

    def peek(self, size: int) -> bytes:
        self._ahead = self._file.read(size) or b""
        return self._ahead

    def read(self, size: int = BLOCK) -> bytes:
        size = min(size, self._left)
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        if len(data) < size:  # None: the tracer's pipe is empty for now
            data += self._file.read(size - len(data)) or b""
        self._left -= len(data)
        self.done += len(data)
        return data

    def back(self, size: int) -> None:
        """Give the last bytes again; of a file."""
        self._file.seek(-size - len(self._ahead), os.SEEK_CUR)  # type: ignore[attr-defined]
        self._ahead = b""
        self._left += size
        self.done -= size


class _Unpacked:
    """The unpacked content of a gzip file, up to where it is damaged."""

    def __init__(self, raw: _Bounded, source: Source) -> None:
        self._source = source
        self._file: gzip.GzipFile = gzip.GzipFile(fileobj=raw)  # type: ignore[call-overload]

    def read(self, size: int) -> bytes:
        try:
            return self._file.read1(size)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self._source.cut = True
            return b""


def lines_of(block: bytes, end: int) -> pl.DataFrame:
    """Return the lines in the first `end` bytes of a block, followed by less than a line, as the only column."""
    whole = end == len(block)
    separator = next((one for one in _SEPARATORS if one not in block), None)
    if separator is None:  # all of them occur, which no real trace has
        separator = _SEPARATORS[0]
        block = block.replace(separator, b"\\x01")
    lines = pl.read_csv(
        block,
        has_header=False,
        separator=separator.decode(),
        quote_char=None,
        schema={"line": pl.String},
        truncate_ragged_lines=True,
    )
    return lines if whole else lines.head(-1)


def _lines(stream: Stream, source: Source) -> Iterator[tuple[bytes, int]]:
    carry, skipping = b"", False
    back = stream.back if isinstance(stream, _Bounded) and stream.seekable else None
    while data := _fill(stream, BLOCK):
        if skipping:  # the rest of a line that was too long
            start = data.find(b"\n") + 1
            skipping = not start
            data = data[start:] if start else b""
            if skipping:
                yield b"", 0  # lets the consumer stop waiting for lines
        data = carry + data if carry else data
        end = data.rfind(b"\n") + 1
        carry = b""
        if end and back is not None:
            back(len(data) - end)
            yield data, end
        elif end:
            carry = data[end:]
            yield data, end
        elif len(data) >= BLOCK:
            source.dropped.append(data[:200])
            skipping = True
            yield b"", 0
        else:
            carry = data
    if carry:
        source.dropped.append(carry[:200])


def _fill(stream: Stream, size: int) -> bytes:
    """Read as much, though the stream gives less at a time (a file of tracefs gives a page)."""
    parts: list[bytes] = []
    while size > 0 and (data := stream.read(size)):
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def _decoded(block: bytes, end: int) -> tuple[bytes, int]:
    ascii_, carriage = block.isascii(), b"\r" in block  # searching for one byte is much faster than for two
    if ascii_ and not carriage:
        return block, end
    block = block[:end]
    if carriage:  # adb shell on Windows writes two of them
        block = block.replace(b"\r\r\n", b"\n").replace(b"\r\n", b"\n")
    if not ascii_:
        try:
            block.decode()
        except UnicodeDecodeError:
            block = block.decode("utf-8", "backslashreplace").encode()
    return block, len(block)


def _unreadable(path: Path, error: OSError) -> ToolError:
    why = error.strerror or "it is damaged"
    code = ErrorCode.NO_PRIVILEGE if isinstance(error, PermissionError) else ErrorCode.BAD_TRACE
    return ToolError(code, f"{path.name} cannot be read: {why}", "check the path and its permissions")
