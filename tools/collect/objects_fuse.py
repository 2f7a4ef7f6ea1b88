"""Find the FUSE connection that serves a path, since a thread may wait for its server."""

from __future__ import annotations

from whystall.tools.collect.objects_proc import Proc
from whystall.tools.contract.text import clean_path
from whystall.tools.node.mounts import Mount, below, mountinfo

DEVICE = b"/dev/fuse"
_MOUNTS_BYTES = 4 << 20
_LINE = b"\nfuse_connection:"


def connection_name(number: int) -> str:
    """Return the name under which the server of a FUSE connection is recorded."""
    return f"fuse:[{number}]"


def served_connection(fdinfo: bytes) -> str:
    """Return the connection that a descriptor of /dev/fuse serves; empty if the kernel does not report it.

    Such a /proc/PID/fdinfo/N has a line ``fuse_connection:\\t41``, the minor number of the mount's device.
    """
    at = fdinfo.find(_LINE)
    number = fdinfo[at + len(_LINE) :].split(b"\n", 1)[0].strip() if at >= 0 else b""
    return connection_name(int(number)) if number.isdigit() else ""


def waits_for_server(wchan: str, kernel_stack: tuple[str, ...]) -> bool:
    """Return whether a thread waits for a FUSE server, by the kernel functions it is in; fuse_dev_* are functions of
    the server itself."""
    asks = (f.startswith(("fuse_", "__fuse_")) and not f.startswith("fuse_dev_") for f in kernel_stack)
    return wchan == "request_wait_answer" or any(asks)


class FuseMounts:
    """The FUSE file systems of processes, read once per mount namespace."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._known: dict[bytes, list[Mount]] = {}

    def connection(self, pid: int, path: str) -> str:
        """Return the connection that serves `path` of a process (as cleaned); empty if it is on no FUSE mount."""
        namespace = self._proc.link(pid, "ns/mnt") or b"%d" % pid
        if namespace not in self._known:
            self._known[namespace] = mountinfo(self._proc.read(pid, "mountinfo", most=_MOUNTS_BYTES))
        # the innermost mount; of several at one mount point, the last
        found: Mount | None = None
        for mount in self._known[namespace]:
            inside = below(path.encode(), clean_path(mount.point).encode()) is not None
            if inside and (found is None or len(mount.point) >= len(found.point)):
                found = mount
        if found is None or not found.fstype.startswith("fuse"):
            return ""
        minor = found.dev.rpartition(":")[2]
        return connection_name(int(minor)) if minor.isdigit() else ""
