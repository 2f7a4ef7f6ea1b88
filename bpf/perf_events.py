"""Open the kernel's sampling timers: one software event ``cpu-clock`` per CPU, without perf's ring buffer."""

from __future__ import annotations

import ctypes as ct
import errno
import os
from functools import lru_cache
from pathlib import Path

from whystall.bpf import syscalls
from whystall.bpf.errors import BpfError

_TYPE_SOFTWARE = 1
_COUNT_CPU_CLOCK = 0
_DISABLED = 1 << 0
_FLAG_CLOEXEC = 1 << 3
_ONLINE = Path("/sys/devices/system/cpu/online")


class _Attr(ct.Structure):
    """``struct perf_event_attr``, PERF_ATTR_SIZE_VER0 (uapi/linux/perf_event.h)."""

    _fields_ = [
        ("type", ct.c_uint32),
        ("size", ct.c_uint32),
        ("config", ct.c_uint64),
        ("sample_period", ct.c_uint64),
        ("sample_type", ct.c_uint64),
        ("read_format", ct.c_uint64),
        ("flags", ct.c_uint64),
        ("wakeup_events", ct.c_uint32),
        ("bp_type", ct.c_uint32),
        ("bp_addr", ct.c_uint64),
    ]


def online_cpus(source: Path = _ONLINE) -> list[int]:
    """Return the numbers of the online CPUs."""
    try:
        text = source.read_text().strip()
    except OSError:
        return list(range(os.cpu_count() or 1))
    cpus: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def cpu_clock(cpu: int, period_ns: int) -> int | None:
    """Return the descriptor of a disabled timer that fires every `period_ns` of wall time on `cpu`; None if the CPU is
    offline. With a period, unlike a frequency, the kernel does not adjust it or check ``perf_event_max_sample_rate``.
    Raises `BpfError`.
    """
    attr = _Attr(
        type=_TYPE_SOFTWARE,
        size=ct.sizeof(_Attr),
        config=_COUNT_CPU_CLOCK,
        sample_period=period_ns,
        flags=_DISABLED,
    )
    libc = ct.CDLL(None, use_errno=True)
    any_process, no_group = -1, -1
    fd = libc.syscall(_number(), ct.byref(attr), any_process, cpu, no_group, _FLAG_CLOEXEC)
    if fd >= 0:
        return int(fd)
    number = ct.get_errno()
    if number == errno.ENODEV:
        return None
    raise _refused(number, cpu)


@lru_cache(maxsize=1)
def _number() -> int:
    return next(number for number, name in syscalls.names().items() if name == "perf_event_open")


def _refused(number: int, cpu: int) -> BpfError:
    what = f"cannot open a sampling timer on CPU {cpu}: {os.strerror(number)}"
    if number in (errno.EPERM, errno.EACCES):
        return BpfError(
            "no_privilege", what, "run as root, or with CAP_BPF and CAP_PERFMON; in a container, allow perf_event_open"
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return BpfError("attach_failed", what, "four descriptors per CPU are needed: raise the limit (ulimit -n)")
    if number in (errno.ENOSYS, errno.ENOENT, errno.EOPNOTSUPP):
        return BpfError("attach_failed", what, "use a kernel built with CONFIG_PERF_EVENTS")
    return BpfError("attach_failed", what, "report this with the kernel version")
