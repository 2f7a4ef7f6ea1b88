"""Open a trace of the scheduler, whatever wrote it."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.ftrace import text as ftrace_text
from whystall.tools.timeline.ftrace import trace_cmd
from whystall.tools.timeline.ftrace.source import Source
from whystall.tools.timeline.sched import SchedTrace

_OTHERS = {
    b"PERFILE2": ("a file of perf", "record with `whystall ftrace record` or trace-cmd"),
    b"SQLite format 3": ("a database", "give the trace it was made from"),
    b"PK\x03\x04": ("a zip archive", "unpack it"),
    b"{": ("JSON", "give the trace it was made from"),
    b"[": ("JSON", "give the trace it was made from"),
}


def open_trace(
    path: Path,
    *,
    cpus: Collection[int] | None = None,
    span_ns: tuple[int, int] | None = None,
    memory: int | None = None,
) -> SchedTrace:
    """The trace in `path`: ftrace's text in any variant, plain, gzipped or in a systrace page; or a trace-cmd file.

    Arguments and errors are those of `ftrace_text.read`; a trace-cmd file needs the program trace-cmd.
    """
    start = _start(path)
    if start.startswith(trace_cmd.MAGIC):
        with trace_cmd.report(path, cpus) as text:
            source = Source(path, text, "trace-cmd finds none: the file is cut or damaged; record it again")
            trace = ftrace_text.read_source(source, cpus=cpus, span_ns=span_ns, memory=memory)
        return replace(trace, clock=trace_cmd.clock_of(path) or trace.clock)
    for magic, (what, remedy) in _OTHERS.items():
        if start.startswith(magic):
            raise ToolError(ErrorCode.BAD_TRACE, f"{path.name} is {what}, not a kernel trace", remedy)
    return ftrace_text.read(path, cpus=cpus, span_ns=span_ns, memory=memory)


def _start(path: Path) -> bytes:
    """How the file begins, unpacked; nothing when it cannot be read, which the reader will tell."""
    with suppress(OSError):
        if not path.is_file() or not path.stat().st_size:
            return b""  # a file of tracefs has no size; what is read of its pipe is gone
        with path.open("rb") as file:
            start = file.read(16)
        if not start.startswith(b"\x1f\x8b"):
            return start
        with suppress(EOFError, zlib.error), gzip.open(path) as packed:
            start = packed.read(16)
        if start.startswith(trace_cmd.MAGIC):
            raise ToolError(ErrorCode.BAD_TRACE, f"{path.name} is a packed file of trace-cmd", "unpack it with gunzip")
        return start
    return b""
