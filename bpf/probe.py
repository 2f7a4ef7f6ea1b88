"""Test whether this process can load BPF programs: capabilities are not conclusive in a user namespace, under seccomp,
or with kernel lockdown.

A program of seven instructions is loaded and discarded; nothing is attached. Takes about 0.1 ms.
"""

from __future__ import annotations

import ctypes as ct
import errno
import os
import struct
from collections.abc import Sequence
from functools import lru_cache

from whystall.bpf import syscalls
from whystall.bpf.errors import BpfError
from whystall.bpf.libbpf import library
from whystall.bpf.perf_events import cpu_clock, online_cpus
from whystall.bpf.privileges import short_of_memlock

_PROG_LOAD = 5
_RAW_TRACEPOINT = 17
_PROBE_READ_KERNEL = 113  # enum bpf_func_id
_TIMER_NS = 10_101_010
# Upper bound of the memory of a window's maps. Kernels before 5.11 charge maps and programs to RLIMIT_MEMLOCK (later
# ones to the cgroup's memory: commit 97306be45fbe).
MEMLOCK_BYTES = 256 << 20


def refusal(*, timers: bool = False) -> BpfError | None:
    """Return why BPF programs cannot be loaded here, or None. `timers`: also test the sampling timers, which only the
    collector of samples needs.
    """
    try:
        library()
        _load(reads_kernel=True)
        _check_memlock()
        if timers:
            timer = cpu_clock(online_cpus()[0], _TIMER_NS)
            if timer is not None:
                os.close(timer)
    except BpfError as error:
        return error
    return None


def _load(*, reads_kernel: bool) -> None:
    """Load an empty program, or one that reads 8 bytes of the kernel as our programs do."""
    code = [(0xB7, 0, 0), (0x95, 0, 0)]  # r0 = 0; exit
    if reads_kernel:  # r1 = fp; r1 += -8; r2 = 8; r3 = 0; call
        code = [(0xBF, 0xA1, 0), (0x07, 1, -8), (0xB7, 2, 8), (0xB7, 3, 0), (0x85, 0, _PROBE_READ_KERNEL), *code]
    number = _try_load(code)
    if not number:
        return
    if number in (errno.EINVAL, errno.EACCES) and reads_kernel:
        _load(reads_kernel=False)  # raises if reading is not the reason
        raise BpfError(
            "lockdown",
            "the kernel lets no BPF program read its memory (lockdown: confidentiality)",
            "boot with lockdown=integrity",
        )
    raise _refused(number)


def _try_load(code: Sequence[tuple[int, int, int]]) -> int:
    """Load the instructions (operation, registers, immediate); return the error number, or 0."""
    program = ct.create_string_buffer(b"".join(struct.pack("=BBhi", op, regs, 0, imm) for op, regs, imm in code))
    licence = ct.create_string_buffer(b"GPL")
    attr = ct.create_string_buffer(
        struct.pack("=IIQQIIQII", _RAW_TRACEPOINT, len(code), ct.addressof(program), ct.addressof(licence), *[0] * 5)
    )
    fd = ct.CDLL(None, use_errno=True).syscall(_number(), _PROG_LOAD, attr, len(attr) - 1)
    if fd < 0:
        return ct.get_errno()
    os.close(fd)
    return 0


def _refused(number: int) -> BpfError:
    what = f"the kernel loads no BPF program of ours: {os.strerror(number)}"
    if number == errno.EPERM:
        return BpfError("no_privilege", what, "run as root, or with CAP_BPF and CAP_PERFMON")
    if number == errno.ENOSYS:
        return BpfError("load_failed", what, "use a kernel built with CONFIG_BPF_SYSCALL")
    return BpfError("load_failed", what, "report this with the kernel version")


def _check_memlock() -> None:
    """Raise `BpfError` if RLIMIT_MEMLOCK is too small for the maps; libbpf raises the soft limit."""
    limit = short_of_memlock()
    if limit is not None and limit < MEMLOCK_BYTES:
        raise BpfError(
            "memlock",
            f"{limit >> 10} KiB may be locked, and before Linux 5.11 BPF's maps count as locked memory",
            "raise the limit as root: ulimit -l unlimited, LimitMEMLOCK=infinity in a unit",
        )


@lru_cache(maxsize=1)
def _number() -> int:
    return next(number for number, name in syscalls.names().items() if name == "bpf")
