"""Where this process runs: on the node, in a sidecar that shares its processes, or in an isolated container.

A privileged container with ``hostPID`` sees the node's processes with their pids, but has its own files, host name and
maybe control groups. The node's files are reached through one of its processes: /proc/1/root is the node's root, and
access requires CAP_SYS_PTRACE (``PTRACE_MODE_READ_FSCREDS``, proc(5)), but no mount.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from whystall.tools.contract.text import clean

PROC = Path("/proc")
FOREIGN_PIDS = "process numbers here are not the kernel's (an own PID namespace: share the host's, hostPID)"
"""Why the kernel's events cannot be matched with the visible processes."""
PARTIAL_PROC = "/proc has only processes (it is mounted with subset=pid)"
"""Why no engine works here."""
_INITIAL_PIDS = 0xEFFFFFFC
"""PROC_PID_INIT_INO (include/linux/proc_ns.h): the inode of the first PID namespace is fixed."""


def pids_are_the_hosts(proc: Path = PROC) -> bool:
    """Return whether our PIDs are those of the kernel's traces and BPF: not in an own PID namespace."""
    try:
        return os.stat(proc / "self/ns/pid").st_ino == _INITIAL_PIDS
    except OSError:
        return True  # a kernel without PID namespaces


def proc_is_whole(proc: Path = PROC) -> bool:
    """Return whether /proc has the host's files, which every engine needs; not if it is mounted with ``subset=pid``
    (systemd: ``ProcSubset=pid``)."""
    return os.path.exists(proc / "stat")


def hidden_processes(proc: Path = PROC) -> str | None:
    """Return why /proc does not show all processes of the host, in a few words; None if it does."""
    if not pids_are_the_hosts(proc):
        return "an own PID namespace"
    return None if os.path.exists(proc / "1/stat") else "hidepid"


def node_process(proc: Path = PROC) -> Path | None:
    """Return the /proc directory of an accessible process with the node's mounts: pid 1, else (if access to it is
    denied) kthreadd, whose root is the node's unless booted from a RAM disk. None in an own PID namespace, or without
    CAP_SYS_PTRACE.
    """
    if not pids_are_the_hosts(proc):
        return None
    for pid in ("1", "2"):
        try:
            os.readlink(proc / pid / "ns/mnt")
            if os.path.isdir(proc / pid / "root/etc"):
                return proc / pid
        except OSError:
            continue
    return None


def in_sidecar(proc: Path = PROC) -> bool:
    """Return whether the node's processes are visible but have other mounts than we. False also if unknown."""
    return _differs("mnt", proc)


def node_path(path: str | Path, proc: Path = PROC) -> Path:
    """Return the path by which the node's file `path` (absolute) is accessible; it need not exist."""
    process = node_process(proc) if in_sidecar(proc) else None
    return process / "root" / str(path).lstrip("/") if process is not None else Path(path)


def host_name(proc: Path = PROC) -> str:
    """Return the name of the node, cleaned.

    In a sidecar, whose own name is the pod's, it is from the node's /etc/hostname, else NODE_NAME (usually
    ``spec.nodeName``). A process with the node's files and its own UTS namespace is a service with ProtectHostname=:
    its name is a copy of the node's, which /etc/hostname may not be (DHCP).
    """
    process = node_process(proc)
    if process is not None and _differs("uts", proc) and not _same_root(process):
        try:
            lines = (process / "root/etc/hostname").read_bytes()[:4096].splitlines()
        except OSError:
            lines = []
        names = [line.strip() for line in lines if line.strip() and not line.startswith(b"#")]
        if name := (names[0] if names else os.environb.get(b"NODE_NAME", b"")):
            return clean(name)
    return clean(platform.node())


def _same_root(process: Path) -> bool:
    try:
        return os.path.samefile(process / "root", "/")
    except OSError:
        return False


def _differs(namespace: str, proc: Path) -> bool:
    """Return whether the node's processes are in another namespace of this kind than we."""
    process = node_process(proc)
    try:
        return process is not None and os.readlink(process / "ns" / namespace) != os.readlink(
            proc / "self/ns" / namespace
        )
    except OSError:
        return False
