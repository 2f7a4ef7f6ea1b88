"""Read the headers of a core file: which signal ended which process. Bounded, also of half-written files.

ELF (elf.h): a core file has type ET_CORE and a program header PT_NOTE, whose notes NT_PRSTATUS (first: of the thread
that failed) and NT_PRPSINFO state signal, pid and command; Linux, 64 bits, x86-64 and AArch64.
"""

from __future__ import annotations

import signal
import struct
from typing import BinaryIO, NamedTuple

from whystall.tools.contract.text import clean

_ELF64, _LITTLE, _CORE, _NOTE = 2, 1, 4, 4
_PRSTATUS, _PRPSINFO = 1, 3
_MOST_HEADERS = 65_535
_MOST_BYTES = 1 << 62  # of a file, as far as sizes are believed
_MOST_NOTES = 1 << 20
"""Bytes of notes that are read: those of the first thread and of the process stand first."""


class CoreFile(NamedTuple):
    """What the headers state. `number` of the signal 0, `pid` -1: not stated; `missing_bytes`: what the headers
    announce and the file lacks (it was not written to its end); `complete`: the notes could be read."""

    number: int
    pid: int
    comm: str
    missing_bytes: int
    complete: bool

    @property
    def signal(self) -> str:
        """Return the name of the signal, empty if there is none."""
        try:
            return signal.Signals(self.number).name
        except ValueError:
            return f"signal {self.number}" if self.number else ""


def is_core(head: bytes) -> bool:
    """Return whether a file that begins with `head` (18 bytes) is a 64-bit core file of a little-endian machine."""
    elf = head[:4] == b"\x7fELF"
    return elf and len(head) >= 18 and head[4] == _ELF64 and head[5] == _LITTLE and head[16] == _CORE


def core_file(file: BinaryIO, size: int) -> CoreFile:
    """Return what the headers of `file`, of `size` bytes, state. Raises OSError; ValueError if it is no core file."""
    head = file.read(64)
    if not is_core(head):
        raise ValueError("no core file")
    if len(head) < 64:  # half written
        return CoreFile(0, -1, "", 0, False)
    offset, entry, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
    found = CoreFile(0, -1, "", 0, False)
    if entry < 56 or not 0 < offset < size:
        return found
    end = 0
    notes: tuple[int, int] | None = None
    file.seek(offset)
    table = file.read(entry * min(count, _MOST_HEADERS))
    for at in range(0, len(table) - 55, entry):
        kind = struct.unpack_from("<I", table, at)[0]
        place, _, _, length = struct.unpack_from("<QQQQ", table, at + 8)
        if kind == _NOTE and notes is None:
            notes = (place, length)
        end = max(end, min(place + length, _MOST_BYTES))
    found = found._replace(missing_bytes=max(end - size, 0))
    if notes is None:
        return found
    file.seek(min(notes[0], _MOST_BYTES))
    return _noted(file.read(min(notes[1], _MOST_NOTES)), found)


def _noted(data: bytes, found: CoreFile) -> CoreFile:
    at = 0
    while at + 12 <= len(data):
        name, length, kind = struct.unpack_from("<III", data, at)
        begin = at + 12 + (name + 3 & ~3)
        body = data[begin : begin + length]
        if kind == _PRSTATUS and not found.number and len(body) >= 36:
            # elf_prstatus: pr_info.si_signo at 0, pr_cursig (16 bits) at 12, pr_pid at 32
            signo, current = struct.unpack_from("<i", body, 0)[0], struct.unpack_from("<h", body, 12)[0]
            number = current or signo
            found = found._replace(number=number if 0 < number < 128 else 0, complete=True)
            if found.pid < 0:
                found = found._replace(pid=struct.unpack_from("<i", body, 32)[0])
        elif kind == _PRPSINFO and len(body) >= 56:
            # elf_prpsinfo: pr_pid at 24, pr_fname (16 bytes) at 40
            found = found._replace(pid=struct.unpack_from("<i", body, 24)[0], comm=clean(body[40:56], 16))
        at = begin + (length + 3 & ~3)
    return found
