"""What a server sends, unpacked, and never more than we want."""

from __future__ import annotations

import zlib
from collections.abc import Callable

_GZIP, _ZLIB = 31, 15


class Body:
    """Takes in a body as it comes over the wire, at most `limit` bytes of it, unpacked.

    We ask for no packing; who packs all the same is unpacked in steps, so that a small packet never becomes a large
    memory.
    """

    def __init__(self, encoding: str, length: str, limit: int, refuse: Callable[[str, str], Exception]) -> None:
        """`encoding` and `length` as the headers have them. `refuse` makes what is raised from a code and a message:
        too_large (here, where `length` says so already), bad_answer for packings that we cannot open.
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
        """`piece`, unpacked. Raises what `refuse` makes: too_large, bad_answer."""
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
