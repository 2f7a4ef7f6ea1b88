"""Create, configure and remove a tracefs instance of our own. Standard library only.

An instance outlives its process. So its name identifies its owner, ``whystall-<pid>-<start time>-<n>``, and the owner
keeps the instance's `free_buffer` open: until it closes, the kernel refuses to remove the instance; when the owner
dies, the kernel stops recording and frees the buffer. The empty instance is removed at the next start.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from whystall.tools.collect.ftrace.tracefs import Tracefs, denied
from whystall.tools.contract.errors import ErrorCode, ToolError

_NAME = re.compile(r"whystall-([1-9][0-9]*)-([0-9]+)-([0-9]+)", re.ASCII)
_ATTEMPTS = 1000
_open: set[Instance] = set()


class Instance:
    """An instance of our own, from `Instance.make` to `remove`."""

    def __init__(self, path: Path, hold: int) -> None:
        self.path = path
        self.name = path.name
        self._hold: int | None = hold
        self._pipe: int | None = None
        _open.add(self)

    @classmethod
    def make(cls, tracefs: Tracefs) -> Instance:
        """Create an instance that does not record yet; other instances do not change.

        Raises `ToolError`: no_privilege, probe_failed.
        """
        owner = f"whystall-{os.getpid()}-{start_ticks(os.getpid())}"
        for n in range(_ATTEMPTS):
            path = tracefs.root / "instances" / f"{owner}-{n}"
            try:
                path.mkdir()
            except FileExistsError:
                continue
            except OSError as error:
                raise denied(error, "make a tracefs instance") from None
            try:
                hold = os.open(path / "free_buffer", os.O_WRONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # removed meanwhile by a process that cannot see ours: try the next name
                continue
            except OSError as error:
                path.rmdir()
                raise denied(error, "open a tracefs instance") from None
            made = cls(path, hold)
            try:
                made.write("tracing_on", "0")
                made.option("disable_on_free", True)
            except BaseException:
                made.remove()
                raise
            return made
        raise ToolError(ErrorCode.BUSY, f"{_ATTEMPTS} captures of this process run already", "stop them")

    def write(self, name: str, text: str) -> None:
        """Write `text` to the instance's file `name`, or append if that is a list; raise `ToolError` on failure."""
        try:
            descriptor = os.open(self.path / name, os.O_WRONLY | os.O_CLOEXEC)  # O_TRUNC would empty a list
            try:
                data = text.encode()
                while data:
                    data = data[os.write(descriptor, data) :]
            finally:
                os.close(descriptor)
        except OSError as error:
            raise denied(error, f"set {name} to {text.strip()[:80]!r}") from None

    def read(self, name: str) -> str:
        """Return the text of the instance's file `name`; raise `ToolError` on failure."""
        try:
            return (self.path / name).read_text(errors="replace")
        except OSError as error:
            raise denied(error, f"read {name}") from None

    def option(self, name: str, wanted: bool) -> bool:
        """Set a trace option of this instance; return False if this kernel does not have it or refuses the value.

        It is written only if it differs, since writing some options affects other instances.
        """
        try:
            if (self.read(f"options/{name}").strip() == "1") != wanted:
                self.write(f"options/{name}", str(int(wanted)))
        except ToolError:
            return False
        return True

    def pipe(self) -> int:
        """Return a non-blocking descriptor of trace_pipe: reading consumes the events. Opened at the first call."""
        if self._pipe is None:
            try:
                self._pipe = os.open(self.path / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                raise denied(error, "open trace_pipe") from None
        return self._pipe

    def close_files(self) -> None:
        """Close our descriptors without removing the instance, in a child made by fork(2)."""
        descriptors, self._hold, self._pipe = (self._hold, self._pipe), None, None
        _open.discard(self)
        for descriptor in descriptors:
            if descriptor is not None:
                os.close(descriptor)

    def remove(self) -> None:
        """Remove it; idempotent. Raises `ToolError` (probe_failed) if another process has its files open: it then
        records nothing, has no buffer, and is removed at the next start.
        """
        if self._hold is None:
            return
        self.close_files()  # the kernel then stops recording and frees the buffer
        try:
            self.path.rmdir()
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise ToolError(
                    ErrorCode.PROBE_FAILED,
                    f"cannot remove the tracefs instance {self.name}: {error.strerror}",
                    "the next start removes it, when no process has its files open",
                ) from None


def _forked() -> None:
    # A child with copies of our descriptors would prevent the removal of the instances.
    for instance in list(_open):
        instance.close_files()


os.register_at_fork(after_in_child=_forked)


def reap(tracefs: Tracefs) -> list[str]:
    """Remove our instances whose owner is dead, except those that are open; return their names."""
    removed = []
    for name in orphans(tracefs.instances()):
        with suppress(OSError):  # in use by an owner in another PID namespace, or already removed
            (tracefs.root / "instances" / name).rmdir()
            removed.append(name)
    return removed


def orphans(names: Iterable[str]) -> list[str]:
    """Return the `names` of our instances whose owner is dead, or whose PID now belongs to another process."""
    found = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match and start_ticks(int(match[1])) != int(match[2]):
            found.append(name)
    return found


def start_ticks(pid: int) -> int:
    """Return the start of process `pid` in clock ticks since boot (proc(5), stat field 22); -1 if it does not exist."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return int(stat.rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return -1
