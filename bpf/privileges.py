"""What this process may do, by the kernel's own account: capabilities instead of user ids. Standard library only."""

from __future__ import annotations

import os
import resource
from pathlib import Path

NEEDED = {
    "CAP_BPF": "load BPF programs and make their maps",
    "CAP_PERFMON": "let them trace the kernel, and open its sampling timers",
    "CAP_SYS_PTRACE": "look into other users' processes: their files, memory maps, I/O counts and namespaces",
    "CAP_DAC_READ_SEARCH": "read the programs and libraries, for names, that file permissions keep from us",
    "CAP_SYSLOG": "read the kernel's addresses, for the names of its functions",
}
"""All that observing a host takes, and what each is for; what is deployed (deploy/) grants exactly these."""

_STATUS = Path("/proc/thread-self/status")  # capabilities are a thread's
_NUMBERS = {
    # include/uapi/linux/capability.h: those that something here asks about
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
    """Those capabilities in effect that something here asks about, by name; none where /proc does not say.

    A capability counts within a user namespace of its own too: whether the host's kernel grants what it stands for is
    known only by trying.
    """
    try:
        lines = status.read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    bits = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return frozenset(name for name, number in _NUMBERS.items() if bits >> number & 1)


def short_of_memlock(release: str | None = None) -> int | None:
    """The limit in bytes, where BPF memory counts against RLIMIT_MEMLOCK and the limit is finite; else None.

    Before Linux 5.11 (commit 80ee81e0403c) maps are charged to the user's locked memory, of which 64 KiB to 8 MiB are
    usual, and what goes beyond is refused with EPERM, as if a capability were missing. Who holds CAP_SYS_RESOURCE has
    the limit raised by libbpf. `release`: of another kernel than the running one.
    """
    head = (release or os.uname().release).split("-")[0].split(".")
    version = tuple(int(part) for part in head[:2] if part.isdigit())
    if version >= (5, 11):
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY or "CAP_SYS_RESOURCE" in held() else soft
