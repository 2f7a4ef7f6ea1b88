"""Read text of stack samples in blocks of whole lines, however large the file; count what cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from whystall.tools.contract.errors import ToolError
from whystall.tools.files.input import DAMAGED, bad, opened, unreadable

BLOCK = 4 << 20
"""Bytes read at once."""
LONGEST = 4 << 20
"""Limit of a line, bytes; a longer one is no stack."""


class Text:
    """The lines of a file, plain, gzip or zstd. `odd` counts lines that are too long, and a damaged end."""

    def __init__(self, path: Path, block: int = BLOCK) -> None:
        self.path = path
        self.odd = 0
        self.size = 0
        self._block = block
        self._damaged = False

    def blocks(self) -> Iterator[str]:
        """Yield `raw` as text; bytes that are not UTF-8 are escaped."""
        for block in self.raw():
            yield block.decode("utf-8", "backslashreplace")

    def raw(self) -> Iterator[bytes]:
        """Yield whole lines, each with its newline, about a block at a time, without carriage returns and NULs.

        Raises `ToolError`: io_error, bad_trace (empty, no regular file, a bomb).
        """
        try:
            with opened(self.path) as file:
                while True:
                    data, end = self._read(file), b""
                    if data and not data.endswith(b"\n"):
                        try:
                            end = file.readline(LONGEST)
                        except DAMAGED:
                            self.odd += 1
                            data = data[: data.rfind(b"\n") + 1]  # an incomplete line would have a wrong number
                    if not data:
                        break
                    self.size += len(data) + len(end)
                    if end and not end.endswith(b"\n") and len(end) == LONGEST:
                        data, end = data[: data.rfind(b"\n") + 1], b""
                        self.odd += 1
                        self._skip_line(file)
                    yield _plain(data + end if end else data)
        except OSError as error:
            raise unreadable(self.path, error) from None
        if not self.size:
            raise bad(self.path, "it is empty" if not self.odd else "damaged or cut short")

    def _read(self, file: BinaryIO) -> bytes:
        """Return about a block; of a damaged file the bytes before the damage."""
        parts: list[bytes] = []
        left = self._block
        read = getattr(file, "read1", file.read)  # returns the bytes before an error, where read would lose them
        while left > 0 and not self._damaged:
            try:
                part = read(left)
            except DAMAGED:
                self._damaged = True
                self.odd += 1
                break
            if not part:
                break
            parts.append(part)
            left -= len(part)
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return data[: data.rfind(b"\n") + 1] if self._damaged else data

    def _skip_line(self, file: BinaryIO) -> None:
        with suppress(*DAMAGED):  # the next read raises it
            while (rest := file.readline(LONGEST)) and not rest.endswith(b"\n"):
                self.size += len(rest)

    def nothing(self, what: str) -> ToolError:
        """Return the error of a file without any line of `what`."""
        return bad(self.path, f"no line of it is {what}")


def _plain(data: bytes) -> bytes:
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    if b"\0" in data:
        data = data.replace(b"\0", b"\\x00")
    return data
