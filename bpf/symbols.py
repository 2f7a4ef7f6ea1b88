"""Names of code addresses: kernel from /proc/kallsyms, user from ELF files and perf maps.

Lazy and cached. Names are untrusted text (an ELF file, a map in /tmp): cut at ``NAME_BYTES`` here, sanitised by the
callers. An address without a name becomes ``[module+0x1f]``.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from whystall.bpf.elf_symbols import NAME_BYTES, Code, Table, read_file, read_vdso
from whystall.bpf.regular_files import open_regular

_KEPT_FILES = 64  # ELF tables kept; the oldest goes
_OPEN_FILES = 256
_PERF_MAP_BYTES = 64 << 20
_NOWHERE = "[unknown]"
# "7f00-7f10 r-xp 00000000 08:01 1234   /path" of a maps file
_EXECUTABLE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) ..x. ([0-9a-f]+) (\S+) ([0-9]+) *([^\n]*)$", re.MULTILINE)
_HOOK_DEPTH = 8  # the hook's own frames lie within the innermost few
_CODE = frozenset((b"t", b"T", b"w", b"W"))
_FARTHEST = 1 << 20  # no kernel function is longer: farther addresses have no symbol
_HOOK = re.compile(r"^(bpf_trace_run\d+|__bpf_trace_\w+|__traceiter_\w+)")
# the scheduler's own functions (kernel/sched/core.c, kernel/time): not the reason of a wait
_SCHEDULER = re.compile(
    r"^(__schedule|schedule|__schedule_loop|preempt_schedule\w*|__cond_resched|schedule_\w+|io_schedule\w*|do_nanosleep)$"
)


class KernelSymbols:
    """Names of kernel functions, cached until `refresh`. The table (some 120,000 lines) is not kept: one pass of about
    60 ms names all addresses of a `prepare`.
    """

    def __init__(self, source: Path = Path("/proc/kallsyms")) -> None:
        self._source = source
        self._names: dict[int, str] = {}
        self._hidden: bool | None = None

    def refresh(self) -> None:
        """Forget all names: addresses of unloaded modules and BPF programs are reused."""
        self._names.clear()
        self._hidden = None

    @property
    def hidden(self) -> bool:
        """Return whether the kernel hides its addresses (all zero under kptr_restrict)."""
        if self._hidden is None:
            self._hidden = all(line[:16] == b"0" * 16 for line in self._functions())
        return self._hidden

    def prepare(self, addresses: Iterable[int]) -> None:
        """Name `addresses` in one pass; known ones are free."""
        wanted = sorted({address for address in addresses if address not in self._names})
        if not wanted:
            return
        # Addresses have a fixed width in the table, so text sorts as numbers.
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
        """Return the function at an address, ``[kernel+0x...]`` if unknown."""
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
        """Yield the table's lines of functions; none if it is unreadable."""
        try:
            with self._source.open("rb", buffering=1 << 16) as table:
                for line in table:
                    if line[17:18] in _CODE:
                        yield line
        except OSError:
            return

    def frames(self, addresses: Iterable[int]) -> list[str]:
        """Return names, innermost first; all but the first address are return addresses."""
        callers = [address - bool(at) for at, address in enumerate(addresses)]
        self.prepare(callers)
        return [self._names[address] for address in callers]

    def stack(self, addresses: Iterable[int]) -> list[str]:
        """Return names, innermost first, without the frames of the hook and of the scheduler."""
        # a return address may lie just behind its function, if the call was its last instruction
        callers = [address - 1 for address in addresses]
        self.prepare(callers)
        names = [self._names[address] for address in callers]
        hooks = [at for at, name in enumerate(names[:_HOOK_DEPTH]) if _HOOK.match(name)]
        start = hooks[-1] + 1 if hooks else 0
        while start < len(names) - 1 and _SCHEDULER.match(names[start]):
            start += 1
        return names[start:]


class Frame(NamedTuple):
    """A function, and the path of its mapped file as that process sees it; empty: none."""

    name: str
    module: str


