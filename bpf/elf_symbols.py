"""Read the functions of an ELF file: names, and start addresses even if the names were stripped."""

from __future__ import annotations

import bisect
import os
import re
import struct
from array import array
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from whystall.bpf.regular_files import open_regular

NAME_BYTES = 200
_ELF_BYTES = 1 << 30  # larger files get no symbols
_TABLE_BYTES = 256 << 20  # larger tables are not searched for names
_SYMBOL_BYTES = 1 << 10
_UNSIZED = 1 << 12  # a symbol without a size is a short assembly routine: farther addresses are not named after it
_HEADER = bytes((1, 0x1B, 0x03, 0x3B))  # .eh_frame_hdr as linkers write it: sorted pairs of 32-bit distances


class Table:
    """Sorted symbols. A name applies up to the next start or its own end; without a size for at most 4 KiB."""

    def __init__(self, entries: Iterable[tuple[int, int, str]]) -> None:
        """Entries are (start, size or 0, name)."""
        ordered = sorted(entries)
        self._starts = array("Q", (entry[0] for entry in ordered))
        self._sizes = array("Q", (entry[1] for entry in ordered))
        self._names = [entry[2][:NAME_BYTES] for entry in ordered]

    def __len__(self) -> int:
        return len(self._starts)

    def find(self, address: int, since: int = 0) -> tuple[str, int] | None:
        """Return the name and the offset into it. A symbol without a size must not begin before `since`."""
        at = bisect.bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        offset = address - self._starts[at]
        if offset >= (self._sizes[at] or _UNSIZED) or (not self._sizes[at] and self._starts[at] < since):
            return None
        return self._names[at], offset


class Code:
    """The functions of one file, by file offset."""

    def __init__(self, names: Table, starts: Iterable[int] = ()) -> None:
        """`starts`: of functions, from the unwind table, which is not stripped."""
        self.names = names
        self._starts = array("Q", sorted(starts))

    def find(self, offset: int) -> tuple[str, int]:
        """Return the name of the function at `offset` (empty if unknown), and its start (`offset` if unknown)."""
        at = bisect.bisect_right(self._starts, offset) - 1
        begin = self._starts[at] if at >= 0 else None
        found = self.names.find(offset, begin or 0)
        if found is not None:
            return found[0], offset - found[1]
        return "", offset if begin is None else begin


def read_file(path: str) -> Code | None:
    """Return the functions of the file at `path`; None if it is unreadable, broken, or not a regular file."""
    try:
        with open(open_regular(path), "rb") as stream:
            if os.fstat(stream.fileno()).st_size > _ELF_BYTES:
                return None
            return _read(stream)
    except OSError:
        return None


def functions_named(path: str, names: re.Pattern[bytes]) -> dict[str, int]:
    """Return the file offsets of the functions in the file at `path` whose whole name matches `names`: of those that it
    exports, else of all. Empty if it has none, is broken or is not a regular file. Some 50 ms for 100,000 symbols.
    """
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    try:
        with open(open_regular(path), "rb") as stream:
            elf = ELFFile(stream)
            loads = [(part["p_vaddr"], part["p_memsz"], part["p_offset"]) for part in elf.iter_segments("PT_LOAD")]
            for section in (elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".symtab")):
                if not isinstance(section, SymbolTableSection) or section["sh_size"] > _TABLE_BYTES:
                    continue
                texts = elf.get_section(section["sh_link"])
                if texts["sh_size"] > _TABLE_BYTES:
                    continue
                found = _named(section.data(), texts.data(), elf.little_endian, names)
                placed = {name: _offset(value, loads) for name, value in found}
                if placed:
                    return {name: offset for name, offset in placed.items() if offset is not None}
    except (OSError, ELFError, ValueError, KeyError, AttributeError, TypeError, struct.error, OverflowError):
        pass
    return {}


def _named(symbols: bytes, texts: bytes, little: bool, names: re.Pattern[bytes]) -> Iterator[tuple[str, int]]:
    """Yield (name, value) of the defined functions whose name matches. A name may be stored as the end of another."""
    wanted: dict[int, str] = {}
    for match in names.finditer(texts):
        if texts[match.end() : match.end() + 1] == b"\0" and match.end() - match.start() <= _SYMBOL_BYTES:
            wanted[match.start()] = match[0].decode("ascii", "replace")
    layout = struct.Struct(("<" if little else ">") + "IBBHQQ")
    whole = len(symbols) // layout.size * layout.size
    for name, info, _other, section, value, _size in layout.iter_unpack(symbols[:whole] if wanted else b""):
        if name in wanted and info & 0xF == 2 and section and value:
            yield wanted[name], value


def read_vdso(pid: int | str = "self") -> Code | None:
    """Return the functions of the vDSO, read from the memory of process `pid`."""
    try:
        for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines():
            if line.endswith(b"[vdso]"):
                start, end = (int(part, 16) for part in line.split(None, 1)[0].split(b"-"))
                with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
                    memory.seek(start)
                    return _read(BytesIO(memory.read(end - start)))
    except (OSError, ValueError):
        return None
    return None


def _read(stream: Any) -> Code | None:
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    try:
        elf = ELFFile(stream)
        loads = [(part["p_vaddr"], part["p_memsz"], part["p_offset"]) for part in elf.iter_segments("PT_LOAD")]
        entries = []
        for section in (elf.get_section_by_name(".symtab"), elf.get_section_by_name(".dynsym")):
            if not isinstance(section, SymbolTableSection):
                continue
            texts = elf.get_section(section["sh_link"]).data()
            for value, size, name in _functions(section.data(), texts, elf.little_endian):
                offset = _offset(value, loads)
                if offset is not None:
                    entries.append((offset, size, name))
        header = elf.get_section_by_name(".eh_frame_hdr")
        begins = _begins(header.data(), header["sh_addr"]) if header is not None and elf.little_endian else ()
        starts = (_offset(begin, loads) for begin in begins)
        return Code(Table(entries), (start for start in starts if start is not None))
    except (OSError, ELFError, ValueError, KeyError, AttributeError, struct.error, OverflowError):
        return None  # a broken file has no names; its frames show as [module+offset]


def _offset(address: int, loads: list[tuple[int, int, int]]) -> int | None:
    """Return the file offset of the byte mapped at `address`."""
    for start, size, offset in loads:
        if start <= address < start + size:
            return address - start + offset
    return None


def _functions(symbols: bytes, names: bytes, little: bool) -> Iterator[tuple[int, int, str]]:
    """Yield (value, size, name) of the functions of a 64-bit symbol table, 100 times faster than pyelftools."""
    layout = struct.Struct(("<" if little else ">") + "IBBHQQ")
    whole = len(symbols) // layout.size * layout.size
    for name, info, _other, section, value, size in layout.iter_unpack(symbols[:whole]):
        if info & 0xF in (2, 10) and section and value:  # STT_FUNC, STT_GNU_IFUNC, defined here
            end = names.find(b"\0", name, name + NAME_BYTES)
            yield value, size, names[name : end if end >= 0 else name + NAME_BYTES].decode("utf-8", "replace")


def _begins(header: bytes, address: int) -> Iterator[int]:
    """Yield the addresses of the functions in the unwind table (Linux Standard Base, .eh_frame_hdr)."""
    if header[:4] != _HEADER or len(header) < 12:
        return
    count = int.from_bytes(header[8:12], "little")
    pairs = header[12 : 12 + 8 * count]
    for begin, _ in struct.iter_unpack("<ii", pairs[: len(pairs) // 8 * 8]):
        yield address + begin
