"""Text of stack samples in blocks of whole lines, however large the file; what cannot be read is counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from whystall.tools.contract.errors import ToolError
from whystall.tools.files.input import DAMAGED, bad, opened, unreadable

BLOCK = 16 << 20
"""Bytes read at once."""
LONGEST = 4 << 20
"""Bytes of a line; a longer one is no stack."""


class Text:
    """The lines of a file, plain, gzip or zstd. `odd` counts lines too long, and a packed file's damaged end."""

    def __init__(self, path: Path, block: int = BLOCK) -> None:
        self.path = path
        self.odd = 0
        self.size = 0
        self._block = block

    def blocks(self) -> Iterator[str]:
        """Whole lines, each with its newline, about a block at a time; other encodings than UTF-8 are escaped.

        Raises `ToolError`: io_error, bad_trace (empty, no regular file, a bomb).
        """
        try:
            with opened(self.path) as file:
                while True:
                    try:
                        data = file.read(self._block)
                        end = b"" if not data or data.endswith(b"\n") else file.readline(LONGEST)
                    except DAMAGED:
                        self.odd += 1
                        break
                    if not data:
                        break
                    self.size += len(data) + len(end)
                    if end and not end.endswith(b"\n") and len(end) == LONGEST:
                        data, end = data[: data.rfind(b"\n") + 1], b""
                        self.odd += 1
                        self._skip_line(file)
                    yield _text(data + end)
        except OSError as error:
            raise unreadable(self.path, error) from None
        if not self.size:
            raise bad(self.path, "it is empty" if not self.odd else "damaged or cut short")

    def _skip_line(self, file: object) -> None:
        while (rest := file.readline(LONGEST)) and not rest.endswith(b"\n"):  # type: ignore[attr-defined]
            self.size += len(rest)

    def nothing(self, what: str) -> ToolError:
        """The error of a file without a line that could be read as `what`."""
        return bad(self.path, f"no line of it is {what}")


def _text(data: bytes) -> str:
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    if b"\0" in data:
        data = data.replace(b"\0", b"\\x00")
    return data.decode("utf-8", "backslashreplace")
