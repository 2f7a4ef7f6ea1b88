"""Stack samples in a file of any format but those of accelerators: which one it is, by its content, and reading it."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import cast

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.input import DAMAGED, bad, opened, unreadable
from whystall.tools.stacks.model import StackProfile

FORMATS = ("folded", "perf_script", "pprof", "speedscope", "chrome")
"""Formats that are read, by the names of their modules here."""

_SNIFF = 1 << 18
_LINES = 400
_REMEDY = "give folded stacks (py-spy raw too), perf script, pprof, speedscope or a Chrome trace"
_OTHERS = {
    b"PERFILE2": ("data of perf", "run `perf script -i FILE` and give its output"),
    b"SQLite format 3": ("a database", _REMEDY),
    b"PK\x03\x04": ("a zip archive", "unpack it"),
    b"\x7fELF": ("a program", "give the profile that was made of it"),
}
_SPEEDSCOPE = re.compile(rb'"\$schema"\s*:\s*"[^"]*speedscope|"shared"\s*:\s*\{\s*"frames"\s*:')
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a]")
_EVENT = re.compile(rb'"ph"\s*:\s*"[A-Za-z]"')
_REFUSED = re.compile(r"[^;\s].*\s(?:-[0-9][0-9.e+]*|[-+]?(?:nan|inf(?:inity)?))\s*", re.IGNORECASE)


def read(path: Path, event: str = "") -> StackProfile:
    """The stack samples in `path`, all events of it; `event` is asked for later (`whystall.tools.stacks.events`), and
    only helps readers that can leave others out.

    Raises `ToolError`: bad_trace (of no known format, empty, nothing readable in it, beyond the format's bound),
    io_error. A pipe or a device is never waited for.
    """
    found = sniff(path)
    if found is None:
        raise bad(path, "no stack samples of a known format in it", _REMEDY)
    reader = cast("Callable[[Path], StackProfile]", import_module(f"{__package__}.readers.{found}").read)
    return reader(path)


def sniff(path: Path) -> str | None:
    """The format of `path` (of `FORMATS`), by its first 256 KiB unpacked; None when it is none of them.

    Raises `ToolError`: bad_trace when it is empty or something known that holds no stacks, io_error.
    """
    try:
        with opened(path) as file:
            start = file.read(_SNIFF)
    except DAMAGED:
        raise bad(path, "damaged or cut short") from None
    except OSError as error:
        raise unreadable(path, error) from None
    if not start.strip():
        raise bad(path, "it is empty", "profile for longer, or while the program runs")
    for magic, (what, remedy) in _OTHERS.items():
        if start.startswith(magic):
            raise ToolError(ErrorCode.BAD_TRACE, f"{path.name} is {what}", remedy)
    return _json(start.lstrip()) or _binary(start) or _lines(start)


def _json(start: bytes) -> str | None:
    if start[:1] == b"{":
        if _SPEEDSCOPE.search(start):
            return "speedscope"
        return "chrome" if b'"traceEvents"' in start else None
    return "chrome" if start[:1] == b"[" and (_EVENT.search(start) or not start[1:].strip(b" \t\r\n]")) else None


def _binary(start: bytes) -> str | None:
    if not _CONTROL.search(start):  # lengths and numbers of protocol buffers are hardly ever letters alone
        return None
    from whystall.tools.stacks.readers.pprof import is_pprof

    return "pprof" if is_pprof(start) else None


def _lines(start: bytes) -> str | None:
    if b"\0" in start:
        return None
    text = start.decode("utf-8", "replace")
    if len(start) == _SNIFF:
        text = text[: text.rfind("\n") + 1] or text
    lines = text.split("\n", _LINES)[:_LINES]
    import polars as pl

    from whystall.tools.stacks.readers.folded import LINES, lines_of
    from whystall.tools.stacks.readers.perf_script import is_perf_script

    if is_perf_script(lines):
        return "perf_script"
    sound, odd = lines_of(pl.DataFrame({"line": lines, "times": 1}, schema=LINES), 1)
    if sound.height and sound.height >= odd:
        return "folded"
    # what is refused line by line, as negative counts are, is of this format all the same
    refused = sum(_REFUSED.fullmatch(line) is not None for line in lines)
    return "folded" if refused and sound.height + refused > max(odd - refused, 0) and ";" in text else None
