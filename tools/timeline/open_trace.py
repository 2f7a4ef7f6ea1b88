"""Open a trace of the scheduler, whatever wrote it."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.formats import Format, Head, format_of, refuse_others
from whystall.tools.timeline.ftrace import text, trace_cmd
from whystall.tools.timeline.sched import SchedTrace

FORMATS: tuple[Format[SchedTrace], ...] = (text.FORMAT, trace_cmd.FORMAT)
"""The formats that are read, in any order."""

_OTHERS = {
    b"PERFILE2": ("a file of perf", "give what `perf script -i FILE` prints, or record with `whystall ftrace record`"),
    b"SQLite format 3": ("a database", "give the trace it was made from"),
    b"PK\x03\x04": ("a zip archive", "unpack it"),
    b"[": ("JSON", "give the trace it was made from"),
}
_TAR_AT = 257
_TAR_REMEDY = (
    "unpack it and give the trace's text; SchedViz's archives hold the kernel's buffers without text: record with"
    " `whystall ftrace record` or trace-cmd instead"
)


def open_trace(
    path: Path,
    *,
    cpus: Collection[int] | None = None,
    span_ns: tuple[int, int] | None = None,
    memory: int | None = None,
) -> SchedTrace:
    """Return the trace in `path`: ftrace's text in any variant, plain, packed by gzip or atrace, in a systrace page
    or in Chrome's JSON; the output of ``perf script``; or a trace-cmd file.

    Arguments and errors are those of `whystall.tools.timeline.ftrace.text.read`; a trace-cmd file needs the program
    trace-cmd.
    """
    return _format(path).read(path, cpus=cpus, span_ns=span_ns, memory=memory)


def _format(path: Path) -> Format[SchedTrace]:
    with suppress(OSError):
        if path.is_file() and path.stat().st_size:  # tracefs files have size 0, and reading a trace pipe consumes it
            head = Head(path)
            refuse_others(head, _OTHERS)
            if head.begin[_TAR_AT:].startswith(b"ustar"):
                raise ToolError(ErrorCode.BAD_TRACE, f"{path.name} is an archive of tar", _TAR_REMEDY)
            return format_of(head, FORMATS) or text.FORMAT
    return text.FORMAT  # its reader reports why a file cannot be read
