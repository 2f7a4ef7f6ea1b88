"""Names of code addresses: kernel from /proc/kallsyms, user from ELF files and perf maps.

Lazy and cached. Names are text from strangers (an ELF file, a map in /tmp): cut at ``NAME_BYTES``
here, sanitised above. What has no name becomes ``[module+0x1f]``; never guessed.
"""

from __future__ import annotations

import bisect
import os
import re
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

NAME_BYTES = 200
_KEPT_FILES = 64  # ELF tables kept; the oldest goes
_PERF_MAP_BYTES = 64 << 20
_ELF_BYTES = 1 << 30  # larger files get no symbols
_HOOK_DEPTH = 8  # the hook's own frames lie within the innermost few
_CODE = frozenset((b"t", b"T", b"w", b"W"))
_FARTHEST = 1 << 20  # no kernel function is longer: such an address lies in code that has no symbol
_HOOK = re.compile(r"^(bpf_trace_run\d+|__bpf_trace_\w+|__traceiter_\w+)")
# the kernel's own way off the CPU (kernel/sched/core.c, kernel/time): says nothing about the reason
_SCHEDULER = re.compile(
    r"^(__schedule|schedule|__schedule_loop|preempt_schedule\w*|__cond_resched|schedule_\w+|io_schedule\w*|do_nanosleep)$"
)


class Table:
    """Sorted starts and the names that begin there; a name holds up to the next start or its own end."""

    def __init__(self, entries: Iterable[tuple[int, int, str]]) -> None:
        """Entries are (start, size or 0, name)."""
        ordered = sorted(entries)
        self._starts = array("Q", (entry[0] for entry in ordered))
        self._sizes = array("Q", (entry[1] for entry in ordered))
        self._names = [entry[2][:NAME_BYTES] for entry in ordered]

    def __len__(self) -> int:
        return len(self._starts)

    def find(self, address: int) -> tuple[str, int] | None:
        """Name and offset into it."""
        at = bisect.bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        offset = address - self._starts[at]
        if self._sizes[at] and offset >= self._sizes[at]:
            return None
        return self._names[at], offset


class KernelSymbols:
    """Kernel functions. The table (some 120,000 lines) is not kept: a pass over it, about 60 ms, names all addresses
    that are asked for at once (`prepare`). Empty when the kernel hides addresses.
    """

    def __init__(self, source: Path = Path("/proc/kallsyms")) -> None:
        self._source = source
        self._names: dict[int, str] = {}
        self._hidden: bool | None = None

    @property
    def hidden(self) -> bool:
        """Whether the kernel's addresses cannot be read (all are zero under kptr_restrict)."""
        if self._hidden is None:
            self._hidden = all(line[:16] == b"0" * 16 for line in self._functions())
        return self._hidden

    def prepare(self, addresses: Iterable[int]) -> None:
        """Name `addresses` in one pass; those known already cost nothing."""
        wanted = sorted({address for address in addresses if address not in self._names})
        if not wanted:
            return
        # Addresses have one width in the table, so the order of text is the order of numbers.
        keys = [b"%016x" % address for address in wanted]
        nearest: list[bytes] = [b""] * len(keys)
        for line in self._functions():
            at = bisect.bisect_left(keys, line[:16])  # the first address at or behind this function's start
            if at < len(keys) and line > nearest[at]:
                nearest[at] = line
        best = b""
        for address, line in zip(wanted, nearest, strict=True):
            best = max(best, line)  # a function that starts before the previous address may reach this one
            self._names[address] = self._called(address, best)

    def name(self, address: int) -> str:
        """Function at an address, ``[kernel+0x...]`` when unknown."""
        self.prepare([address])
        return self._names[address]

    @staticmethod
    def _called(address: int, line: bytes) -> str:
        # "ffffffff81000000 T name\t[module]"
        start = int(line[:16], 16) if line else 0
        if not start or address - start > _FARTHEST:
            return f"[kernel+{address:#x}]"
        return line[19:].split(b"\t", 1)[0].rstrip(b"\n").decode("ascii", "replace")[:NAME_BYTES]

    def _functions(self) -> Iterator[bytes]:
        """The table's lines that are code; none when it cannot be read."""
        try:
            with self._source.open("rb", buffering=1 << 16) as table:
                for line in table:
                    if line[17:18] in _CODE:
                        yield line
        except OSError:
            return

    def stack(self, addresses: Iterable[int]) -> list[str]:
        """Names, innermost first, without the frames of the hook and of the scheduler's own switch."""
        # a return address may lie just behind its function, when the call was the function's last word
        callers = [address - 1 for address in addresses]
        self.prepare(callers)
        names = [self._names[address] for address in callers]
        hooks = [at for at, name in enumerate(names[:_HOOK_DEPTH]) if _HOOK.match(name)]
        start = hooks[-1] + 1 if hooks else 0
        while start < len(names) - 1 and _SCHEDULER.match(names[start]):
            start += 1
        return names[start:]


class _Mapping(NamedTuple):
    start: int
    end: int
    offset: int
    path: str
    identity: tuple[str, str]
    """Device and inode as the maps file says them."""


