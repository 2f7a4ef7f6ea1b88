"""Layouts shared with the BPF objects: the generated mirrors, and how to unpack them."""

from __future__ import annotations

import ctypes as ct
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from whystall.bpf.layout_generated import *  # noqa: F403
from whystall.bpf.layout_generated import COUNTERS

OFF_CLASSES = ("D", "S", "R", "other")
LOSSES = COUNTERS[: COUNTERS.index("self_calls")]
"""Counters of lost events; `COUNTERS` has them first. `TRACE_TYPES` count from 1, `TRACE_FLAGS` from bit 0."""

Items = Iterable[tuple[bytes, bytes]]
"""Keys and values of a map."""
_CODES: dict[Any, str] = {ct.c_char: "s", ct.c_uint8: "B", ct.c_uint16: "H", ct.c_uint32: "I", ct.c_uint64: "Q"}
_CODES |= {ct.c_int32: "i", ct.c_int64: "q"}


def flat_format(mirror: type[ct.Structure]) -> str:
    """Return the ``struct`` format of a mirror, nested structures flattened, char arrays as bytes.

    Decoding by ``struct`` takes a tenth of the time of reading ctypes members one by one.
    """
    code = ""
    kind: Any
    for _, kind, *_rest in mirror._fields_:
        if isinstance(kind, type) and issubclass(kind, ct.Structure):
            code += flat_format(kind)
        elif isinstance(kind, type) and issubclass(kind, ct.Array):
            element: Any = kind._type_
            length: Any = kind._length_
            code += flat_format(element) * length if issubclass(element, ct.Structure) else f"{length}{_CODES[element]}"
        else:
            code += _CODES[kind]
    return code


def unpacker(mirror: type[ct.Structure]) -> struct.Struct:
    """Return the compiled little-endian ``struct`` of a mirror (both supported machines are little-endian)."""
    made = struct.Struct("<" + flat_format(mirror))
    if made.size != ct.sizeof(mirror):
        raise TypeError(f"{mirror.__name__} has hidden padding")
    return made


def decode(items: Items, key: type[ct.Structure], value: type[ct.Structure]) -> Iterator[tuple[Any, Any]]:
    """Yield the members of each key and value of a map, by their mirrors."""
    read_key, read_value = unpacker(key).unpack, unpacker(value).unpack
    return ((read_key(k), read_value(v)) for k, v in items)


def slot_bounds(slot: int) -> tuple[int, int]:
    """Return the lower (inclusive) and upper (exclusive) bound of a latency slot, in ns.

    Slots are exact below 8 ns, then 8 steps per doubling: at most 12.5 % wide (inverse of ``bpf/src/histogram.h``).
    """
    if slot < 16:
        return slot, slot + 1
    shift = (slot >> 3) - 1
    low = (8 + (slot & 7)) << shift
    return low, low + (1 << shift)
