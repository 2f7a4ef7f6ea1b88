"""Python's mirror of the shared records against the type information in the objects themselves."""

from __future__ import annotations

import ctypes as ct
import struct
from pathlib import Path

import pytest

from whystall.bpf import layout
from whystall.bpf.build import KINDS, MACHINES, SOURCES, object_path

Members = dict[str, tuple[int, int]]  # name -> offset, size


class Btf:
    """The structs and enums of an ELF file's .BTF section (format: Documentation/bpf/btf.rst)."""

    def __init__(self, path: Path) -> None:
        from elftools.elf.elffile import ELFFile

        with path.open("rb") as stream:
            data = ELFFile(stream).get_section_by_name(".BTF").data()
        _, _, _, head, type_at, type_len, text_at, text_len = struct.unpack_from("<HBBIIIII", data)
        self._text = data[head + text_at : head + text_at + text_len]
        self.types: list[tuple[int, str, int, list[tuple[str, int, int]]]] = [(0, "", 0, [])]
        at, end = head + type_at, head + type_at + type_len
        while at < end:
            name, info, size = struct.unpack_from("<III", data, at)
            at += 12
            kind, count, rest = info >> 24 & 0x1F, info & 0xFFFF, []
            if kind in (4, 5):  # struct, union: members of name, type, offset in bits
                for _ in range(count):
                    member, of, bits = struct.unpack_from("<III", data, at)
                    rest.append((self._name(member), of, bits & 0xFFFFFF))
                    at += 12
            elif kind == 3:  # array: of, indexed by, length
                of, _, length = struct.unpack_from("<III", data, at)
                rest.append(("", of, length))
                at += 12
            elif kind == 6:  # enum
                for _ in range(count):
                    member, value = struct.unpack_from("<Ii", data, at)
                    rest.append((self._name(member), value, 0))
                    at += 8
            else:
                at += {1: 4, 13: 8 * count, 14: 4, 15: 12 * count, 17: 4, 19: 12 * count}.get(kind, 0)
            self.types.append((kind, self._name(name), size, rest))

    def _name(self, at: int) -> str:
        return self._text[at : self._text.index(b"\0", at)].decode()

    def size(self, number: int) -> int:
        kind, _, size, rest = self.types[number]
        if kind == 3:
            return self.size(rest[0][1]) * rest[0][2]
        if kind in (8, 9, 10, 11):  # typedef and qualifiers
            return self.size(size)
        return 8 if kind == 2 else size

    def struct(self, name: str) -> tuple[int, Members]:
        (found,) = [t for t in self.types if t[0] == 4 and t[1] == name]
        return found[2], {member: (bits // 8, self.size(of)) for member, of, bits in found[3]}


MIRRORS = {kind: layout.TRACE_MIRRORS if kind == "trace" else layout.MIRRORS for kind in KINDS}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_mirror_agrees_with_the_object(machine: str, kind: str) -> None:
    btf = Btf(object_path(machine, kind))
    for name, mirror in MIRRORS[kind].items():
        size, members = btf.struct(name)
        assert ct.sizeof(mirror) == size
        mirrored = {field[0]: getattr(mirror, field[0]) for field in mirror._fields_}
        assert {member: (at.offset, at.size) for member, at in mirrored.items()} == members


def test_no_mirror_has_hidden_padding() -> None:
    for mirror in (layout.MIRRORS | layout.TRACE_MIRRORS).values():
        assert layout.unpacker(mirror).size == ct.sizeof(mirror)


def test_the_names_of_counters_and_numbers_agree() -> None:
    text = (SOURCES / "records.h").read_text() + (SOURCES / "trace_records.h").read_text()

    def enum(name: str) -> list[str]:
        body = text.split(f"enum {name} {{", 1)[1].split("}", 1)[0]
        lines = (line.split("/*")[0] for line in body.splitlines())
        return [word.split("=")[0].strip() for line in lines for word in line.split(",") if word.split("=")[0].strip()]

    assert len(enum("counter")) == len(layout.COUNTERS) + 1
    losses = [name for name in enum("counter") if name.startswith(("LOST_", "SKIPPED_"))]
    assert len(losses) == len(layout.LOSSES)
    assert len(enum("off_class")) == len(layout.OFF_CLASSES) + 1
    assert [name.removeprefix("BLOCK_").lower() for name in enum("block_op")] == list(layout.BLOCK_OPS)
    assert [name.removeprefix("TRACE_").lower() for name in enum("trace_type")] == list(layout.TRACE_TYPES)
    assert [name.removeprefix("TRACE_").lower() for name in enum("trace_flag")] == list(layout.TRACE_FLAGS)
    for at, name in enumerate(enum("record_flag")):
        assert getattr(layout, name.removeprefix("RECORD_")) == 1 << at
    for at, name in enumerate(enum("row_flag")):
        assert getattr(layout, name) == 1 << at
    for name in ("SYSCALL_ROWS", "STACK_DEPTH", "PATH_BYTES", "COMM_BYTES"):
        assert f"#define {name} {getattr(layout, name)}\n" in text


def test_slots_cover_every_latency_without_gap_or_overlap() -> None:
    low, high = layout.slot_bounds(0)
    assert low == 0
    for slot in range(1, 480):
        next_low, next_high = layout.slot_bounds(slot)
        assert next_low == high
        assert next_high > next_low
        assert slot < 16 or (next_high - next_low) / next_low <= 0.125
        low, high = next_low, next_high
    assert high > 1 << 60
