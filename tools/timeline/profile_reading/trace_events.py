"""Read trace events in JSON (Chrome's format) piece by piece: memory holds one piece of text, however large the file.

    {"schemaVersion": 1, "traceEvents": [
      {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 4711, "tid": 4711, "ts": 5621134.137, "dur": 4.608}]}

A piece ends between two events of the list. That place is found in the text and confirmed by parsing: brackets must
match. A piece that is not JSON - profilers wrote ``inf``, bare control characters and unescaped quotes - is read event
by event, and what cannot be read is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar, cast

import msgspec

from whystall.tools.contract.errors import ToolError
from whystall.tools.files.input import DAMAGED, bad, opened, unreadable
from whystall.tools.timeline.profile_reading.numbers import EXACT_FLOAT

_PIECE = 4 << 20  # larger ones are hardly faster, and take memory
_LIMIT = 128 << 20  # a head, a tail or one event beyond it is no profile
_TRIES = 64
_HEADS = 16  # places that may begin the list of events: parsing up to each of them takes quadratic time
_BLOCK = 1 << 20
# Between two objects. A quote after the brace opens a string when a letter follows; so all of it is outside of strings.
_BETWEEN = re.compile(rb"\}(\s*,\s*)(?=\{\s*\"[A-Za-z])")
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIST_END = re.compile(rb"\](?=\s*(?:,\s*\"[A-Za-z]|\}\s*\Z))")
_NO_NUMBER = re.compile(rb"([:\[,]\s*)-?(?:inf|nan|infinity)(?=\s*[,\]}])", re.IGNORECASE)
# What decoding raises: not JSON, not UTF-8, nested too deep.
_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# Its message when brackets do not match at the cut: one is open, or closed that was not opened.
_UNBALANCED = re.compile("truncated|trailing")
_CONTROL = re.compile(rb"[\x00-\x1f]")


class Event(msgspec.Struct, gc=False):
    """The fields of every event; a reader adds others. `ph` X is an activity, M holds names, s and f are links."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: int | float | str = 0
    dur: int | float | str = 0


_E = TypeVar("_E", bound=Event)


