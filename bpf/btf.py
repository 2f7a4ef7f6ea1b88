"""Read structs and enums from the BTF of an ELF file (Documentation/bpf/btf.rst); the standard library suffices."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

_INT, _ARRAY, _STRUCT, _UNION, _ENUM = 1, 3, 4, 5, 6
_ALIASES = (8, 9, 10, 11)  # typedef, volatile, const, restrict
# bytes that follow the header of a kind that is skipped: in all, and per member
_TAIL = {_INT: 4, 14: 4, 17: 4}
_TAIL_PER_MEMBER = {13: 8, 15: 12, 19: 12}


class Member(NamedTuple):
    """A member of a struct: its offset in bytes, and the number of its type."""

    name: str
    offset: int
    type: int


class Type(NamedTuple):
    """One type. `size`: in bytes, or the type an alias stands for; `length` and `element`: of an array."""

    kind: int
    name: str
    size: int
    members: tuple[Member, ...] = ()
    values: tuple[tuple[str, int], ...] = ()
    element: int = 0
    length: int = 0
    signed: bool = False


class Btf:
    """The types of one little-endian ELF file of 64 bits."""

    def __init__(self, path: Path) -> None:
        data = _section(path.read_bytes(), b".BTF")
        _, _, _, head, type_at, type_len, text_at, text_len = struct.unpack_from("<HBBIIIII", data)
        self._text = data[head + text_at : head + text_at + text_len]
        self.types = [Type(0, "", 0)]
        at, end = head + type_at, head + type_at + type_len
        while at < end:
            at = self._read(data, at)

    def _read(self, data: bytes, at: int) -> int:
        name, info, size = struct.unpack_from("<III", data, at)
        at += 12
        kind, count = info >> 24 & 0x1F, info & 0xFFFF
        made = Type(kind, self._name(name), size)
        if kind in (_STRUCT, _UNION):
            rows = struct.iter_unpack("<III", data[at : at + 12 * count])
            members = (Member(self._name(n), (bits & 0xFFFFFF) // 8, of) for n, of, bits in rows)
            made = made._replace(members=tuple(members))
            at += 12 * count
        elif kind == _ENUM:
            rows = struct.iter_unpack("<Ii", data[at : at + 8 * count])
            made = made._replace(values=tuple((self._name(n), value) for n, value in rows))
            at += 8 * count
        elif kind == _ARRAY:
            element, _, length = struct.unpack_from("<III", data, at)
            made = made._replace(element=element, length=length)
            at += 12
        else:
            if kind == _INT:
                made = made._replace(signed=bool(data[at + 3] & 1))
            at += _TAIL.get(kind, 0) + _TAIL_PER_MEMBER.get(kind, 0) * count
        self.types.append(made)
        return at

    def _name(self, at: int) -> str:
        return self._text[at : self._text.index(b"\0", at)].decode()

    def resolve(self, number: int) -> Type:
        """Return a type without typedefs and qualifiers."""
        found = self.types[number]
        while found.kind in _ALIASES:
            found = self.types[found.size]
        return found

    def structs(self) -> dict[str, Type]:
        """Return the named structs."""
        return {one.name: one for one in self.types if one.kind == _STRUCT and one.name}

    def enums(self) -> dict[str, Type]:
        """Return the named enums."""
        return {one.name: one for one in self.types if one.kind == _ENUM and one.name}


def _section(data: bytes, name: bytes) -> bytes:
    (table,) = struct.unpack_from("<Q", data, 0x28)
    width, count, names = struct.unpack_from("<HHH", data, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", data, table + width * index) for index in range(count)]
    text = heads[names][4]
    for head in heads:
        if data.startswith(name + b"\0", text + head[0]):
            return data[head[4] : head[4] + head[5]]
    raise ValueError(f"no section {name.decode()}")
