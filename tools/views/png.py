"""Encode coloured cells as a PNG with a palette, as text to be embedded."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

Colour = tuple[int, int, int, int]
"""Red, green, blue and opacity, 0 to 255 each."""


def data_uri(width: int, height: int, pixels: bytes, palette: Sequence[Colour]) -> str:
    """Return the picture as a ``data:`` URI. `pixels`: row by row, each an index into `palette` (at most 256 colours).

    Raises ValueError when there are not `width` times `height` pixels, or too many colours.
    """
    if len(pixels) != width * height or width < 1 or height < 1 or len(palette) > 256:
        raise ValueError(f"{len(pixels)} pixels, {len(palette)} colours do not make {width} x {height}")
    rows = b"".join(b"\0" + pixels[at : at + width] for at in range(0, len(pixels), width))  # 0: no filter
    parts = (
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),  # 8 bits, palette
        _chunk(b"PLTE", b"".join(bytes(colour[:3]) for colour in palette)),
        _chunk(b"tRNS", bytes(colour[3] for colour in palette)),
        _chunk(b"IDAT", zlib.compress(rows, 9)),
        _chunk(b"IEND", b""),
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
