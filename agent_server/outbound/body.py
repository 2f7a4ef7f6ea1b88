"""Reads bodies of responses: decompressed and limited in size."""

from __future__ import annotations

import zlib
from collections.abc import Callable

_GZIP, _ZLIB = 31, 15


class Body:
    """A body of at most `limit` bytes, decompressed.

    We request no compression. If a server compresses anyway, we decompress in steps, so that a small response cannot
    fill the memory.
    """

    def __init__(self, encoding: str, length: str, limit: int, refuse: Callable[[str, str], Exception]) -> None:
        """`encoding`, `length`: the headers. `refuse` makes an exception from a code (too_large, bad_answer for unknown
        encodings) and a message.
        """
        self._refuse = refuse
        encoding = encoding.strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise refuse("bad_answer", "the response has an unknown Content-Encoding")
        self._limit = limit
        self._size = 0
        self._decompressor = None
        if encoding not in ("", "identity"):
            self._decompressor = zlib.decompressobj(_ZLIB if encoding == "deflate" else _GZIP)
        if length.isdecimal() and (len(length) > 18 or int(length) > limit):
            raise self._too_large()

    def feed(self, piece: bytes) -> bytes:
        """Return `piece` decompressed. Raises too_large or bad_answer, made by `refuse`."""
        if self._decompressor is not None:
            try:
                piece = self._decompressor.decompress(piece, self._limit - self._size + 1)
            except zlib.error:
                raise self._refuse("bad_answer", "the response cannot be decompressed") from None
        self._size += len(piece)
        if self._size > self._limit:
            raise self._too_large()
        return piece

    def _too_large(self) -> Exception:
        return self._refuse("too_large", f"the answer is larger than {self._limit >> 20} MiB")
