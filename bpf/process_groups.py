"""Read from a process's memory how many operations each of its torch.distributed process groups has begun.

Nothing has to be enabled in the job beforehand. A backend counts its collectives, gloo also sends and receives, in a
member that ``getSequenceNumberForGroup()`` returns (torch/csrc/distributed/c10d/Backend.hpp); that function is a load
and a return, so that its machine code holds the member's offset. The objects themselves are found on the stacks of the
threads that serve them (gloo's run loop, NCCL's watchdog): pointers to memory that begins with the address of the
class's virtual table, or to an object that has such a pointer (NCCL's watchdog in newer versions). The memory belongs
to another process: it is untrusted, and may change while it is read.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, NamedTuple

from whystall.bpf.python_walk import Reader
from whystall.bpf.regular_files import open_regular

_MOST_THREADS = 512
# Without threads of a known name (torch before 2.5): others to search, which takes 1 ms each.
_MOST_OTHERS = 16
_MOST_GROUPS = 256
_STACK_BYTES = 16 << 10
_KEPT_FILES = 16
_NAME_BYTES = 200
_RANKS = 1 << 20
_CODE_BYTES = 16
# Objects of threads: virtual table, then `std::thread` (Watchdog) or nothing (HeartbeatMonitor), then the group
# (torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp).
_OWNER_BYTES = 24
# Backend: virtual table, reference counts (8 bytes, 16 in other versions), then `int rank_, size_`.
_RANK_OFFSETS = (0x10, 0x18)
_HEAD_BYTES = 0x80
# Threads that serve a group: their stacks are searched first.
_SERVING = (b"pt_gloo", b"pt_nccl", b"pt_hccl", b"pt_mpi", b"pt_xccl")


class Backend(NamedTuple):
    """A class of process groups: its mangled name within ``_ZTV...E``, and part of the name of its library."""

    name: str
    mangled: str
    library: bytes


BACKENDS = (
    Backend("gloo", "N4c10d16ProcessGroupGloo", b"libtorch_cpu"),
    Backend("nccl", "N4c10d16ProcessGroupNCCL", b"libtorch_cuda"),
    Backend("nccl", "N4c10d16ProcessGroupNCCL", b"libtorch_hip"),
    Backend("ucc", "N4c10d15ProcessGroupUCC", b"libtorch_cpu"),
    Backend("mpi", "N4c10d15ProcessGroupMPI", b"libtorch_cpu"),
    Backend("xccl", "N4c10d16ProcessGroupXCCL", b"libtorch_xpu"),
    Backend("hccl", "N8c10d_npu16ProcessGroupHCCL", b"libtorch_npu"),
)


@dataclass(frozen=True)
class ProcessGroup:
    """A process group of a process. `address`: of the object; `name`: as torch numbers groups (``0``: the default
    group), and `description`: empty if unknown; `started`: operations that this rank has begun; `served`: 1 if threads
    of this process serve groups, 0 if none has such a name: it was forked from a rank, or has an old version."""

    address: int
    backend: str
    name: str
    description: str
    rank: int
    size: int
    started: int
    served: int = 0


class _Class(NamedTuple):
    """A backend in a library: the virtual table's address as linked, and the offset of the counter."""

    backend: str
    table: int
    counter: int


class _Library(NamedTuple):
    """Its classes, and its loaded segments as (address, file offset, size)."""

    classes: tuple[_Class, ...]
    segments: tuple[tuple[int, int, int], ...]


def prepare(pid: int) -> None:
    """Read the symbols of the libraries of process `pid` ahead, which takes a fraction of a second the first time.

    Raises ``OSError`` if the process ends or may not be read.
    """
    for _ in _classes(pid):
        pass


