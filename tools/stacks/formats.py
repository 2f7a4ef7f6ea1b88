"""The formats of stack samples that are read, except those of accelerators' profilers."""

from __future__ import annotations

from pathlib import Path

from whystall.tools.files.formats import Format, Head, format_of, refuse_others
from whystall.tools.files.input import bad, unreadable
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.readers import chrome, folded, perf_script, pprof, speedscope

FORMATS: tuple[Format[StackProfile], ...] = (
    chrome.FORMAT,
    folded.FORMAT,
    perf_script.FORMAT,
    pprof.FORMAT,
    speedscope.FORMAT,
)
"""The formats that are read, in any order."""

_REMEDY = "give folded stacks (py-spy raw too), perf script, pprof, speedscope or a Chrome trace"
_OTHERS = {
    b"PERFILE2": ("data of perf", "run `perf script -i FILE` and give its output"),
    b"SQLite format 3": ("a database", _REMEDY),
    b"PK\x03\x04": ("a zip archive", "unpack it"),
    b"\x7fELF": ("a program", "give the profile that was made of it"),
}


def read(path: Path) -> StackProfile:
    """Return the stack samples in `path`, of all its events.

    Raises `ToolError`: bad_trace (of no known format or of several, empty, nothing readable in it, beyond the format's
    bound), io_error. A pipe or a device is refused without reading.
    """
    return format_at(path).read(path)


def format_at(path: Path) -> Format[StackProfile]:
    """Return the format of the file `path`, by its first MiB unpacked. Raises `ToolError` as `read`."""
    head = Head(path)
    try:
        if not head.data.strip():
            if head.damaged:
                raise bad(path, "damaged or cut short")
            raise bad(path, "it is empty", "profile for longer, or while the program runs")
        refuse_others(head, _OTHERS)
        found = format_of(head, FORMATS)
    except OSError as error:
        raise unreadable(path, error) from None
    if found is None:
        raise bad(path, "no stack samples of a known format in it", _REMEDY)
    return found
