"""Find the versions of software that a log states, as far as ``components.yaml`` knows the line."""

from __future__ import annotations

import re

from whystall.tools.contract.text import clean
from whystall.tools.known_fixes.catalogue import components
from whystall.tools.known_fixes.versions import UnknownVersion, parsed, upstream_kernel

ENGINE = "log"
Row = tuple[str, str, str, int, bool]
"""A row of the table ``versions.versions``."""
_NO_PID = -1
_MOST_BYTES = 64 << 20
_MOST_STATED = 16
_LINE = 4096
_MARK = re.compile(rb"ersion|Kernel Module")


class StatedVersions:
    """Takes the bytes of one log, piece by piece, with `take`: its first 64 MiB. `rows` are the versions, at most 16.

    Line: ``node01:9:9 [0] NCCL INFO NCCL version 2.21.5+cuda12.4``.
    """

    def __init__(self) -> None:
        self._rows: dict[Row, None] = {}
        self._left = _MOST_BYTES
        self._rest = b""

    def take(self, raw: bytes) -> None:
        """Read the next piece of the file; an empty one ends the last line."""
        if self._left <= 0 or len(self._rows) >= _MOST_STATED:
            return
        data = self._rest + raw[: self._left]
        self._left -= len(raw)
        end = data.rfind(b"\n") + 1 if raw and self._left > 0 else len(data)
        self._rest = data[end:][:_LINE]
        at = 0
        while (found := _MARK.search(data, at, end)) is not None:
            start = data.rfind(b"\n", 0, found.start()) + 1
            at = data.find(b"\n", found.start(), end) + 1 or end
            for row in _stated(data[start : min(at, start + _LINE)].decode("utf-8", "replace")):
                if len(self._rows) < _MOST_STATED:
                    self._rows.setdefault(row)

    @property
    def rows(self) -> list[Row]:
        """The versions, in the order of their lines, each once."""
        return list(self._rows)


def stated_kernel(release: str) -> Row | None:
    """Return the version of the kernel whose `release` a crash report states; None if it is no version."""
    try:
        version, vendor = upstream_kernel(release)
    except UnknownVersion:
        return None
    return ("kernel", version, ENGINE, _NO_PID, vendor)


def _stated(line: str) -> list[Row]:
    rows = []
    for name, about in components().items():
        for pattern in about.stated:
            if found := pattern.search(line):
                try:
                    if name == "kernel":
                        version, vendor = upstream_kernel(found[1], line)
                    else:
                        version, vendor = clean(found[1].rstrip(".,;:")), False
                        parsed(version)
                except UnknownVersion:
                    continue
                rows.append((name, version, ENGINE, _NO_PID, vendor))
    return rows