class _Mapping(NamedTuple):
    start: int
    end: int
    offset: int
    path: str
    identity: tuple[str, str]
    """Device and inode from the maps file."""
    deleted: bool = False
    """That path is now another file, or none."""

    @property
    def file(self) -> _File | None:
        """Return the mapped file; None: anonymous memory, or jitted code."""
        if not self.path.startswith("/") or self.path.startswith(("/memfd:", "/dev/zero")):
            return None
        return self.path, self.identity


_File = tuple[str, tuple[str, str]]


class OpenFiles:
    """Keeps at most 256 files that processes mapped during a window open, so that their symbols can be read after the
    process has exited. Close it at the window's end.
    """

    def __init__(self) -> None:
        self._descriptors: dict[_File, int] = {}

    def keep(self, pid: int, mapping: _Mapping) -> None:
        """Open the file of `mapping` of process `pid` unless it is open."""
        file = mapping.file
        if file is None or file in self._descriptors or len(self._descriptors) >= _OPEN_FILES:
            return
        for path in _paths(pid, mapping):
            with contextlib.suppress(OSError):
                self._descriptors[file] = open_regular(path)
                return

    def path(self, file: _File) -> str | None:
        """Return a path by which an open file can be read; None when it is not open."""
        descriptor = self._descriptors.get(file)
        return None if descriptor is None else f"/proc/self/fd/{descriptor}"

    def close(self) -> None:
        """Close them all."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


class ProcessSymbols:
    """Symbols of one process, from a snapshot of its mappings: take it while the process lives."""

    def __init__(self, pid: int, files: OpenFiles | None = None) -> None:
        self.pid = pid
        self._files = files
        self._mappings: list[_Mapping] = []
        self._ends: list[int] = []
        self._perf: Table | None = None
        self._codes: dict[_File, Code | None] = {}
        self.update()

    def update(self) -> None:
        """Add new mappings of the process (libraries, another program); removed ones stay known."""
        fresh = list(_mappings(self.pid))
        if fresh == self._mappings:
            return
        starts = [mapping.start for mapping in fresh]
        gone = []
        for old in self._mappings:
            at = bisect.bisect_right(starts, old.start) - 1
            if (at < 0 or fresh[at].end <= old.start) and (at + 1 == len(fresh) or starts[at + 1] >= old.end):
                gone.append(old)
        self._mappings = sorted(fresh + gone)
        self._ends = [mapping.end for mapping in self._mappings]

    def keep(self, addresses: Iterable[int]) -> bool:
        """Keep the files of code at `addresses` open; return whether all addresses lie in known mappings."""
        found = [self._mapping(address) for address in addresses]
        if self._files is not None:
            for mapping in found:
                if mapping is not None:
                    self._files.keep(self.pid, mapping)
        return None not in found

    def name(self, address: int) -> str:
        """Return the function at an address; ``[module+0x...]`` (its start in the file) without a name, ``[unknown]``
        outside all mappings."""
        return self.frame(address).name

    def frame(self, address: int) -> Frame:
        """Return the function at an address, as `name` does, and its module."""
        mapping = self._mapping(address)
        if mapping is None:
            return Frame(self._from_perf_map(address) or _NOWHERE, "")
        if mapping.file is None:
            if mapping.path == "[vdso]":
                name, begin = (_vdso() or Code(Table(()))).find(address - mapping.start)
                return Frame(name or f"[vdso+{begin:#x}]", "")
            found = self._from_perf_map(address)
            return Frame(found or f"[{mapping.path.strip('[]') or 'anonymous'}+{address - mapping.start:#x}]", "")
        in_file = address - mapping.start + mapping.offset
        code = self._code(mapping, mapping.file)
        name, begin = code.find(in_file) if code is not None else ("", in_file)
        return Frame(name or f"[{os.path.basename(mapping.path)[:NAME_BYTES]}+{begin:#x}]", mapping.path)

    def stack(self, addresses: Iterable[int]) -> list[str]:
        """Return names, innermost first; all but the first address are return addresses."""
        return [self.name(address - bool(at)) for at, address in enumerate(addresses)]

    def frames(self, addresses: Iterable[int]) -> list[Frame]:
        """Return frames, innermost first, up to the first caller outside all code: without frame pointers the stack
        walk finds arbitrary numbers instead of return addresses."""
        found: list[Frame] = []
        for at, address in enumerate(addresses):
            frame = self.frame(address - bool(at))
            if at and frame.name == _NOWHERE:
                break
            found.append(frame)
        return found

    def _mapping(self, address: int) -> _Mapping | None:
        at = bisect.bisect_right(self._ends, address)
        mapping = self._mappings[at] if at < len(self._mappings) else None
        return None if mapping is None or address < mapping.start else mapping

    def _code(self, mapping: _Mapping, file: _File) -> Code | None:
        """Return the functions of a mapped file; None when it has none or cannot be read."""
        if file not in self._codes:
            kept = self._files.path(file) if self._files is not None else None
            paths = [kept] if kept is not None else _paths(self.pid, mapping)
            self._codes[file] = next((code for path in paths if (code := _functions(path)) is not None), None)
        return self._codes[file]

    def _from_perf_map(self, address: int) -> str | None:
        if self._perf is None:
            self._perf = Table(_perf_map(self.pid))
        found = self._perf.find(address)
        return found[0] if found is not None else None


def executed_files(pid: int) -> dict[_File, list[str]]:
    """Return the files that process `pid` maps executable (its program, libraries), and paths by which to open each:
    the path as the process sees it need not be ours. Empty if the process has ended."""
    found: dict[_File, list[str]] = {}
    for mapping in _mappings(pid):
        if mapping.file is not None:
            found.setdefault(mapping.file, _paths(pid, mapping))
    return found


_Version = tuple[int, int, int, int]
"""Device, inode, size and time of the last change (ns): a library may be overwritten in place."""
_codes: OrderedDict[_Version, Code | None] = OrderedDict()


def _functions(path: str) -> Code | None:
    """Return the functions of the ELF file `path`, from the cache when this version of the file was read before."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if version not in _codes:
        _codes[version] = read_file(path)
        while len(_codes) > _KEPT_FILES:
            _codes.popitem(last=False)
    _codes.move_to_end(version)
    return _codes[version]


