"""Choose the format of a file by how it begins, independently of the order in which the formats are listed.

A format is one `Format` in the module of its reader, and one line in a registry: `whystall.tools.timeline.profiles`,
`whystall.tools.timeline.open_trace` or `whystall.tools.stacks.formats`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.input import DAMAGED, opened

_BEGIN = 1 << 12
_SNIFF = 1 << 20
_LINES = 400
_LINES_BYTES = 1 << 18
_JSON = re.compile(rb'\s*(?:(\{)\s*(?:["}]|\Z)|(\[)\s*(?:[\[\]{"0-9-]|\Z))')
_SQLITE = b"SQLite format 3\0"

T = TypeVar("T")
F = TypeVar("F", bound="Format[Any]")


class Match(IntEnum):
    """How well a file fits a format. The best match is chosen; two formats with the best match are an error."""

    NO = 0
    POSSIBLE = 1
    """The container fits (any JSON object, any text), and nothing contradicts."""
    LIKELY = 2
    """The layout fits, and other formats share it."""
    CERTAIN = 3
    """It holds what only this format has."""


class Head:
    """The beginning of a file, unpacked, or a directory.

    The properties raise OSError, and `ToolError` (bad_trace) for a pipe or device.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.damaged = False
        """Whether unpacking what was read so far failed."""

    @cached_property
    def directory(self) -> bool:
        """Whether it is a directory."""
        return self.path.is_dir()

    @cached_property
    def begin(self) -> bytes:
        """The first 4 KiB, or less if it is damaged; empty for a directory."""
        return self._read(_BEGIN)

    @cached_property
    def data(self) -> bytes:
        """The first MiB, or less if it is damaged; empty for a directory."""
        return self._read(_SNIFF)

    @cached_property
    def json(self) -> bytes:
        """``{`` or ``[`` for a JSON object or list, else empty."""
        match = _JSON.match(self.begin if self.begin.strip() else self.data)
        return (match[1] or match[2]) if match else b""

    @cached_property
    def database(self) -> bool:
        """Whether it is an SQLite database."""
        return self.begin.startswith(_SQLITE)

    @cached_property
    def lines(self) -> list[str]:
        """The first 400 lines in the first 256 KiB; none if that holds a NUL."""
        data = self.data[:_LINES_BYTES]
        if b"\0" in data:
            return []
        text = data.decode("utf-8", "replace")
        if len(data) == _LINES_BYTES:
            text = text[: text.rfind("\n") + 1] or text
        return text.split("\n", _LINES)[:_LINES]

    def _read(self, size: int) -> bytes:
        if self.directory:
            return b""
        parts: list[bytes] = []
        with opened(self.path) as file:
            read = getattr(file, "read1", file.read)  # `read` would lose the bytes before the damage
            try:
                while size > 0 and (part := read(size)):
                    parts.append(part)
                    size -= len(part)
            except DAMAGED:
                self.damaged = True
        return b"".join(parts)


@dataclass(frozen=True)
class Format(Generic[T]):
    """A format: its public `name`, how well a file fits it, and its reader."""

    name: str
    detect: Callable[[Head], Match]
    read: Callable[..., T]


def format_of(head: Head, formats: Iterable[F]) -> F | None:
    """Return the format that fits `head` best; None if none does.

    Raises `ToolError` (bad_trace) if several fit equally well; OSError.
    """
    found = [(match, one) for one in formats if (match := one.detect(head))]
    best = max((match for match, _ in found), default=Match.NO)
    names = sorted(one.name for match, one in found if match == best)
    if len(names) > 1:
        message = f"{head.name} may be of several formats: {', '.join(names)}"
        raise ToolError(ErrorCode.BAD_TRACE, message, "export it again in one of them")
    return next((one for match, one in found if match == best), None)


def refuse_others(head: Head, others: Mapping[bytes, tuple[str, str]]) -> None:
    """Raise `ToolError` (bad_trace) if `head` begins with one of `others`: magic -> (what it is, remedy)."""
    for magic, (what, remedy) in others.items():
        if head.begin.startswith(magic):
            raise ToolError(ErrorCode.BAD_TRACE, f"{head.name} is {what}", remedy)
