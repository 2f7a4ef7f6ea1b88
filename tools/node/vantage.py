"""From where we look at the node: on it, from a sidecar that shares its processes, or shut into a container.

A privileged container with ``hostPID`` sees the node's processes under their own numbers, but has files, a host name
and maybe control groups of its own. The node's are reached through its process 1: /proc/1/root is the node's root as
that process sees it, and following it takes CAP_SYS_PTRACE (``PTRACE_MODE_READ_FSCREDS``, proc(5)), no mount.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from whystall.tools.contract.text import clean

PROC = Path("/proc")
FOREIGN_PIDS = "process numbers here are not the kernel's (an own PID namespace: share the host's, hostPID)"
"""Why what the kernel tells cannot be laid on the processes seen here."""
_INITIAL_PIDS = 0xEFFFFFFC
"""PROC_PID_INIT_INO (include/linux/proc_ns.h): the inode of the first PID namespace is fixed."""


def pids_are_the_hosts(proc: Path = PROC) -> bool:
    """Whether our PIDs are those that the kernel tells in traces and BPF. Inside a PID namespace of our own the
    kernel's numbers cannot be known.
    """
    try:
        return os.stat(proc / "self/ns/pid").st_ino == _INITIAL_PIDS
    except OSError:
        return True  # a kernel without PID namespaces has but one


def in_sidecar(proc: Path = PROC) -> bool:
    """Whether the node's processes are ours to see, but its files are not where we look: process 1 is the node's, and
    has another table of mounts. False also where that may not be known (no CAP_SYS_PTRACE).
    """
    return pids_are_the_hosts(proc) and _differs("mnt", proc)


def node_path(path: str | Path, proc: Path = PROC) -> Path:
    """Where the node's own file `path` (absolute) is reached from here; it need not exist."""
    return proc / "1/root" / str(path).lstrip("/") if in_sidecar(proc) else Path(path)


def host_name(proc: Path = PROC) -> str:
    """The name of the node. In a sidecar our own is that of the pod: there it is what the node's /etc/hostname says,
    else NODE_NAME (as manifests usually call ``spec.nodeName``); inert.
    """
    if pids_are_the_hosts(proc) and _differs("uts", proc):
        try:
            lines = (proc / "1/root/etc/hostname").read_bytes()[:4096].splitlines()
        except OSError:
            lines = []
        names = [line.strip() for line in lines if line.strip() and not line.startswith(b"#")]
        if said := (names[0] if names else os.environb.get(b"NODE_NAME", b"")):
            return clean(said)
    return clean(platform.node())


def _differs(namespace: str, proc: Path) -> bool:
    """Whether process 1 is in another namespace of this kind than we."""
    try:
        return os.readlink(proc / "1/ns" / namespace) != os.readlink(proc / "self/ns" / namespace)
    except OSError:
        return False
