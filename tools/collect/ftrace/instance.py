"""A tracefs instance of our own: made, set up, and removed on every way out. Standard library only.

An instance outlives its maker. So its name says who made it, ``whystall-<pid>-<start time>-<n>``, and while the maker
lives it holds the instance's `free_buffer` open: as long as it does, the kernel refuses to remove the instance, and
when it dies, however, the kernel stops recording and frees the buffer. What is left is removed at the next start.
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
_held: set[Instance] = set()


class Instance:
    """An own instance; `Instance.make` makes one, `remove` removes it."""

    def __init__(self, path: Path, hold: int) -> None:
        self.path = path
        self.name = path.name
        self._hold: int | None = hold
        self._pipe: int | None = None
        _held.add(self)

    @classmethod
    def make(cls, tracefs: Tracefs) -> Instance:
        """A new instance that does not record yet, with tracing of the whole host's instances untouched.

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
            except FileNotFoundError:  # removed between the two by one who cannot see our process; make another
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
        """Write `text` to the instance's file `name`, adding where that is a list; `ToolError` when it is refused."""
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
        """The text of the instance's file `name`; `ToolError` when it cannot be read."""
        try:
            return (self.path / name).read_text(errors="replace")
        except OSError as error:
            raise denied(error, f"read {name}") from None

    def option(self, name: str, wanted: bool) -> bool:
        """Set a trace option of this instance; False where this kernel has no such option or will not have it so.

        It is written only when it differs: some options reach beyond the instance when they are written.
        """
        try:
            if (self.read(f"options/{name}").strip() == "1") != wanted:
                self.write(f"options/{name}", str(int(wanted)))
        except ToolError:
            return False
        return True

    def pipe(self) -> int:
        """A descriptor of the events as text, read as they are taken out; it never blocks. Opened at the first call."""
        if self._pipe is None:
            try:
                self._pipe = os.open(self.path / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                raise denied(error, "open trace_pipe") from None
        return self._pipe

    def let_go(self) -> None:
        """Close what is held open, and no more: the part of a child made by fork(2)."""
        descriptors, self._hold, self._pipe = (self._hold, self._pipe), None, None
        _held.discard(self)
        for descriptor in descriptors:
            if descriptor is not None:
                os.close(descriptor)

    def remove(self) -> None:
        """Remove it; idempotent. `ToolError` (probe_failed) when somebody else has its files open: it then records
        nothing and holds no memory, and the next start removes it.
        """
        if self._hold is None:
            return
        self.let_go()  # the kernel stops recording and frees the buffer
        try:
            self.path.rmdir()
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise ToolError(
                    ErrorCode.PROBE_FAILED,
                    f"cannot remove the tracefs instance {self.name}: {error.strerror}",
                    "it goes at the next start, when nothing has its files open",
                ) from None


def _forked() -> None:
    # A child that held our descriptors would keep the instances from being removed while it lives.
    for instance in list(_held):
        instance.let_go()


os.register_at_fork(after_in_child=_forked)


def reap(tracefs: Tracefs) -> list[str]:
    """Remove our instances whose maker is dead; their names. One that somebody holds open is left alone."""
    removed = []
    for name in orphans(tracefs.instances()):
        with suppress(OSError):  # held by a maker in another PID namespace, or already removed by another
            (tracefs.root / "instances" / name).rmdir()
            removed.append(name)
    return removed


def orphans(names: Iterable[str]) -> list[str]:
    """Those of `names` that are ours and whose maker is dead, or its number now another process's."""
    found = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match and start_ticks(int(match[1])) != int(match[2]):
            found.append(name)
    return found


def start_ticks(pid: int) -> int:
    """When the process `pid` began, in clock ticks since boot (proc(5), stat field 22); -1 when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return int(stat.rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return -1
