"""Recognise files that people give instead of a profile, and name the way to a readable one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.formats import Head

_UNPACK = "unpack it and give the directory: "
# By what the file begins with (unpacked from gzip): what it is, and the remedy.
_CONTENT: tuple[tuple[re.Pattern[bytes], str, str], ...] = (
    (re.compile(rb"PK\x03\x04"), "a zip archive", _UNPACK + "unzip {name}"),
    (re.compile(rb".{257}ustar", re.DOTALL), "a tar archive", _UNPACK + "tar xf {name}"),
    (re.compile(rb"7z\xbc\xaf\x27\x1c"), "a 7z archive", _UNPACK + "7z x {name}"),
    (re.compile(rb"\xfd7zXZ\0"), "packed with xz", "decompress it: xz -dk {name}"),
    (re.compile(rb"BZh[1-9]"), "packed with bzip2", "decompress it: bzip2 -dk {name}"),
    (re.compile(rb"\x04\x22\x4d\x18"), "packed with lz4", "decompress it: lz4 -d {name}"),
    (
        re.compile(rb"\s*<(?:!doctype\s+html|html)\b", re.IGNORECASE),
        "a web page, no trace",
        "give the trace that it shows, or download the trace again: a server's error page may have been saved for it",
    ),
    (re.compile(rb"\x89HDF\r\n"), "an HDF5 file", "of Nsight Systems: nsys export --type sqlite REPORT.nsys-rep"),
    (
        re.compile(rb"PERFILE2"),
        "a recording of perf, no trace of a rank",
        "give it to flame_graph: perf script -i {name} > stacks.txt",
    ),
)
# By suffix, where the content has no mark.
_SUFFIXES: tuple[tuple[str, str, str], ...] = (
    (
        ".xplane.pb",
        "a profile of XLA, which is not read",
        "record the job with torch.profiler (export_chrome_trace) or `nsys profile`",
    ),
    (
        ".ncu-rep",
        "a report of Nsight Compute, which has no time line",
        "record the job with `nsys profile` and export it: nsys export --type sqlite REPORT.nsys-rep",
    ),
    (
        ".perfetto-trace",
        "a trace of Perfetto, which is not read",
        "convert it: traceconv json {name} {name}.json",
    ),
)
_TRIED = 100
"""Files of a directory that are opened to find out what it holds instead of profiles."""


def refusal(head: Head) -> ToolError | None:
    """Return the error for a file that is known to be no profile, with what it is and the way to one; else None.

    Raises OSError, `ToolError` (bad_trace) for a pipe.
    """
    if head.directory:
        return None
    found = next(((what, how) for suffix, what, how in _SUFFIXES if head.name.endswith(suffix)), None)
    found = found or next(((what, how) for mark, what, how in _CONTENT if mark.match(head.begin)), None)
    if found is None:
        return None
    return ToolError(ErrorCode.BAD_TRACE, f"{head.path} is {found[0]}", found[1].format(name=head.name))


def refusal_below(directory: Path, *more: Callable[[Head], ToolError | None]) -> ToolError | None:
    """Return the error for the first file below `directory` that is known to be no profile, or that one of `more` has
    one for; None if there is none."""
    files = (Path(place, name) for place, _, names in os.walk(directory) for name in sorted(names))
    for path in islice(files, _TRIED):
        head = Head(path)
        try:
            error = next((found for one in (refusal, *more) if (found := one(head))), None)
        except (OSError, ToolError):
            continue
        if error is not None:
            return error
    return None
