"""The other tracers, each as a context that yields its processes once it traces, and is gone afterwards.

perf and BCC want tracefs, and BCC kernel headers where the running kernel's would lie: both get them in a
mount namespace of their own, so that the machine is left as it was.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import kernel
from benchmarks.common import PYTHON, ROOT, mortal, wait_until

_START_S, _STOP_S = 20.0, 20.0
_STEP_S = 0.0005
_WITH_TRACEFS = "mount -t tracefs tracefs /sys/kernel/tracing; mount -t debugfs debugfs /sys/kernel/debug; "


class PeerError(Exception):
    """A peer cannot be measured here; the message says why, in one line."""


def private_mounts(script: str, command: Sequence[str]) -> list[str]:
    """`command` in a mount namespace of its own, after a shell `script`; stays one and the same process."""
    return ["unshare", "-m", "sh", "-c", script + 'exec "$@"', "sh", *command]


def _headers() -> tuple[Path, Path]:
    """(build, source) trees of some kernel's headers. Another kernel's do: only the time to compile counts here."""
    here = Path("/lib/modules", os.uname().release)
    if (here / "build").is_dir():
        return here / "build", here / "source" if (here / "source").is_dir() else here / "build"
    installed = sorted(Path("/usr/src").glob("linux-headers-*"), reverse=True)
    for made in installed:
        common = made.with_name(made.name.rpartition("-")[0] + "-common")
        if made != common and common.is_dir():  # Debian's two halves
            return made, common
    for made in installed:
        if (made / "include/linux/kconfig.h").exists():
            return made, made
    raise PeerError("BCC compiles at every start and needs kernel headers; none are installed")


def bcc(command: Sequence[str]) -> list[str]:
    """A command that uses BCC, with headers where BCC looks for them. Raises ``PeerError``."""
    made, source = (shlex.quote(str(path.resolve())) for path in _headers())
    modules = shlex.quote(f"/lib/modules/{os.uname().release}")
    links = f"mount -t tmpfs tmpfs /lib/modules; mkdir {modules}; ln -s {made} {modules}/build; "
    return private_mounts(links + f"ln -s {source} {modules}/source; " + _WITH_TRACEFS, command)


@contextmanager
def running(command: Sequence[str], traces: Callable[[int], object], output: int | None = None) -> Iterator[list[int]]:
    """Start a tracer, wait until it ``traces(pid)``; yield its process; interrupt it. Raises ``PeerError``."""
    out = subprocess.DEVNULL if output is None else output
    try:
        process = subprocess.Popen(mortal(command), stdout=out, stderr=out, cwd=ROOT)
    except OSError as error:
        raise PeerError(f"{command[0]} cannot start: {error.strerror}") from error
    try:
        begun = wait_until(lambda: traces(process.pid) or process.poll() is not None, _START_S, _STEP_S)
        if not begun or process.poll() is not None:
            raise PeerError(f"{command[0]} did not begin to trace (exit status {process.poll()})")
        yield [process.pid]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _attached(pid: int) -> bool:
    return bool(kernel.links_of(pid))


def offcputime(*arguments: str) -> list[str]:
    """libbpf-tools' offcputime; the duration bounds it should this process be killed."""
    return ["offcputime", *arguments, "600"]


@contextmanager
def libbpf_offcputime(*arguments: str) -> Iterator[list[int]]:
    """libbpf-tools' offcputime at work, from the moment it is attached."""
    with running(offcputime(*arguments), _attached) as pids:
        yield pids


@contextmanager
def strace(target: int) -> Iterator[list[int]]:
    """``strace -c -f`` on a process."""

    def traces(_pid: int) -> bool:
        return "TracerPid:\t0" not in Path(f"/proc/{target}/status").read_text()

    with running(["strace", "-c", "-f", "-p", str(target)], traces) as pids:
        yield pids


@contextmanager
def perf_trace(target: int, output: int | None = None) -> Iterator[list[int]]:
    """``perf trace -s`` on a process, its summary into `output`."""

    def traces(pid: int) -> bool:
        try:  # it maps its events' buffers right before it enables them, without another word
            return "[perf_event]" in Path(f"/proc/{pid}/maps").read_text()
        except OSError:
            return False

    command = private_mounts(_WITH_TRACEFS, ["perf", "trace", "-s", "-p", str(target)])
    with running(command, traces, output) as pids:
        wait_until(lambda: False, 0.2)
        yield pids


@contextmanager
def per_syscall(made: Path) -> Iterator[list[int]]:
    """Empty programs on tracepoints by name, from a BPF object."""
    command = [PYTHON, "-m", "benchmarks.empty_tracer", str(made)]
    with running(private_mounts(_WITH_TRACEFS, command), lambda pid: len(kernel.links_of(pid)) >= 2) as pids:
        yield pids
