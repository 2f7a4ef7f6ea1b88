"""Read from the kernel which BPF programs are attached, how often they ran and for how long."""

from __future__ import annotations

import ctypes as ct
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from whystall.bpf.libbpf import library

_BPF_STATS_RUN_TIME = 0
# struct bpf_prog_info of include/uapi/linux/bpf.h
_INFO_BYTES, _NAME, _RUN_TIME, _RUN_COUNT = 224, slice(64, 80), 192, 200


@dataclass(frozen=True)
class Run:
    """The runs of one program while statistics were enabled."""

    name: str
    ns: int
    count: int


def links() -> frozenset[int]:
    """Return the ids of all BPF links on this machine (perf events have none)."""
    lib, found, number = library(), [], ct.c_uint32(0)
    while lib.bpf_link_get_next_id(number, ct.byref(number)) == 0:
        found.append(number.value)
    return frozenset(found)


def _ids(pid: int, field: str) -> frozenset[int]:
    found = set()
    try:
        entries = list(Path(f"/proc/{pid}/fdinfo").iterdir())
    except OSError:
        return frozenset()
    for entry in entries:
        try:
            text = entry.read_text()
        except OSError:
            continue
        for line in text.splitlines():
            name, _, value = line.partition(":")
            if name == field:
                found.add(int(value))
    return frozenset(found)


def links_of(pid: int) -> frozenset[int]:
    return _ids(pid, "link_id")


def programs_of(pid: int) -> frozenset[int]:
    return _ids(pid, "prog_id")


def foreign_links(own: Iterable[int]) -> frozenset[int]:
    """Return the links of all processes except this one and `own`."""
    return links().difference(links_of(os.getpid()), *(links_of(pid) for pid in own))


@contextmanager
def run_statistics() -> Iterator[None]:
    """Enable run-time statistics (Linux 5.8) until the block ends, or this process: they depend on a descriptor."""
    descriptor = library().bpf_enable_stats(_BPF_STATS_RUN_TIME)
    if descriptor < 0:
        raise OSError(ct.get_errno(), "the kernel's BPF statistics cannot be enabled")
    try:
        yield
    finally:
        os.close(descriptor)


def runs(programs: Iterable[int]) -> dict[int, Run]:
    """Return statistics by program id, without programs that were unloaded."""
    lib, found = library(), {}
    for number in programs:
        descriptor = lib.bpf_prog_get_fd_by_id(number)
        if descriptor < 0:
            continue
        try:
            info, size = ct.create_string_buffer(_INFO_BYTES), ct.c_uint32(_INFO_BYTES)
            if lib.bpf_obj_get_info_by_fd(descriptor, info, ct.byref(size)):
                continue
        finally:
            os.close(descriptor)
        name = info.raw[_NAME].split(b"\0")[0].decode(errors="replace")
        ns, count = (ct.c_uint64.from_buffer(info, offset).value for offset in (_RUN_TIME, _RUN_COUNT))
        found[number] = Run(name, ns, count)
    return found
