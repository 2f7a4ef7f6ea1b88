"""The capabilities of this process. Standard library only."""

from __future__ import annotations

import os
import resource
from pathlib import Path

NEEDED = {
    "CAP_BPF": "load BPF programs and make their maps",
    "CAP_PERFMON": "let them trace the kernel, and open its sampling timers",
    "CAP_SYS_PTRACE": "read other users' processes: their files, memory maps, I/O counts and namespaces",
    "CAP_DAC_READ_SEARCH": "read programs and libraries, for names, despite file permissions",
    "CAP_SYSLOG": "read the kernel's addresses, for the names of its functions",
}
"""The capabilities for observing a host, and their use; the files in deploy/ grant exactly these."""

_STATUS = Path("/proc/thread-self/status")  # capabilities are a thread's
_NUMBERS = {
    # include/uapi/linux/capability.h
    "CAP_DAC_OVERRIDE": 1,
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_FOWNER": 3,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_RESOURCE": 24,
    "CAP_SYSLOG": 34,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
    "CAP_CHECKPOINT_RESTORE": 40,
}


def held(status: Path = _STATUS) -> frozenset[str]:
    """Return the effective capabilities among `_NUMBERS`, by name; none if /proc is unreadable.

    In a user namespace a capability may not apply to the host: only trying shows that.
    """
    try:
        lines = status.read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    bits = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return frozenset(name for name, number in _NUMBERS.items() if bits >> number & 1)


def short_of_memlock(release: str | None = None) -> int | None:
    """Return RLIMIT_MEMLOCK in bytes if it limits BPF memory, else None.

    Before Linux 5.11 (commit 80ee81e0403c) maps count as the user's locked memory, usually limited to 64 KiB to 8 MiB;
    exceeding it fails with EPERM, as if a capability were missing. With CAP_SYS_RESOURCE libbpf raises the limit.
    `release`: of another kernel than the running one.
    """
    head = (release or os.uname().release).split("-")[0].split(".")
    version = tuple(int(part) for part in head[:2] if part.isdigit())
    if version >= (5, 11):
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY or "CAP_SYS_RESOURCE" in held() else soft
