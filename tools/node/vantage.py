"""From where we look at the node: on it, from a sidecar that shares its processes, or shut into a container.

A privileged container with ``hostPID`` sees the node's processes under their own numbers, but has files, a host name
and maybe control groups of its own. The node's are reached through a process of it: /proc/1/root is the node's root as
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
PARTIAL_PROC = "/proc tells of processes only (it is mounted with subset=pid)"
"""Why no engine can count here."""
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


def proc_is_whole(proc: Path = PROC) -> bool:
    """Whether /proc tells of the host too, and not of processes only (mounted with ``subset=pid``; of a systemd unit:
    ``ProcSubset=pid``): every engine counts by what it tells.
    """
    return os.path.exists(proc / "stat")


def hidden_processes(proc: Path = PROC) -> str | None:
    """Why /proc does not show every process of the host, in a few words; None where it does."""
    if not pids_are_the_hosts(proc):
        return "an own PID namespace"
    return None if os.path.exists(proc / "1/stat") else "hidepid"


def node_process(proc: Path = PROC) -> Path | None:
    """Below /proc, a process that has the node's own mounts and may be looked at: the first one, else (some nodes let
    nobody look at that) kthreadd, whose root is the node's unless that was booted from a RAM disk. None in a PID
    namespace of our own, or without CAP_SYS_PTRACE.
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
    """Whether the node's processes are ours to see, but its files are not where we look: they have another table of
    mounts. False also where that may not be known.
    """
    return _differs("mnt", proc)


def node_path(path: str | Path, proc: Path = PROC) -> Path:
    """Where the node's own file `path` (absolute) is reached from here; it need not exist."""
    process = node_process(proc) if in_sidecar(proc) else None
    return process / "root" / str(path).lstrip("/") if process is not None else Path(path)


def host_name(proc: Path = PROC) -> str:
    """The name of the node. In a sidecar our own is that of the pod: there it is what the node's /etc/hostname says,
    else NODE_NAME (as manifests usually call ``spec.nodeName``); inert. Who has the node's files and a name apart is no
    pod but a service (ProtectHostname=): its name is a copy of the node's, which /etc/hostname need not be (DHCP).
    """
    process = node_process(proc)
    if process is not None and _differs("uts", proc) and not _same_root(process):
        try:
            lines = (process / "root/etc/hostname").read_bytes()[:4096].splitlines()
        except OSError:
            lines = []
        names = [line.strip() for line in lines if line.strip() and not line.startswith(b"#")]
        if said := (names[0] if names else os.environb.get(b"NODE_NAME", b"")):
            return clean(said)
    return clean(platform.node())


def _same_root(process: Path) -> bool:
    try:
        return os.path.samefile(process / "root", "/")
    except OSError:
        return False


def _differs(namespace: str, proc: Path) -> bool:
    """Whether the node's processes are in another namespace of this kind than we."""
    process = node_process(proc)
    try:
        return process is not None and os.readlink(process / "ns" / namespace) != os.readlink(
            proc / "self/ns" / namespace
        )
    except OSError:
        return False