class ProcessSymbols:
    """Symbols of one process, from a snapshot of its mappings; take it while the process lives."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._mappings = list(_mappings(pid))
        self._ends = [mapping.end for mapping in self._mappings]
        self._perf: Table | None = None

    def name(self, address: int) -> str:
        """Function at an address; ``[module+0x...]`` (offset in the file) when unknown, ``[unknown]``
        outside of all mappings."""
        at = bisect.bisect_right(self._ends, address)
        mapping = self._mappings[at] if at < len(self._mappings) else None
        if mapping is None or address < mapping.start:
            return self._from_perf_map(address) or "[unknown]"
        if not mapping.path.startswith("/") or mapping.path.startswith(("/memfd:", "/dev/zero")):  # jitted code
            found = self._from_perf_map(address)
            return found or f"[{mapping.path.strip('[]') or 'anonymous'}+{address - mapping.start:#x}]"
        in_file = address - mapping.start + mapping.offset
        table = _elf_table(self.pid, mapping)
        found_in = table.find(in_file) if table is not None else None
        if found_in is not None:
            return found_in[0]
        return f"[{os.path.basename(mapping.path)[:NAME_BYTES]}+{in_file:#x}]"

    def stack(self, addresses: Iterable[int]) -> list[str]:
        """Names, innermost first; all but the first address are return addresses."""
        return [self.name(address - bool(at)) for at, address in enumerate(addresses)]

    def _from_perf_map(self, address: int) -> str | None:
        if self._perf is None:
            self._perf = Table(_perf_map(self.pid))
        found = self._perf.find(address)
        return found[0] if found is not None else None


def _mappings(pid: int) -> Iterable[_Mapping]:
    try:
        text = Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return
    for line in text.splitlines():
        fields = line.split(None, 5)
        if len(fields) < 5 or b"x" not in fields[1]:
            continue
        start, end = (int(part, 16) for part in fields[0].split(b"-"))
        path = fields[5].decode("utf-8", "surrogateescape") if len(fields) > 5 else ""
        identity = (fields[3].decode(), fields[4].decode())
        yield _Mapping(start, end, int(fields[2], 16), path.removesuffix(" (deleted)"), identity)


def _perf_map(pid: int) -> Iterable[tuple[int, int, str]]:
    """``START SIZE name`` lines (hexadecimal) that a JIT, or Python with ``-X perf``, writes."""
    inside = pid
    try:
        for line in Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines():
            if line.startswith("NSpid:"):
                inside = int(line.split()[-1])  # the map is named as the process knows itself
        path = Path(f"/proc/{pid}/root/tmp/perf-{inside}.map")
        if path.stat().st_size > _PERF_MAP_BYTES:
            return
        lines = path.read_bytes().splitlines()
    except (OSError, ValueError):
        return
    for raw in lines:
        fields = raw.split(None, 2)
        if len(fields) == 3:
            try:
                yield int(fields[0], 16), int(fields[1], 16), fields[2].decode("utf-8", "replace")
            except ValueError:
                continue


_tables: OrderedDict[tuple[str, tuple[str, str]], Table | None] = OrderedDict()


def _elf_table(pid: int, mapping: _Mapping) -> Table | None:
    """Function table of a mapped file by file offset; None when it has none or cannot be read."""
    key = (mapping.path, mapping.identity)
    if key not in _tables:
        _tables[key] = _read_elf(f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}") or _read_elf(
            f"/proc/{pid}/root{mapping.path}"
        )
        while len(_tables) > _KEPT_FILES:
            _tables.popitem(last=False)
    _tables.move_to_end(key)
    return _tables[key]


def _read_elf(path: str) -> Table | None:
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    try:
        with open(path, "rb") as stream:
            if os.fstat(stream.fileno()).st_size > _ELF_BYTES:
                return None
            elf = ELFFile(stream)
            loads = [
                (segment["p_vaddr"], segment["p_memsz"], segment["p_offset"])
                for segment in elf.iter_segments("PT_LOAD")
            ]
            entries = []
            for section in (elf.get_section_by_name(".symtab"), elf.get_section_by_name(".dynsym")):
                if not isinstance(section, SymbolTableSection):
                    continue
                for symbol in _functions(section.data(), elf.get_section(section["sh_link"]).data(), elf.little_endian):
                    for address, size, offset in loads:
                        if address <= symbol[0] < address + size:
                            entries.append((symbol[0] - address + offset, symbol[1], symbol[2]))
                            break
            return Table(entries)
    except (OSError, ELFError, ValueError, KeyError, AttributeError):
        return None  # a broken file has no names; its frames show as [module+offset]


def _functions(symbols: bytes, names: bytes, little: bool) -> Iterable[tuple[int, int, str]]:
    """(value, size, name) of the functions of a 64-bit symbol table; a hundred times faster than going
    through the library's objects."""
    import struct

    layout = struct.Struct(("<" if little else ">") + "IBBHQQ")
    whole = len(symbols) // layout.size * layout.size
    for name, info, _other, section, value, size in layout.iter_unpack(symbols[:whole]):
        if info & 0xF in (2, 10) and section and value:  # STT_FUNC, STT_GNU_IFUNC, defined here
            end = names.find(b"\0", name, name + NAME_BYTES)
            yield value, size, names[name : end if end >= 0 else name + NAME_BYTES].decode("utf-8", "replace")


@lru_cache(maxsize=1)
def kernel() -> KernelSymbols:
    """The running kernel's symbols, shared."""
    return KernelSymbols()
