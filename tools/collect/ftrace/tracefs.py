"""Find the kernel's trace files, or mount them. Standard library only.

If tracefs is not mounted, it is mounted for this process alone: a detached mount, used through its descriptor, which
ends with the process (fsopen(2), fsmount(2), Linux 5.2).
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean
from whystall.tools.node.vantage import in_sidecar, node_path

USUAL = Path("/sys/kernel/tracing")
OLDER = Path("/sys/kernel/debug/tracing")
_CAP_SYS_ADMIN = 21  # include/uapi/linux/capability.h
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432  # the same on every architecture that Linux 5.2 or later knows
_FSCONFIG_CMD_CREATE, _CLOEXEC = 6, 1
_MOUNT = f"run `mount -t tracefs nodev {USUAL}` as root"


class Tracefs:
    """The kernel's trace files below `root`. `mount`: the descriptor of our private mount, if any."""

    def __init__(self, root: Path, mount: int | None = None) -> None:
        self.root = root
        self._mount = mount

    @property
    def private(self) -> bool:
        """Whether they are mounted for this process alone."""
        return self._mount is not None

    def close(self) -> None:
        """End a private mount; idempotent."""
        mount, self._mount = self._mount, None
        if mount is not None:
            os.close(mount)

    def clocks(self) -> tuple[str, ...]:
        """Return the names of this kernel's trace clocks: ``[local] global counter mono``."""
        return tuple(word.strip("[]") for word in _read(self.root / "trace_clock").split())

    def has_event(self, name: str) -> bool:
        """Return whether the kernel has the event `name`, written ``system/event``."""
        return os.path.exists(self.root / "events" / name / "enable")

    def instances(self) -> list[str]:
        """Return the names of all instances, sorted."""
        try:
            return sorted(os.listdir(self.root / "instances"))
        except OSError as error:
            raise denied(error, "list the tracefs instances") from None


def find() -> Tracefs:
    """Find the trace files of this kernel, or mount them.

    Raises `ToolError`: no_tracefs if they are not mounted and cannot be, no_privilege if we may not read them.
    """
    mounted = _mounted()
    # accessing OLDER makes debugfs mount it; a sidecar uses the node's
    for root in (*mounted, OLDER, *((node_path(USUAL), node_path(OLDER)) if in_sidecar() else ())):
        if os.path.exists(root / "trace_clock"):
            return Tracefs(root)
    if mounted:
        raise ToolError(ErrorCode.NO_PRIVILEGE, f"no permission to read {mounted[0]}", "run as root")
    if not _may_mount():
        raise _not_mountable()
    mount = _mount_privately()
    return Tracefs(Path(f"/proc/self/fd/{mount}"), mount)


def denied(error: OSError, doing: str) -> ToolError:
    """Return the error for a failure to use a trace file."""
    if error.errno in (errno.EACCES, errno.EPERM):
        lockdown = _read_or_empty(Path("/sys/kernel/security/lockdown"))
        why = " (the kernel is locked down: confidentiality)" if "[confidentiality]" in lockdown else ""
        return ToolError(ErrorCode.NO_PRIVILEGE, f"not permitted to {doing}{why}", "run as root on the host")
    if error.errno == errno.ENOMEM:
        return ToolError(ErrorCode.PROBE_FAILED, f"no memory to {doing}", "ask for a smaller buffer")
    if error.errno == errno.EROFS:
        return ToolError(ErrorCode.NO_PRIVILEGE, f"cannot {doing}: tracefs is read-only here", "run on the host")
    return ToolError(ErrorCode.PROBE_FAILED, f"cannot {doing}: {error.strerror}", "read the kernel's log (dmesg)")


def _mounted() -> list[Path]:
    """Return the mount points of tracefs, the usual one first."""
    found = []
    for line in _read_or_empty(Path("/proc/self/mounts")).splitlines():
        fields = line.split()
        if len(fields) > 2 and fields[2] == "tracefs":
            found.append(Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1])))
    return sorted(found, key=lambda path: path != USUAL)


def _may_mount() -> bool:
    """Return whether this thread has CAP_SYS_ADMIN, by /proc: ``bpf.privileges`` imports too much for a training
    process."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", _read_or_empty(Path("/proc/thread-self/status")), re.MULTILINE)
    return found is None or bool(int(found[1], 16) >> _CAP_SYS_ADMIN & 1)


def _not_mountable() -> ToolError:
    return ToolError(ErrorCode.NO_TRACEFS, "tracefs is not mounted, and mounting is not permitted here", _MOUNT)


def _mount_privately() -> int:
    import ctypes  # late, as its import takes longer than all others

    libc = ctypes.CDLL(None, use_errno=True)

    def call(number: int, *arguments: object) -> int:
        result: int = libc.syscall(ctypes.c_long(number), *arguments)
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result

    try:
        context = call(_FSOPEN, b"tracefs", _CLOEXEC)
        try:
            call(_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
            return call(_FSMOUNT, context, _CLOEXEC, 0)
        finally:
            os.close(context)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            raise _not_mountable() from None
        reason = "this kernel has none" if error.errno == errno.ENODEV else str(error.strerror)
        raise ToolError(ErrorCode.NO_TRACEFS, f"tracefs cannot be mounted: {reason}", _MOUNT) from None


def _read(path: Path) -> str:
    try:
        return clean(path.read_bytes().strip(), 1 << 16)
    except OSError as error:
        raise denied(error, f"read {path.name}") from None


def _read_or_empty(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
