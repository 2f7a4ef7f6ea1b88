"""Open the kernel's sampling timers: one software event ``cpu-clock`` per CPU, without perf's ring buffer. Ask whether
uprobes are permitted."""

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
_UPROBES = Path("/sys/bus/event_source/devices/uprobe/type")


class _Attr(ct.Structure):
    """``struct perf_event_attr``, PERF_ATTR_SIZE_VER0 (uapi/linux/perf_event.h), and the offset of a probe."""

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
        ("bp_len", ct.c_uint64),
    ]


_SIZE_WITH_OFFSET = ct.sizeof(_Attr)  # PERF_ATTR_SIZE_VER1
_SIZE = _SIZE_WITH_OFFSET - ct.sizeof(ct.c_uint64)


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
        size=_SIZE,
        config=_COUNT_CPU_CLOCK,
        sample_period=period_ns,
        flags=_DISABLED,
    )
    fd = _open(attr, cpu)
    if fd >= 0:
        return fd
    if fd == -errno.ENODEV:
        return None
    raise _refused(-fd, cpu)


def uprobes_refused() -> bool:
    """Return whether the kernel refuses uprobes to this process.

    CAP_PERFMON permits them, but Linux since 6.16 and its stable branches require CAP_SYS_ADMIN ("perf: Revert to
    requiring CAP_SYS_ADMIN for uprobes", July 2025). The kernel decides that before it looks at the path, which here is
    a null pointer.
    """
    try:
        kind = int(_UPROBES.read_text())
    except (OSError, ValueError):
        return False
    fd = _open(_Attr(type=kind, size=_SIZE_WITH_OFFSET), cpu=0)
    if fd >= 0:
        os.close(fd)
    return fd in (-errno.EACCES, -errno.EPERM)


def _open(attr: _Attr, cpu: int) -> int:
    """Return the descriptor of an event of all processes on `cpu`, or a negated errno."""
    libc = ct.CDLL(None, use_errno=True)
    any_process, no_group = -1, -1
    fd = int(libc.syscall(_number(), ct.byref(attr), any_process, cpu, no_group, _FLAG_CLOEXEC))
    return fd if fd >= 0 else -ct.get_errno()


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
