"""Read the rows of a CSV file, of JSON lines or of a JSON array, one at a time, each with the line it begins in.

The files are untrusted: any encoding, unclosed quotes, cells of any size. Invalid rows are reported with their line
and never repaired. Memory holds at most one row (of an array: one element and a chunk).
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal, TextIO

from whystall.tools.contract.errors import ErrorCode, ToolError

Form = Literal["auto", "csv", "jsonl"]

_HEAD = 1 << 18  # bytes from which encoding and form are detected
CELL = 1 << 20
"""Characters of a cell."""
ROW = 4 << 20
"""Characters of a row: quoted cells may hold many lines."""
COLUMNS = 1000
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_DELIMITERS = ",;\t|"
_CHUNK = 1 << 16  # characters of a JSON array read at once
# The text before an element of a JSON array; True: before the first.
_ELEMENT = {
    True: re.compile(r"[\ufeff\s]*\[(?P<comma>)\s*"),
    False: re.compile(r"\s*(?:(?P<comma>,)\s*|(?=\]))"),
}
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Row:
    """A row: the line it begins in (from 1), and its cells by column name."""

    line: int
    cells: dict[str, str]


@dataclass(frozen=True)
class BadRow:
    """An invalid row: the line it begins in, why (``cells``, ``quoting``, ``too_large``, ``encoding``, ``json``,
    ``empty``), and figures.
    """

    line: int
    why: str
    detail: str = ""


class _CountingStream(io.RawIOBase):
    """Reads `head`, which was taken from `stream` before, then `stream`; `done` counts the bytes."""

    def __init__(self, head: bytes, stream: BinaryIO) -> None:
        self._head = head
        self._stream = stream
        self.done = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed expects any buffer
        if self._head:
            count = min(len(buffer), len(self._head))
            buffer[:count], self._head = self._head[:count], self._head[count:]
        else:
            chunk = self._stream.read(len(buffer))
            count = len(chunk)
            buffer[:count] = chunk
        self.done += count
        return count


class Table:
    """The rows of `stream`. `form`, `encoding`, `delimiter`: detected from the first bytes by default.

    Raises `ToolError`: bad_argument for an unknown encoding, an empty file, or a header that names a column twice;
    io_error if the stream cannot be read.
    """

    def __init__(
        self, stream: BinaryIO, form: Form = "auto", encoding: str | None = None, delimiter: str | None = None
    ) -> None:
        head = _read(stream, _HEAD)
        if not head.strip(codecs.BOM_UTF8 + b" \t\r\n\0"):
            raise ToolError(ErrorCode.BAD_ARGUMENT, "there are no work orders: the file is empty", "give another file")
        self.encoding = _encoding(head, encoding)
        self._raw = _CountingStream(head, stream)
        start = head.decode(self.encoding, "replace").lstrip("\ufeff \t\r\n")
        self.form: Form = form if form != "auto" else "jsonl" if start.startswith(("{", "[")) else "csv"
        text = io.TextIOWrapper(
            io.BufferedReader(self._raw, 1 << 16), encoding=self.encoding, errors="surrogateescape", newline=""
        )
        self._lines = _Lines(text)
        self._text = text
        self._array = self.form == "jsonl" and start.startswith("[")
        self.columns: list[str] = []
        if self.form == "csv":
            self._reader = self._csv(start, delimiter)

    @property
    def done(self) -> int:
        """Bytes read so far."""
        return self._raw.done

    def rows(self) -> Iterator[Row | BadRow]:
        """Return all rows in order, with the invalid ones."""
        if self._array:
            return self._array_rows()
        return self._json_rows() if self.form == "jsonl" else self._csv_rows()

    # --- CSV ----------------------------------------------------------------------------------------------------------

    def _csv(self, start: str, delimiter: str | None) -> Iterator[list[str]]:
        first = start.splitlines()[0] if start else ""
        csv.field_size_limit(CELL)
        if delimiter is None:
            delimiter = max(_DELIMITERS, key=lambda mark: (_outside_quotes(first, mark), -_DELIMITERS.index(mark)))
        reader = csv.reader(self._lines, delimiter=delimiter, strict=True)
        try:
            while not (header := next(reader)):
                pass
        except (csv.Error, _TooLarge) as error:
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"line 1: the header cannot be read: {error}", _REMEDY) from None
        except StopIteration:
            raise ToolError(ErrorCode.BAD_ARGUMENT, "there is no header", _REMEDY) from None
        if any(_SURROGATE.search(name) for name in header):
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"line 1: the header is not {self.encoding}", _ENCODE)
        self.columns = [name.strip().lstrip("\ufeff") or f"column {at}" for at, name in enumerate(header, 1)]
        twice = sorted({name for name in self.columns if self.columns.count(name) > 1})
        if twice or len(self.columns) > COLUMNS:
            fault = f"names {twice[0]!r} twice" if twice else f"has {len(self.columns)} columns"
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"line 1: the header {fault}", "correct the header")
        return reader

    def _csv_rows(self) -> Iterator[Row | BadRow]:
        while True:
            begin = self._lines.begin()
            try:
                cells = next(self._reader)
            except StopIteration:
                return
            except (csv.Error, _TooLarge) as error:
                large = isinstance(error, _TooLarge) or "field limit" in str(error)
                yield BadRow(begin, "too_large" if large else "quoting", self._range(begin))
                self._lines.skip()
                continue
            if not cells or (len(cells) == 1 and not cells[0].strip() and len(self.columns) > 1):
                continue
            if len(cells) != len(self.columns):
                yield BadRow(begin, "cells", f"{len(cells)}/{len(self.columns)}")
            elif any(_SURROGATE.search(cell) for cell in cells):
                yield BadRow(begin, "encoding", self.encoding)
            else:
                yield Row(begin, dict(zip(self.columns, cells, strict=True)))

    def _range(self, begin: int) -> str:
        return f"{begin}-{self._lines.number}" if self._lines.number > begin else ""

    # --- JSON lines ---------------------------------------------------------------------------------------------------

    def _json_rows(self) -> Iterator[Row | BadRow]:
        while True:
            begin = self._lines.begin()
            try:
                line = next(self._lines)
            except StopIteration:
                return
            except _TooLarge:
                yield BadRow(begin, "too_large")
                self._lines.skip()
                continue
            if not line.strip("\ufeff \t\r\n"):
                continue
            if _SURROGATE.search(line):
                yield BadRow(begin, "encoding", self.encoding)
                continue
            try:
                value = json.loads(line.strip("\ufeff \t\r\n"))
            except (ValueError, RecursionError):
                yield BadRow(begin, "json")
                continue
            yield _row(begin, value)

    # --- a JSON array -------------------------------------------------------------------------------------------------

    def _array_rows(self) -> Iterator[Row | BadRow]:
        """Yield one row per element of ``[{"id": 1}, {"id": 2}]``; reading ends at the first malformed element.

        The text is read in chunks, since exporters often write the whole array in one line.
        """
        decoder, buffer, line, first = json.JSONDecoder(), "", 1, True
        wanted = _CHUNK
        while True:
            chunk = self._chunk(wanted)
            buffer += chunk
            at = 0
            while True:  # every complete element of the buffer
                element = _ELEMENT[first].match(buffer, at)
                if element is None or element.end() == len(buffer):
                    break
                begin = line + buffer.count("\n", at, element.end())
                if buffer[element.end()] == "]" and not element["comma"]:
                    rest = buffer[element.end() + 1 :] + self._chunk(_CHUNK)
                    if rest.strip():
                        yield BadRow(begin, "json")
                    return
                try:
                    value, end = decoder.raw_decode(buffer, element.end())
                except (ValueError, RecursionError):
                    break
                if end == len(buffer) and chunk:  # a number may continue in the next chunk
                    break
                line = begin + buffer.count("\n", element.end(), end)
                encoded = not _SURROGATE.search(buffer, element.end(), end)
                yield _row(begin, value) if encoded else BadRow(begin, "encoding", self.encoding)
                at, first, wanted = end, False, _CHUNK
            buffer = buffer[at:]
            if len(buffer) > ROW or not chunk:
                yield BadRow(line, "too_large" if len(buffer) > ROW else "json")
                return
            wanted = max(_CHUNK, len(buffer))  # doubled, to decode a long element only a few times

    def _chunk(self, count: int) -> str:
        try:
            return self._text.read(count)
        except OSError as error:
            raise _unreadable(error) from None


def _row(line: int, value: object) -> Row | BadRow:
    """Return the JSON object `value` as a row."""
    if not isinstance(value, dict) or len(value) > COLUMNS:
        return BadRow(line, "json", "object")
    return Row(line, {str(key): _cell(inner) for key, inner in value.items()})


_REMEDY = "the first line of a CSV file names its columns; for JSON lines give --format jsonl"
_ENCODE = "name its encoding, for example --encoding gb18030"


class _TooLarge(Exception):
    """A line or a row of more than `ROW` characters."""


class _Lines(Iterator[str]):
    """Counts the lines of `text`. Each line, and all lines of a row together, have at most `ROW` characters."""

    def __init__(self, text: TextIO) -> None:
        self._text = text
        self.number = 0
        self._row = 0
        self._within = False  # in the middle of a line that is too long

    def begin(self) -> int:
        """Begin a row and return its line number."""
        self._row = 0
        return self.number + 1

    def __next__(self) -> str:
        line = self._readline()
        if not line:
            raise StopIteration
        self.number += 1
        self._row += len(line)
        if len(line) > ROW and line[-1] not in "\r\n":
            self._within = True
        if self._row > ROW:
            raise _TooLarge(f"more than {ROW} characters")
        return line.replace("\0", "\ufffd")  # csv refuses NUL before Python 3.11

    def skip(self) -> None:
        """Skip the rest of a line that is too long."""
        while self._within:
            line = self._readline()
            self._within = bool(line) and line[-1] not in "\r\n"

    def _readline(self) -> str:
        try:
            return self._text.readline(ROW + 1)
        except OSError as error:
            raise _unreadable(error) from None


def _cell(value: object) -> str:
    """Return a JSON value as a cell."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False)


