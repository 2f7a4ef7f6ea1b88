"""The wire format of protocol buffers (protobuf.dev/programming-guides/encoding)."""

from __future__ import annotations

from collections.abc import Iterator

_U64 = (1 << 64) - 1


def varint(value: int) -> bytes:
    """Encode a varint; negative values as 64-bit two's complement, as protobuf's int32 and int64."""
    value &= _U64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Encode a field of an integer, a boolean or an enum."""
    return varint(field << 3) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """Encode a field of 8 bytes, little endian."""
    return varint(field << 3 | 1) + (value & _U64).to_bytes(8, "little")


def message(field: int, content: bytes) -> bytes:
    """Encode a field of bytes or of a message."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    """Encode a field of text."""
    return message(field, value.encode("utf-8", "replace"))


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of each field of a message: integers unsigned, everything with a length as bytes.

    Raises ValueError for an invalid message: truncated, of an unknown wire type, with a number too long.
    """
    at, end = 0, len(data)
    while at < end:
        key, at = _varint_at(data, at)
        kind, field = key & 7, key >> 3
        if not field:
            raise ValueError("field 0")
        if kind == 0:
            value, at = _varint_at(data, at)
            yield field, value
            continue
        if kind == 2:
            length, at = _varint_at(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + length > end:
            raise ValueError("cut short")
        content = data[at : at + length]
        at += length
        yield field, content if kind == 2 else int.from_bytes(content, "little")


def packed(data: bytes) -> list[int]:
    """Decode the varints of a packed field, unsigned. Raises ValueError."""
    if data.isascii():
        return list(data)
    found, at, end = [], 0, len(data)
    while at < end:
        value, at = _varint_at(data, at)
        found.append(value)
    return found


def signed(value: int) -> int:
    """Convert an int64 that was read as unsigned."""
    return value - (1 << 64) if value >> 63 else value


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    try:
        while (byte := data[at]) > 0x7F:
            value |= (byte & 0x7F) << shift
            shift += 7
            at += 1
            if shift > 63:
                raise ValueError("a number of more than 64 bits")
    except IndexError:
        raise ValueError("cut short") from None
    return (value | byte << shift) & _U64, at + 1
