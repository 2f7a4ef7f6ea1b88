"""Find the CPython interpreter in a process, and verify its memory layout."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from whystall.bpf import layout as lay
from whystall.bpf.python_offsets import (
    PUBLISHED_BYTES,
    Offsets,
    UnknownLayout,
    offsets_of,
    published,
)
from whystall.bpf.python_walk import Memory, Reader, Runtime, thread_number, threads, word
from whystall.bpf.regular_files import open_regular

_NAME = re.compile(r"^(?:lib)?python3?(?:\.(\d+))?(d|t|dm)?(?:$|[-.])")
_KEPT_FILES = 64
_ELF_BYTES = 1 << 30
_SYMBOLS = ("_PyRuntime", "PyCode_Type", "Py_Version")


class NotReady(Exception):
    """The interpreter is not initialized yet, or is ending: try again."""


class Image(NamedTuple):
    """Parts of an executable or library: symbols by name (addresses as linked), the address of the section .PyRuntime,
    loaded segments as (address, file offset, size), the value of ``Py_Version`` (0: none)."""

    symbols: dict[str, int]
    section: int
    segments: tuple[tuple[int, int, int], ...]
    version: int


@dataclass(frozen=True)
class _Mapped:
    path: str
    start: int
    end: int
    offset: int
    identity: tuple[str, str]


def find(pid: int, *, named_only: bool = False) -> Runtime | None:
    """Return the interpreter of process `pid`; None if it is not a Python process.

    `named_only`: read only mapped files named like Python, not other executables, which may embed an interpreter.
    Raises `UnknownLayout` (frames cannot be walked), `NotReady`, ``OSError``.
    """
    for mapped in _candidates(pid, named_only):
        image = _image(pid, mapped)
        if image is None or not (image.section or "_PyRuntime" in image.symbols):
            continue
        bias = _bias(image, mapped)
        if bias is None:
            continue
        with Memory(pid) as memory:
            runtime = _runtime(memory, image, bias, mapped.path)
            check(memory, runtime, tasks_of(pid))
            return runtime
    return None


def check(memory: Reader, runtime: Runtime, tasks: dict[int, int]) -> None:
    """Verify that the interpreter's threads are the process's `tasks` (see `tasks_of`).

    Raises `UnknownLayout`, `NotReady`.
    """
    version = f"CPython 3.{runtime.minor}"
    try:
        if not word(memory, runtime.address + runtime.offsets.interpreters_head):
            raise NotReady(f"{version} is not initialized")
        found = list(threads(memory, runtime))
    except OSError:
        raise UnknownLayout(f"{version}, with another memory layout") from None
    if not found or not any(thread.number for thread in found):
        raise NotReady(f"{version} is not initialized")
    if not all(thread.consistent for thread in found):
        raise UnknownLayout(f"{version}, with another memory layout (a debug build?)")
    by_pointer = runtime.offsets.flags & lay.PYTHON_THREAD_BY_POINTER
    if not by_pointer and not any(thread_number(memory, runtime, thread, tasks) for thread in found):
        raise UnknownLayout(f"{version}, with another memory layout (a debug build?)")


def _runtime(memory: Memory, image: Image, bias: int, path: str) -> Runtime:
    address = (image.symbols.get("_PyRuntime") or image.section) + bias
    code_type = image.symbols.get("PyCode_Type", 0)
    base = os.path.basename(path)
    named = _NAME.match(base)
    known = published(memory.read(address, PUBLISHED_BYTES))
    if known is not None:
        minor, offsets = known
    else:
        minor = image.version >> 16 & 0xFF if image.version >> 24 == 3 else 0
        if not minor and named and named[1]:
            minor = int(named[1])
        if not minor:
            raise UnknownLayout(f"an unknown version ({base[:64]})")
        if named and named[2]:
            raise UnknownLayout(f"CPython 3.{minor}, a debug build")
        offsets = offsets_of(minor)
    return Runtime(
        minor=minor,
        address=address,
        offsets=offsets,
        code_type=code_type + bias if code_type else 0,
        pthread_bytes=_pthread_bytes(offsets),
    )


def _pthread_bytes(offsets: Offsets) -> int:
    """Return 0: on x86_64 the thread pointer equals pthread_self. On aarch64 they differ by an unpublished size."""
    if os.uname().machine == "x86_64" or not offsets.flags & lay.PYTHON_THREAD_BY_POINTER:
        return 0
    raise UnknownLayout("CPython 3.10 on this machine")


def _candidates(pid: int, named_only: bool) -> list[_Mapped]:
    """Return mapped files that may hold the interpreter, libraries first; each by its first mapping."""
    found: dict[str, _Mapped] = {}
    try:
        text = Path(f"/proc/{pid}/maps").read_bytes()
    except PermissionError:
        raise
    except OSError:
        return []
    for line in text.splitlines():
        fields = line.split(None, 5)
        if len(fields) < 6 or not fields[5].startswith(b"/"):
            continue
        path = fields[5].decode("utf-8", "surrogateescape").removesuffix(" (deleted)")
        if path not in found:
            start, end = (int(part, 16) for part in fields[0].split(b"-"))
            identity = (fields[3].decode(), fields[4].decode())
            found[path] = _Mapped(path, start, end, int(fields[2], 16), identity)
    named = [m for m in found.values() if _NAME.match(os.path.basename(m.path))]
    named.sort(key=lambda m: not os.path.basename(m.path).startswith("lib"))
    if not named_only and not named:
        try:
            exe = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
        except OSError:
            return named
        named.extend(m for path, m in found.items() if path == exe)
    return named


def _bias(image: Image, mapped: _Mapped) -> int | None:
    """Return the difference between addresses in the process and as linked."""
    for address, offset, size in image.segments:
        page = offset & ~0xFFF
        if page <= mapped.offset < offset + size:
            return mapped.start - (address - (offset - mapped.offset))
    return None


def tasks_of(pid: int) -> dict[int, int]:
    """Return host thread ids by the ids in the process's own pid namespace."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/task"):
        try:
            status = Path(f"/proc/{pid}/task/{name}/status").read_bytes()
        except OSError:
            continue  # the thread ended
        at = status.find(b"\nNSpid:")
        line = status[at + 7 : status.find(b"\n", at + 1)].split() if at >= 0 else [name.encode()]
        found[int(line[-1])] = int(name)
    return found