def process_groups(pid: int, memory: Reader, tids: Iterable[int]) -> list[ProcessGroup]:
    """Return the process groups of process `pid` that its threads `tids` serve or use, by address; empty without any.

    Raises ``OSError`` if the process ends or may not be read.
    """
    classes = dict(_classes(pid))
    if not classes:
        return []
    threads = list(tids)[:_MOST_THREADS]
    serving = [tid for tid in threads if _serves(pid, tid)]
    found: dict[int, ProcessGroup] = {}
    for tid in serving or threads[:_MOST_OTHERS]:
        for address, one in _objects(pid, tid, memory, classes):
            if address not in found and len(found) < _MOST_GROUPS:
                group = _read(memory, address, one)
                if group is not None:
                    found[address] = replace(group, served=int(bool(serving)))
    return [found[address] for address in sorted(found)]


def _serves(pid: int, tid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/task/{tid}/comm").read_bytes().startswith(_SERVING)
    except OSError:
        return False


def _objects(pid: int, tid: int, memory: Reader, classes: dict[int, _Class]) -> Iterator[tuple[int, _Class]]:
    """Yield the addresses of objects of `classes` that the stack of a waiting thread points to; without any, of those
    that objects have to which it points."""
    try:
        # "202 0x5593e1 0x80 ... 0x7f6e8d0ef0 0x7f6e9c1f05": the last two are the stack pointer and the program counter
        call = Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()
        stack = memory.read(int(call[-2], 16), _STACK_BYTES) if len(call) > 2 else b""
    except (OSError, ValueError, IndexError):
        return  # it runs, or its stack is shorter
    words = list(_pointers(stack))
    found = list(_of_classes(words, memory, classes))
    yield from found or _of_classes(_held(words, memory), memory, classes)


def _pointers(raw: bytes) -> Iterator[int]:
    """Yield what may be addresses of objects among the words of `raw`, each once."""
    for word in dict.fromkeys(word for (word,) in struct.iter_unpack("<Q", raw)):
        if word % 8 == 0 and 1 << 16 < word < 1 << 47:
            yield word


def _held(addresses: Iterable[int], memory: Reader) -> Iterator[int]:
    for address in addresses:
        with suppress(OSError):
            yield from _pointers(memory.read(address, _OWNER_BYTES)[8:])


def _of_classes(addresses: Iterable[int], memory: Reader, classes: dict[int, _Class]) -> Iterator[tuple[int, _Class]]:
    for address in addresses:
        with suppress(OSError):
            table = int.from_bytes(memory.read(address, 8), "little")
            if table in classes:
                yield address, classes[table]


def _read(memory: Reader, address: int, one: _Class) -> ProcessGroup | None:
    """Return the group at `address`; None if it does not look like one."""
    try:
        head = memory.read(address, _HEAD_BYTES)
        started = int.from_bytes(memory.read(address + one.counter, 8), "little")
    except OSError:
        return None
    for offset in _RANK_OFFSETS:
        rank, size = struct.unpack_from("<ii", head, offset)
        if 0 <= rank < size <= _RANKS and started < 1 << 48:
            texts = [*_strings(memory, address, head, offset + 8), "", ""]
            return ProcessGroup(address, one.backend, texts[0], texts[1], rank, size, started)
    return None


def _strings(memory: Reader, address: int, head: bytes, since: int) -> Iterator[str]:
    """Yield the strings of libstdc++ within `head`: pointer, length, and 16 bytes that hold a short one."""
    at = since
    while at + 32 <= len(head):
        pointer, length, room = struct.unpack_from("<QQQ", head, at)
        short = pointer == address + at + 16
        if length <= (15 if short else min(room, _NAME_BYTES)) and (short or pointer > 1 << 16):
            try:
                text = (head[at + 16 : at + 16 + length] if short else memory.read(pointer, length)).decode("ascii")
            except (OSError, UnicodeDecodeError):
                text = "\0"
            if text.isprintable() and (short or text):
                yield text
                at += 32
                continue
        at += 8


# --- classes ----------------------------------------------------------------------------------------------------


def _classes(pid: int) -> Iterator[tuple[int, _Class]]:
    """Yield the classes in the libraries of a process, by the address that its objects begin with."""
    done: set[bytes] = set()
    for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines():
        # 7f6e87a00000-7f6e8a000000 r--p 00000000 fe:00 812345   /opt/venv/lib/torch/lib/libtorch_cpu.so
        fields = line.split(None, 5)
        if len(fields) < 6 or fields[5] in done:
            continue
        backends = tuple(one for one in BACKENDS if one.library in os.path.basename(fields[5]))
        if not backends:
            continue
        done.add(fields[5])
        start, end = (int(part, 16) for part in fields[0].split(b"-"))
        library = _library((fields[5], fields[3], fields[4]), f"/proc/{pid}/map_files/{start:x}-{end:x}", backends)
        bias = _bias(library, start, int(fields[2], 16)) if library is not None else None
        if library is not None and bias is not None:
            for one in library.classes:
                yield bias + one.table + 16, one  # objects point behind the offset to top and the type information


def _bias(library: _Library, start: int, mapped: int) -> int | None:
    """Return the difference between addresses in the process and as linked."""
    for address, offset, size in library.segments:
        if offset & ~0xFFF <= mapped < offset + size:
            return start - (address - (offset - mapped))
    return None


_libraries: OrderedDict[tuple[bytes, bytes, bytes], _Library | None] = OrderedDict()


def _library(key: tuple[bytes, bytes, bytes], path: str, backends: tuple[Backend, ...]) -> _Library | None:
    if key not in _libraries:
        _libraries[key] = _parsed(path, backends)
        while len(_libraries) > _KEPT_FILES:
            _libraries.popitem(last=False)
    return _libraries[key]


def _parsed(path: str, backends: tuple[Backend, ...]) -> _Library | None:
    """Read the classes of an ELF file, by its hash table; None if it is unreadable or broken."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile
    from elftools.elf.hash import GNUHashSection

    try:
        with open(open_regular(path), "rb") as stream:
            elf = ELFFile(stream)
            segments = tuple((s["p_vaddr"], s["p_offset"], s["p_filesz"]) for s in elf.iter_segments("PT_LOAD"))
            symbols = elf.get_section_by_name(".gnu.hash")
            classes = []
            for backend in backends:
                if not isinstance(symbols, GNUHashSection):
                    break
                table = symbols.get_symbol(f"_ZTV{backend.mangled}E")
                getter = symbols.get_symbol(f"_Z{backend.mangled}25getSequenceNumberForGroupEv")
                if table is None or getter is None:
                    continue
                code = _bytes(stream, segments, getter["st_value"])
                offset = counter_offset(code, elf["e_machine"])
                if offset is not None:
                    classes.append(_Class(backend.name, table["st_value"], offset))
            return _Library(tuple(classes), segments)
    except (OSError, ELFError, ValueError, KeyError, AttributeError, TypeError, struct.error):
        return None


def _bytes(stream: IO[bytes], segments: tuple[tuple[int, int, int], ...], address: int) -> bytes:
    for start, offset, size in segments:
        if start <= address < start + size:
            stream.seek(offset + address - start)
            return stream.read(_CODE_BYTES)
    return b""


def counter_offset(code: bytes, machine: str) -> int | None:
    """Return the offset that a function loads from its object and returns; None if it does anything else.

    x86-64: ``48 8b 87 c8 01 00 00  c3`` is ``mov rax, [rdi+0x1c8]; ret``; the offset may be one byte (``48 8b 47``).
    aarch64: ``ldr x0, [x0, #0x1c8]; ret``. A landing pad (endbr64, bti) may precede.
    """
    if machine == "EM_X86_64":
        code = code.removeprefix(b"\xf3\x0f\x1e\xfa")
        for head, form in ((b"\x48\x8b\x87", "<i"), (b"\x48\x8b\x47", "<b")):
            end = len(head) + struct.calcsize(form)
            if code.startswith(head) and code[end : end + 1] == b"\xc3":
                (offset,) = struct.unpack_from(form, code, len(head))
                return int(offset) if offset > 0 else None
    if machine == "EM_AARCH64" and len(code) >= 12:
        words = struct.unpack_from("<III", code)
        load, leave = words[1:] if words[0] & 0xFFFFFF3F == 0xD503241F else words[:2]
        if load & 0xFFC003FF == 0xF9400000 and leave == 0xD65F03C0:
            return int(load >> 10 & 0xFFF) * 8
    return None
