"""Run a program and its children with hybrid I/O, by a library in LD_PRELOAD (the shim), and collect its counters."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from whystall.tools.hybrid_io import build
from whystall.tools.hybrid_io.counter_folder import counter_folder
from whystall.tools.hybrid_io.layout import MODES, OPS
from whystall.tools.hybrid_io.program_kind import is_text, kind_of_program
from whystall.tools.hybrid_io.report import Programs, read_folder

LIBRARY = "libwhystall_hybrid_preload.so"

NOT_FOUND, NOT_RUN = 127, 126
"""Exit statuses of shells and env(1) for a missing program, and for one that cannot be run."""
_PASSED_ON = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGWINCH")
)
_MILLION = 1_000_000
_MATTERS = 16 << 20  # bytes


class CannotRun(Exception):
    """The program cannot be started; `status` is the exit status of a shell."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Options:
    """Settings that differ from the policy's defaults, sizes in bytes; None: default.

    `mode`: ``auto``, or ``buffered`` or ``direct`` for measuring. `read_direct`, `write_direct`: direct from this size
    on; `pressure_direct`: likewise while the cache is at its limit. `limit_share`: limit of the cache as a share of
    memory (0 < x <= 1); `limit_bytes`: in bytes. `keep_file`: files up to this size stay in the cache if they fit.
    `follow`: also programs started with another environment get the shim.
    """

    mode: str = "auto"
    read_direct: int | None = None
    write_direct: int | None = None
    pressure_direct: int | None = None
    limit_share: float | None = None
    limit_bytes: int | None = None
    keep_file: int | None = None
    follow: bool = False

    def text(self) -> str:
        """Return it as the shim reads it (src/shim.c)."""
        numbers = {
            "mode": MODES.index(self.mode),
            "read_direct": self.read_direct,
            "write_direct": self.write_direct,
            "pressure_direct": self.pressure_direct,
            "limit_ppm": None if self.limit_share is None else round(self.limit_share * _MILLION),
            "limit": self.limit_bytes,
            "keep_file": self.keep_file,
            "follow": int(self.follow),
        }
        return ",".join(f"{name}={number}" for name, number in numbers.items() if number is not None)


@dataclass
class Run:
    """A finished run. `status`: the exit status, or 128 + `signal`, as in shells.

    `programs`: each program with large requests; `others`: all others together; `total`: both together, with the bytes
    that bypassed the shim (None if unknown). `kind`: why the program could not get the shim (see `kind_of_program`),
    else empty. `counted`: False without space for counters in /dev/shm and the temporary directory; the program ran
    nevertheless.
    """

    command: list[str]
    status: int
    signal: int
    seconds: float
    kind: str
    programs: list[Programs] = field(default_factory=list)
    others: Programs = field(default_factory=Programs)
    total: Programs = field(default_factory=Programs)
    counted: bool = True

    @property
    def signal_name(self) -> str:
        """Return the name of the signal that ended it, such as ``SIGKILL``; empty without one."""
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return ""

    @property
    def mostly_passed(self) -> bool:
        """Return whether more bytes bypassed the shim than it handled, and enough to matter."""
        passed = sum((self.total.passed_bytes or {}).values())
        return passed > max(_MATTERS, self.total.bytes("read") + self.total.bytes("write"))


def library() -> Path:
    """Return the path of the shim, built if needed. Raises ``build.BuildError``."""
    path = build.library_path(LIBRARY)
    if not path.exists():
        try:
            build.build(LIBRARY)
        except OSError as error:  # an installation without write permission
            why = f"{error.filename or path}: {error.strerror or error}"
            raise build.BuildError(f"{why}; its owner can: python -m whystall.tools.hybrid_io.build") from None
    return path


def environment(shim: Path, options: Options, folder: Path | None, base: dict[str, str]) -> dict[str, str]:
    """Return the environment `base` with the shim before other preloaded libraries.

    Programs with AddressSanitizer reject libraries before its own unless verify_asan_link_order is 0.
    """
    preload = " ".join([str(shim), *base.get("LD_PRELOAD", "").replace(":", " ").split()])
    asan = base.get("ASAN_OPTIONS", "")
    if "verify_asan_link_order" not in asan:
        asan = ":".join(filter(None, (asan, "verify_asan_link_order=0")))
    return {
        **base,
        "LD_PRELOAD": preload,
        "ASAN_OPTIONS": asan,
        "WHYSTALL_HYBRID_POLICY": options.text(),
        "WHYSTALL_HYBRID_COUNTERS": str(folder) if folder else "",
    }


