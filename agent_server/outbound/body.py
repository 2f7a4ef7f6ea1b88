"""Reads bodies of responses: decompressed and limited in size."""

from __future__ import annotations

import zlib
from collections.abc import Callable

_GZIP, _ZLIB = 31, 15


class Body:
    """A body of at most `limit` bytes, decompressed.

    We ask for no compression; if a server compresses all the same, we decompress in steps, so that a small packet
    cannot fill the memory.
    """

    def __init__(self, encoding: str, length: str, limit: int, refuse: Callable[[str, str], Exception]) -> None:
        """`encoding`, `length`: the headers. `refuse` makes an exception from a code (too_large, bad_answer for unknown
        encodings) and a message.
        """
        self._refuse = refuse
        packing = encoding.strip().lower()
        if packing not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise refuse("bad_answer", "the answer is packed in a way that was not asked for")
        self._limit = limit
        self._size = 0
        self._unpack = None
        if packing not in ("", "identity"):
            self._unpack = zlib.decompressobj(_ZLIB if packing == "deflate" else _GZIP)
        if length.isdecimal() and (len(length) > 18 or int(length) > limit):
            raise self._too_large()

    def feed(self, piece: bytes) -> bytes:
        """Return `piece` decompressed. Raises too_large or bad_answer, made by `refuse`."""
        if self._unpack is not None:
            try:
                piece = self._unpack.decompress(piece, self._limit - self._size + 1)
            except zlib.error:
                raise self._refuse("bad_answer", "the answer is packed, and cannot be unpacked") from None
        self._size += len(piece)
        if self._size > self._limit:
            raise self._too_large()
        return piece

    def _too_large(self) -> Exception:
        return self._refuse("too_large", f"the answer is larger than {self._limit >> 20} MiB")