def _outside_quotes(line: str, mark: str) -> int:
    return sum(part.count(mark) for part in line.split('"')[::2])


def _read(stream: BinaryIO, count: int) -> bytes:
    try:
        return stream.read(count)
    except OSError as error:
        raise _unreadable(error) from None


def _unreadable(error: OSError) -> ToolError:
    return ToolError(ErrorCode.IO_ERROR, f"cannot read: {error.strerror}", "give a readable file, or -")


def _encoding(head: bytes, named: str | None) -> str:
    """Return the encoding of `head`: `named`, by its byte order mark, UTF-8, else GB18030 (a superset of GBK)."""
    if named is not None:
        try:
            found = codecs.lookup(named)
        except LookupError:
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"unknown encoding {named!r}", "utf-8 or gb18030") from None
        if not found._is_text_encoding:
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"{named!r} is not a text encoding", "utf-8 or gb18030")
        return "utf-8-sig" if found.name == "utf-8" else found.name
    for mark, name in _BOMS:
        if head.startswith(mark):
            return name
    for name in ("utf-8", "gb18030"):
        try:
            codecs.getincrementaldecoder(name)("strict").decode(head, final=False)
        except UnicodeDecodeError:
            continue
        return name
    raise ToolError(ErrorCode.BAD_ARGUMENT, "the file is neither UTF-8 nor GB18030", _ENCODE)