def run(command: Sequence[str], options: Options, base: dict[str, str] | None = None) -> Run:
    """Run `command` to its end; forward signals to it.

    Raises `CannotRun`, and ``build.BuildError`` if the shim cannot be built.
    """
    base = dict(os.environ) if base is None else base
    path = _found(command[0], base)
    kind = kind_of_program(path)
    shim = library()
    with counter_folder() as folder:
        shim = _nameable(shim, folder)
        before, began = _of_children(), time.monotonic()
        # another loader would fail on the shim and not start the program
        variables = base if kind in ("other_libc", "other_machine") else environment(shim, options, folder, base)
        status, signum = _run(path, command, variables)
        seconds, after = time.monotonic() - began, _of_children()
        programs, others = read_folder(folder) if folder else ([], Programs(programs=0))
    total = Programs(programs=0)
    for part in (*programs, others):
        total.add(part)
    if folder and before is not None and after is not None:
        moved = {operation: after[operation] - before[operation] for operation in OPS}
        total.passed_bytes = {operation: max(0, moved[operation] - total.bytes(operation)) for operation in OPS}
    return Run(list(command), status, signum, seconds, kind, programs, others, total, counted=folder is not None)


def _nameable(shim: Path, folder: Path | None) -> Path:
    """Return a path of `shim` that is valid in LD_PRELOAD, without blanks and colons (ld.so(8)): else a link in
    `folder`, which is removed after the run; later children of programs that outlive it run without the shim.
    """
    if not {" ", ":", "$"} & set(str(shim)):  # $LIB and such would be expanded
        return shim
    if folder is None:
        raise CannotRun(f"{shim} is no path that LD_PRELOAD can hold, and there is no room for a link to it", NOT_RUN)
    link = folder / LIBRARY
    link.symlink_to(shim)
    return link


def _found(name: str, base: dict[str, str]) -> str:
    path = shutil.which(name, path=base.get("PATH"))
    if path is not None:
        return path
    if os.path.dirname(name) and os.path.lexists(name):
        why = "it is a directory" if os.path.isdir(name) else "it is not executable for this user"
        raise CannotRun(f"{name} cannot be run: {why}", NOT_RUN)
    raise CannotRun(f"there is no program {name}" if name else "its name is empty", NOT_FOUND)


def _run(path: str, command: Sequence[str], variables: dict[str, str]) -> tuple[int, int]:
    """Start it and wait; return exit status and signal."""
    waited = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, children leave no exit status
    try:
        # Python ignores these two; the program must get the default.
        restored = (signal.SIGPIPE, signal.SIGXFSZ)
        try:
            try:
                pid = os.posix_spawn(path, list(command), variables, setsigmask=before, setsigdef=restored)
            except OSError as error:
                if error.errno != errno.ENOEXEC or not is_text(path):
                    raise
                # a script without #!: run it with the shell, as execvp(3), env(1) and shells do
                words = ["/bin/sh", path, *command[1:]]
                pid = os.posix_spawn(words[0], words, variables, setsigmask=before, setsigdef=restored)
        except OSError as error:
            raise CannotRun(f"{command[0]} cannot be run: {error.strerror}", NOT_RUN) from None
        return _wait(pid, waited)
    finally:
        signal.signal(signal.SIGCHLD, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(pid: int, waited: Iterable[signal.Signals]) -> tuple[int, int]:
    while True:
        came = signal.sigwaitinfo(waited)
        if came.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return (code, 0) if code >= 0 else (128 - code, -code)
        elif came.si_code <= 0:  # sent by a process; a terminal signals the whole group itself
            os.kill(pid, came.si_signo)


def _of_children() -> dict[str, int] | None:
    """Return the I/O bytes of ended and waited-for children by system calls; None if unknown.

    The kernel adds them to the process's counts, together with those of ended threads.
    """
    try:
        whole = _account("/proc/self/io")
        for task in os.listdir("/proc/self/task"):
            for operation, moved in _account(f"/proc/self/task/{task}/io").items():
                whole[operation] -= moved
    except OSError:
        return None
    return whole


def _account(path: str) -> dict[str, int]:
    with open(path, encoding="ascii") as file:
        lines = dict(line.split(": ") for line in file.read().splitlines())
    return {"read": int(lines["rchar"]), "write": int(lines["wchar"])}