class EventFile(Generic[_E]):
    """The events of one file, plain or gzip.

    After all `pieces` were read, `top` holds the file's fields beside the events (empty for a bare list) and `odd`
    counts the events that could not be read.
    """

    def __init__(self, path: Path, kind: type[_E]) -> None:
        self.path = path
        self.top: dict[str, Any] = {}
        self.odd = 0
        self._kind = kind
        self._exact = False
        self._many = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        self._one = msgspec.json.Decoder(kind)

    def pieces(self) -> Iterator[list[_E]]:
        """Yield lists of events in the order of the file. Raises `ToolError` (bad_trace, io_error)."""
        try:
            with opened(self.path) as file:
                yield from self._pieces(file)
        except DAMAGED as error:
            why = f"damaged or cut short ({type(error).__name__})"
            raise bad(self.path, why, f"copy it again: gzip -t {self.path.name} tells whether it is whole") from None
        except OSError as error:
            raise unreadable(self.path, error) from None

    def _pieces(self, file: BinaryIO) -> Iterator[list[_E]]:
        text, bare = self._head(file)
        wanted = _PIECE
        while True:
            block = file.read(max(wanted - len(text), _BLOCK))
            if not block:
                break
            text += block
            if len(text) < wanted:
                continue
            piece, text = self._cut(text)
            if piece is not None:
                yield piece
            elif len(text) > _LIMIT:
                raise self._bad(f"more than {_LIMIT >> 20} MiB without an event")
            wanted = _PIECE if piece is not None else 2 * len(text)
        piece, text = self._cut(text)
        yield piece or []
        yield self._tail(text, bare)

    def _head(self, file: BinaryIO) -> tuple[bytes, bool]:
        """Return the text after the opening bracket of the events, and whether they are a bare list."""
        text = b""
        while True:
            block = file.read(max(_BLOCK, len(text)))
            text += block
            start = text.lstrip()
            if start.startswith(b"["):
                return start[1:], True
            if start and not start.startswith(b"{"):
                raise self._bad("not JSON")
            for match in islice(_LIST.finditer(text), _HEADS):
                top = _parsed(text[: match.end()] + b"]}")
                if top is not None:
                    self.top = top
                    return text[match.end() :], False
            if not block or len(text) > _LIMIT:
                raise self._bad("no list of events in it" if start else "it is empty")

    def _cut(self, text: bytes) -> tuple[list[_E] | None, bytes]:
        """Return the events up to the last boundary between two, and the rest; None: there is no boundary yet."""
        # nearly always within the last few events; else search all of it
        for begin in (max(len(text) - (1 << 18), 0), 0):
            places = [(match.start() + 1, match.end()) for match in _BETWEEN.finditer(text, begin)]
            for end, following in places[: -_TRIES - 1 : -1]:
                try:
                    return self._decoded(text[:end]), text[following:]
                except _ERRORS as error:
                    if _UNBALANCED.search(str(error)):  # within an event, or after the list
                        continue
                    return self._salvaged(text[:end]), text[following:]
        return None, text

    def _tail(self, text: bytes, bare: bool) -> list[_E]:
        """Return the last event, or everything without a boundary, and keep the file's fields after the events."""
        if bare:
            end = text.rstrip()
            if not end.endswith(b"]"):
                raise self._bad("it ends in the middle")
            places = [len(end) - 1]
        else:
            places = [match.start() for match in _LIST_END.finditer(text)]
        for place in places:
            top = {} if bare else _parsed(b'{"traceEvents":[' + text[place:])
            if top is None:
                continue
            self.top |= {key: value for key, value in top.items() if key != "traceEvents"}
            events = text[:place]
            if not events.strip():
                return []
            try:
                return self._decoded(events)
            except _ERRORS:
                return self._salvaged(events)
        raise self._bad("it ends in the middle")

    def _decoded(self, events: bytes) -> list[_E]:
        text = b"[" + events + b"]"
        try:
            found = cast("list[_E]", self._many.decode(text))
        except msgspec.ValidationError:
            found = self._singly(msgspec.json.decode(text, type=list[msgspec.Raw]))
        if self._exact:
            for event in found:
                event.ts, event.dur = _text(event.ts), _text(event.dur)
        elif max([event.ts for event in found if type(event.ts) is float], default=0) >= EXACT_FLOAT:
            self._read_exactly()
            return self._decoded(events)
        return found

    def _read_exactly(self) -> None:
        """Keep numbers of time as text from now on: they are decimals too long for a float."""
        raw: Any = msgspec.Raw
        fields = [(name, raw, raw(b"0")) for name in ("ts", "dur")]
        kind: Any = msgspec.defstruct(f"Exact{self._kind.__name__}", fields, bases=(self._kind,), gc=False)
        self._many, self._one, self._exact = msgspec.json.Decoder(list[kind]), msgspec.json.Decoder(kind), True

    def _singly(self, events: list[msgspec.Raw]) -> list[_E]:
        found: list[_E] = []
        for event in events:
            try:
                found.append(self._one.decode(event))
            except (msgspec.ValidationError, UnicodeDecodeError):
                self.odd += 1
        return found

    def _salvaged(self, text: bytes) -> list[_E]:
        """Return the events of a piece that is not JSON as a whole."""
        found: list[_E] = []
        begin = tries = 0
        for end, following in [*((m.start() + 1, m.end()) for m in _BETWEEN.finditer(text)), (len(text), len(text))]:
            event = text[begin:end]
            try:
                found += self._decoded(event)
            except _ERRORS as error:
                if _UNBALANCED.search(str(error)) and end < len(text) and tries < _TRIES:
                    tries += 1  # the boundary lies within the event
                    continue
                try:
                    found += self._decoded(_mended(event))
                except _ERRORS:
                    self.odd += 1
            begin, tries = following, 0
        return found

    def _bad(self, why: str) -> ToolError:
        return bad(self.path, why)


def content_before_events(text: bytes) -> dict[str, Any] | None:
    """Return the fields before the list ``traceEvents`` in the JSON object beginning with `text`; None: no list yet."""
    for match in islice(_LIST.finditer(text), _HEADS):
        content = _parsed(text[: match.end()] + b"]}")
        if content is not None:
            return content
    return None


def _text(number: object) -> str:
    return bytes(number).decode() if isinstance(number, msgspec.Raw) else str(number)


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(text)
    except _ERRORS:
        return None
    return found if isinstance(found, dict) else None


def _mended(event: bytes) -> bytes:
    """Return the event with invalid numbers, strings and encoding corrected."""
    return _CONTROL.sub(b" ", _NO_NUMBER.sub(rb"\1null", event)).decode("utf-8", "replace").encode()
