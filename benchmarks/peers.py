"""Run other tracers, each as a context that yields its processes once it traces.

perf and BCC need tracefs, and BCC kernel headers at the running kernel's path: both get them in a private mount
namespace, so that the machine is not changed.
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
from benchmarks.common import PYTHON, ROOT, child_command, wait_until

_START_S, _STOP_S = 20.0, 20.0
_STEP_S = 0.0005
_WITH_TRACEFS = "mount -t tracefs tracefs /sys/kernel/tracing; mount -t debugfs debugfs /sys/kernel/debug; "


class PeerError(Exception):
    """A peer cannot be measured here; one line with the reason."""


def private_mounts(script: str, command: Sequence[str]) -> list[str]:
    """Return the command line that runs `command` in a private mount namespace after a shell `script`, by exec."""
    return ["unshare", "-m", "sh", "-c", script + 'exec "$@"', "sh", *command]


def _headers() -> tuple[Path, Path]:
    """Return (build, source) trees of kernel headers, if necessary of another kernel: only compile time matters."""
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
    """Return the command line for a BCC program, with headers at BCC's path. Raises ``PeerError``."""
    made, source = (shlex.quote(str(path.resolve())) for path in _headers())
    modules = shlex.quote(f"/lib/modules/{os.uname().release}")
    links = f"mount -t tmpfs tmpfs /lib/modules; mkdir {modules}; ln -s {made} {modules}/build; "
    return private_mounts(links + f"ln -s {source} {modules}/source; " + _WITH_TRACEFS, command)


@contextmanager
def running(command: Sequence[str], traces: Callable[[int], object], output: int | None = None) -> Iterator[list[int]]:
    """Start a tracer, wait until it ``traces(pid)``; yield its process; interrupt it. Raises ``PeerError``."""
    out = subprocess.DEVNULL if output is None else output
    try:
        process = subprocess.Popen(child_command(command), stdout=out, stderr=out, cwd=ROOT)
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
    """Return the command line of libbpf-tools' offcputime, limited in time in case this process is killed."""
    return ["offcputime", *arguments, "600"]


@contextmanager
def libbpf_offcputime(*arguments: str) -> Iterator[list[int]]:
    """Run libbpf-tools' offcputime; yield once it is attached."""
    with running(offcputime(*arguments), _attached) as pids:
        yield pids


@contextmanager
def strace(target: int) -> Iterator[list[int]]:
    """Run ``strace -c -f`` on a process."""

    def traces(_pid: int) -> bool:
        return "TracerPid:\t0" not in Path(f"/proc/{target}/status").read_text()

    with running(["strace", "-c", "-f", "-p", str(target)], traces) as pids:
        yield pids


@contextmanager
def perf_trace(target: int, output: int | None = None) -> Iterator[list[int]]:
    """Run ``perf trace -s`` on a process, its summary into `output`."""

    def traces(pid: int) -> bool:
        try:  # it maps its events' buffers right before it enables them; there is no other sign
            return "[perf_event]" in Path(f"/proc/{pid}/maps").read_text()
        except OSError:
            return False

    command = private_mounts(_WITH_TRACEFS, ["perf", "trace", "-s", "-p", str(target)])
    with running(command, traces, output) as pids:
        wait_until(lambda: False, 0.2)
        yield pids


@contextmanager
def per_syscall(made: Path) -> Iterator[list[int]]:
    """Attach empty programs to tracepoints by name, from a BPF object."""
    command = [PYTHON, "-m", "benchmarks.empty_tracer", str(made)]
    with running(private_mounts(_WITH_TRACEFS, command), lambda pid: len(kernel.links_of(pid)) >= 2) as pids:
        yield pids
