"""Decode code objects from the BPF programs' records, and the frames of Python stacks.

Names and paths are untrusted text, only decoded here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from whystall.bpf import layout as lay
from whystall.bpf.python_lines import line_of

CUT = "…"
_LINES = lay.CodeRecord.lines.offset
_MOST_LINE = (1 << 31) - 1
_CALL = -1


@dataclass(frozen=True)
class Code:
    """One code object."""

    name: str
    """Qualified name from CPython 3.11 on; a long one is cut at its end."""
    file: str
    """As given to the compiler: a path, ``<string>`` ...; a long one lacks its head."""
    first_line: int
    lines: bytes
    """The line table, or the head of it."""
    pairs: bool
    """Whether the line table has the format of CPython 3.10."""

    def line(self, instruction: int) -> int:
        """Return the line of an instruction (-1: before the first); 0: unknown."""
        line = line_of(self.lines, self.first_line, instruction, pairs=self.pairs)
        return line if line <= _MOST_LINE else 0


UNKNOWN = Code("[python]", "", 0, b"", pairs=False)
"""Stands for a code object without a record."""


class Frame(NamedTuple):
    """One Python frame."""

    name: str
    file: str
    line: int
    """0: unknown."""
    entry: bool
    """Whether a C call of the evaluator begins with it: its caller is C."""

    @property
    def call(self) -> bool:
        """Whether it is no frame, but the function of an accelerator's library that the innermost frame calls."""
        return self.line == _CALL


def decode(record: bytes) -> tuple[tuple[int, int], Code]:
    """Return (process id, code id) and content of a code record."""
    head = lay.CodeRecord.from_buffer_copy(record[:_LINES].ljust(_LINES + lay.CODE_LINES_BYTES, b"\0"))
    at = lay.CodeRecord.name.offset
    name = _text(record[at : at + lay.CODE_NAME_BYTES], head.name_kind, head.name_length, tail=False)
    at = lay.CodeRecord.file.offset
    file = _text(record[at : at + lay.CODE_FILE_BYTES], head.file_kind, head.file_length, tail=True)
    first = head.first_line if head.first_line <= _MOST_LINE else 0
    pairs = bool(head.flags & lay.PYTHON_FRAME_OBJECTS)
    return (head.tgid, head.id), Code(name or UNKNOWN.name, file, first, record[_LINES:], pairs)


def frames(words: Iterable[int], tgid: int, codes: Mapping[tuple[int, int], Code]) -> list[Frame]:
    """Return the frames of a Python stack of process `tgid`, innermost first."""
    return [_frame(word, codes.get(key_of(word, tgid), UNKNOWN)) for word in words]


def is_call(word: int) -> bool:
    """Return whether a word of a Python stack is no frame, but the function of an accelerator's library."""
    return word & lay.FRAME_INSTRUCTION == lay.FRAME_INSTRUCTION


def key_of(word: int, tgid: int) -> tuple[int, int]:
    """Return the key of the code object of a word of a stack of process `tgid`; of a function of an accelerator's
    library that of `call_record`."""
    return (0 if is_call(word) else tgid), word >> lay.FRAME_CODE_SHIFT


def call_record(number: int, name: str) -> bytes:
    """Return the record that gives the function `number` of accelerators' libraries its name, in ASCII."""
    text = name.encode("ascii")[: lay.CODE_NAME_BYTES]
    record = lay.CodeRecord(type=lay.RECORD_CODE, id=number, name_kind=1, name_length=len(text), name=text)
    return bytes(record)[:_LINES]


@dataclass
class PythonResult:
    """The Python processes and code objects of a window."""

    codes: dict[tuple[int, int], Code] = field(default_factory=dict)
    """By process id and code id."""
    processes: dict[int, int] = field(default_factory=dict)
    """By process id: minor version of CPython 3 of the processes whose frames were walked."""
    refused: dict[int, str] = field(default_factory=dict)
    """By process id: why frames of a Python process cannot be walked."""

    def frames(self, words: Iterable[int], tgid: int) -> list[Frame]:
        """Return the frames of a Python stack of process `tgid`, innermost first."""
        return frames(words, tgid, self.codes)


def _frame(word: int, code: Code) -> Frame:
    if is_call(word):
        return Frame(code.name, "", _CALL, entry=False)
    return Frame(code.name, code.file, _line(code, (word & lay.FRAME_INSTRUCTION) - 1), bool(word & lay.FRAME_ENTRY))


@lru_cache(maxsize=65536)
def _line(code: Code, instruction: int) -> int:
    return code.line(instruction)


_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


def _text(raw: bytes, kind: int, length: int, *, tail: bool) -> str:
    """Decode the head or tail of a string; `length` is that of the whole string, in characters."""
    if kind not in _ENCODINGS:
        return ""
    kept = min(length * kind, len(raw) // kind * kind)
    text = raw[:kept].decode(_ENCODINGS[kind], "backslashreplace")
    if length * kind <= len(raw):
        return text
    return CUT + text if tail else text + CUT
