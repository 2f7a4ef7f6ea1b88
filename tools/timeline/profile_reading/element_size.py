"""Bytes of a tensor element, by torch's or C++'s name of its type."""

from __future__ import annotations

_NAMES = {
    1: ("byte", "char", "bool", "unsigned char", "signed char"),
    2: ("half", "bfloat16", "short", "short int", "uint16", "unsigned short"),
    4: ("float", "int", "uint32", "unsigned int", "complexhalf"),
    8: ("double", "long", "long int", "long long", "uint64", "unsigned long", "complexfloat", "complex<float>"),
    16: ("complexdouble", "complex<double>"),
}
_SIZES = {name: size for size, names in _NAMES.items() for name in names}
_ONE_BYTE = ("float8", "qint8", "quint8")
"""Prefixes of types that differ only in the meaning of their bits."""


def element_size(name: str) -> int:
    """Return the bytes of one element of the type `name`, in any case, with or without ``c10::``; -1 when not known."""
    plain = name.lower().removeprefix("c10::")
    return 1 if plain.startswith(_ONE_BYTE) else _SIZES.get(plain, -1)