def _paths(pid: int, mapping: _Mapping) -> list[str]:
    """Return the paths of a mapped file outside the process's root. The first is the mapped file itself and requires
    CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN."""
    itself = f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}"
    return [itself] if mapping.deleted else [itself, f"/proc/{pid}/root{mapping.path}"]


def _mappings(pid: int) -> Iterable[_Mapping]:
    try:
        text = Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return
    for start, end, offset, device, inode, path in _EXECUTABLE.findall(text):
        identity = (device.decode(), inode.decode())
        shown = path.decode("utf-8", "surrogateescape")
        name = shown.removesuffix(" (deleted)")
        yield _Mapping(int(start, 16), int(end, 16), int(offset, 16), name, identity, name != shown)


def _perf_map(pid: int) -> Iterable[tuple[int, int, str]]:
    """Yield the lines of a JIT's or ``python -X perf``'s map: ``7f12a0 1c py::main:/app/train.py``."""
    inside = pid
    try:
        for line in Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines():
            if line.startswith("NSpid:"):
                inside = int(line.split()[-1])  # the name has the pid in the process's own namespace
        # any user may create a link there
        with open(open_regular(f"/proc/{pid}/root/tmp/perf-{inside}.map", os.O_NOFOLLOW), "rb") as file:
            if os.fstat(file.fileno()).st_size > _PERF_MAP_BYTES:
                return
            lines = file.read().splitlines()
    except (OSError, ValueError):
        return
    for raw in lines:
        fields = raw.split(None, 2)
        if len(fields) == 3:
            try:
                yield int(fields[0], 16), int(fields[1], 16), fields[2].decode("utf-8", "replace")
            except ValueError:
                continue


@lru_cache(maxsize=1)
def _vdso() -> Code | None:
    return read_vdso()


@lru_cache(maxsize=1)
def kernel() -> KernelSymbols:
    """Return the running kernel's symbols, shared. Call `refresh` on them once per window."""
    return KernelSymbols()