_images: OrderedDict[tuple[str, tuple[str, str]], Image | None] = OrderedDict()


def _image(pid: int, mapped: _Mapped) -> Image | None:
    key = (mapped.path, mapped.identity)
    if key not in _images:
        _images[key] = read_image(f"/proc/{pid}/map_files/{mapped.start:x}-{mapped.end:x}") or read_image(
            f"/proc/{pid}/root{mapped.path}"
        )
        while len(_images) > _KEPT_FILES:
            _images.popitem(last=False)
    _images.move_to_end(key)
    return _images[key]


def read_image(path: str) -> Image | None:
    """Read an ELF file; None if it is unreadable or broken."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with open(open_regular(path), "rb") as stream:
            if os.fstat(stream.fileno()).st_size > _ELF_BYTES:
                return None
            elf = ELFFile(stream)
            segments = tuple((s["p_vaddr"], s["p_offset"], s["p_filesz"]) for s in elf.iter_segments("PT_LOAD"))
            symbols: dict[str, int] = {}
            for name in (".dynsym", ".symtab"):
                table = elf.get_section_by_name(name)
                if table is not None and "_PyRuntime" not in symbols:
                    symbols |= _wanted(table.data(), elf.get_section(table["sh_link"]).data(), elf.little_endian)
            section = elf.get_section_by_name(".PyRuntime")
            version = 0
            for address, offset, size in segments:
                at = symbols.get("Py_Version", -1) - address
                if 0 <= at <= size - 4:
                    stream.seek(offset + at)
                    version = int.from_bytes(stream.read(4), "little")
            return Image(symbols, section["sh_addr"] if section is not None else 0, segments, version)
    except (OSError, ELFError, ValueError, KeyError, AttributeError, TypeError):
        return None


def _wanted(symbols: bytes, names: bytes, little: bool) -> dict[str, int]:
    """Return the `_SYMBOLS` defined in a 64-bit symbol table."""
    import struct

    positions = {}
    for name in _SYMBOLS:
        at = names.find(b"\0" + name.encode() + b"\0")
        if at >= 0:
            positions[at + 1] = name
    if not positions:
        return {}
    layout = struct.Struct(("<" if little else ">") + "IBBHQQ")
    whole = len(symbols) // layout.size * layout.size
    return {
        positions[at]: value
        for at, _info, _other, section, value, _size in layout.iter_unpack(symbols[:whole])
        if at in positions and section and value
    }
