"""Read trace-cmd's own files through ``trace-cmd report``, whose output is ftrace's text."""

from __future__ import annotations

import os
import re
import resource
import select
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from whystall.tools.contract.commands import argv, program
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean
from whystall.tools.files.formats import Format, Match
from whystall.tools.files.input import GZIP
from whystall.tools.timeline.ftrace import text
from whystall.tools.timeline.ftrace.source import Source
from whystall.tools.timeline.sched import SchedTrace

MAGIC = b"\x17\x08\x44tracing"
"""The first bytes of such a file."""

PROGRAM = "trace-cmd"
SILENCE_S = 120.0
"""Seconds without output after which trace-cmd is ended."""

_CLOCK_S = 20.0
_CPU_S = 3600  # seconds of CPU time
_MEMORY = 8 << 30  # bytes of address space
_FILE = 64 << 30  # bytes of a file that it unpacks
_MESSAGE = 4096
_CLOCK = re.compile(r"\[([a-z0-9_-]{1,32})\]")


class Report:
    """The text of a trace-cmd file as a stream; it need not be read to the end."""

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        if process.stdout is None:
            raise ValueError("its output is no pipe")
        self._process, self._pipe, self._errors = process, process.stdout, errors
        self.size = 0

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end. Raises `ToolError` when trace-cmd hangs or fails."""
        ready, _, _ = select.select([self._pipe], [], [], SILENCE_S)
        if not ready:
            raise _failed(f"wrote nothing for {SILENCE_S:.0f} s")
        data = os.read(self._pipe.fileno(), size)
        self.size += len(data)
        if not data:
            status = self._process.wait()
            self._errors.seek(0)
            message = " ".join(self._errors.read(_MESSAGE).decode("utf-8", "backslashreplace").split())
            if status or (message and not self.size):
                raise _failed(message or f"ended with status {status}")
        return data


@contextmanager
def report(path: Path, cpus: Collection[int] | None = None) -> Iterator[Report]:
    """Run ``trace-cmd report`` on `path`, of these CPUs only: full time stamps, the kernel's format, no plugins.

    The process is ended on exit. Raises `ToolError` BAD_TRACE when trace-cmd is not installed.
    """
    only = ",".join(str(cpu) for cpu in sorted(cpus)) if cpus else None
    words = argv("trace-cmd.report", _program(), input=os.path.abspath(path), cpus=only)
    with tempfile.TemporaryFile() as errors:
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        with subprocess.Popen(
            words, stdin=nothing, stdout=pipe, stderr=errors, env=_environment(), bufsize=0
        ) as process:
            _bound(process)
            try:
                yield Report(process, errors)
            finally:
                process.kill()


def clock_of(path: Path) -> str:
    """Return the kernel's name of the clock of the time stamps in `path`; empty when the file does not have it."""
    words = argv("trace-cmd.clock", _program(), input=os.path.abspath(path))
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_CLOCK_S, env=_environment()
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = _CLOCK.search(done.stdout[:_MESSAGE].decode("ascii", "replace"))
    return found[1] if found else ""


def _program() -> str:
    found = program("trace-cmd.report")
    if found is None:
        raise ToolError(
            ErrorCode.BAD_TRACE,
            "this is a file of trace-cmd, which is not installed here",
            "install the package trace-cmd, or convert where it is: trace-cmd report -t -N -i FILE > FILE.txt",
        )
    return found


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TMPDIR": tempfile.gettempdir()}


def _bound(process: subprocess.Popen[bytes]) -> None:
    """Limit the process's resources, against damaged files."""
    limits = {resource.RLIMIT_CPU: _CPU_S, resource.RLIMIT_AS: _MEMORY, resource.RLIMIT_FSIZE: _FILE}
    for limit, most in limits.items():
        with suppress(OSError, ValueError):
            resource.prlimit(process.pid, limit, (most, most))


def _failed(why: str) -> ToolError:
    return ToolError(ErrorCode.BAD_TRACE, f"trace-cmd could not read the file: {clean(why, 300)}", "record it again")


def read(
    path: Path,
    *,
    cpus: Collection[int] | None = None,
    span_ns: tuple[int, int] | None = None,
    memory: int | None = None,
) -> SchedTrace:
    """Return the trace in a trace-cmd file. Arguments and errors are those of `whystall.tools.timeline.ftrace.text`."""
    with path.open("rb") as file:
        if file.read(2) == GZIP:
            raise ToolError(ErrorCode.BAD_TRACE, f"{path.name} is a packed file of trace-cmd", "unpack it with gunzip")
    with report(path, cpus) as output:
        source = Source(path, output, "trace-cmd finds none: the file is cut or damaged; record it again")
        trace = text.read_source(source, cpus=cpus, span_ns=span_ns, memory=memory)
    return replace(trace, clock=clock_of(path) or trace.clock)


FORMAT = Format("trace-cmd", lambda head: Match.CERTAIN if head.begin.startswith(MAGIC) else Match.NO, read)
