"""The wire format of protocol buffers, what of it is needed to write (protobuf.dev/programming-guides/encoding)."""

from __future__ import annotations

_U64 = (1 << 64) - 1


def varint(value: int) -> bytes:
    """`value` as a varint; negative ones as 64-bit two's complement, as protobuf has it for int32 and int64."""
    value &= _U64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A field of an integer, a boolean or an enum."""
    return varint(field << 3) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """A field of 8 bytes, little endian."""
    return varint(field << 3 | 1) + (value & _U64).to_bytes(8, "little")


def message(field: int, content: bytes) -> bytes:
    """A field of bytes or of a message."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    """A field of text."""
    return message(field, value.encode("utf-8", "replace"))
