"""Unwrap ftrace's text: compressed output of atrace, a string in Chrome's JSON, sections of a page of systrace."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Protocol

from whystall.tools.contract.errors import ErrorCode, ToolError

BEGIN = 1024
"""Bytes that show how a file is wrapped."""

# `atrace -z`: messages, "TRACE:", a zlib stream. adb shell may have put carriage returns before every line feed in it
# (catapult, systrace/tracing_agents/atrace_agent.py, strip_and_decompress_trace).
_ATRACE = re.compile(rb"(?:(?:[^\n]{0,200}\n){0,8}?\r*TRACE:(?P<end>\r*\n))?(?=x[\x01\x9c\xda])")
_EMBEDDED = re.compile(rb'"systemTraceEvents"\s*:\s*"')
_OVERLAP = 64  # bytes in which the key may be cut
_STRING = re.compile(rb'[^"\\]*(?:\\(?:u[0-9a-fA-F]{4}|[^u])[^"\\]*)*', re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"\n": b""}
_HTML = re.compile(rb"\s*<(?:!doctype html|html)", re.IGNORECASE)
_SECTION = re.compile(rb'<script[^<>]{0,256}class="trace-data"[^<>]{0,256}>|linuxPerfData = (?P<quoted>")(?:\\(?=\s))?')
_SECTION_END = re.compile(rb"</script>")
_QUOTED_END = re.compile(rb'</script>|^";|(?<=\\n)";\s*$', re.MULTILINE)
_ENTITIES = ((b"&lt;", b"<"), (b"&gt;", b">"), (b"&quot;", b'"'), (b"&#39;", b"'"), (b"&amp;", b"&"))


class Stream(Protocol):
    """A source of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""


class Ahead:
    """A stream whose beginning can be looked at."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self.begin = stream, b""
        while len(self.begin) < BEGIN and (data := stream.read(BEGIN - len(self.begin))):
            self.begin += data
        self._left = self.begin

    def read(self, size: int) -> bytes:
        data, self._left = self._left, b""
        return data or self._stream.read(size)


def unwrapped(stream: Stream, begin: bytes, name: str) -> Stream:
    """Return the text in `stream`, which begins with `begin`. Raises `ToolError` BAD_TRACE for JSON without such text,
    when it is read."""
    if found := _ATRACE.match(begin):
        return _Inflated(stream, found.end(), found["end"] or b"\n")
    return _Embedded(stream, name) if begin.lstrip().startswith(b"{") else stream


class _Inflated:
    """The content of a zlib stream after `skip` bytes, whose line feeds became `line_end`. `cut`: it breaks off."""

    def __init__(self, stream: Stream, skip: int, line_end: bytes) -> None:
        self._stream, self._skip, self._end, self._held = stream, skip, line_end, b""
        self._inflate = zlib.decompressobj()
        self.cut = False

    def read(self, size: int) -> bytes:
        while not (self._inflate.eof or self.cut):
            data = self._inflate.unconsumed_tail or self._packed(size)
            try:
                if content := self._inflate.decompress(data, size):
                    return content
            except zlib.error:
                self.cut = True
            self.cut = self.cut or not data
        return b""

    def _packed(self, size: int) -> bytes:
        """Return compressed bytes; none at the end."""
        while data := self._stream.read(size):
            skipped, self._skip = data[self._skip :], max(0, self._skip - len(data))
            data = self._held + skipped
            kept = len(data.rstrip(b"\r")) if self._end != b"\n" else len(data)
            data, self._held = data[:kept].replace(self._end, b"\n"), data[kept:]
            if data:
                return data
        data, self._held = self._held, b""
        return data


class _Embedded:
    """The string ``systemTraceEvents`` of Chrome's JSON."""

    def __init__(self, stream: Stream, name: str) -> None:
        self._stream, self._name, self._rest = stream, name, b""
        self._inside = self._done = False

    def read(self, size: int) -> bytes:
        while not self._done and (data := self._stream.read(size)):
            data = self._rest + data
            if not self._inside:
                found = _EMBEDDED.search(data)
                self._rest = data[-_OVERLAP:]
                if found is None:
                    continue
                data, self._inside = data[found.end() :], True
            whole = _STRING.match(data)
            end = whole.end() if whole else 0
            self._rest = data[end:]
            self._done = self._rest.startswith(b'"') or len(self._rest) > _OVERLAP
            if end:
                return _plain(data[:end])
        if not self._inside:
            raise ToolError(
                ErrorCode.BAD_TRACE,
                f"{self._name} is JSON without the text of ftrace",
                "give the trace it was made from",
            )
        return b""


def _plain(text: bytes) -> bytes:
    """Return `text` without the escapes of a string of JavaScript or JSON."""
    return _ESCAPE.sub(_character, text) if b"\\" in text else text


def _character(found: re.Match[bytes]) -> bytes:
    digits = found[1] or found[2]
    if digits:
        return chr(int(digits, 16)).encode("utf-8", "surrogatepass")
    return _ESCAPED.get(found[3], found[3])


def is_page(begin: bytes) -> bool:
    """Return whether a text is HTML."""
    return _HTML.match(begin) is not None


def sections(blocks: Iterator[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    """Yield the parts of a systrace page that hold ftrace's text: quoted strings, and text after a comment."""
    inside = trace = quoted = False
    for block, length in blocks:
        at = 0
        while at < length:
            if not inside:
                begin = _SECTION.search(block, at, length)
                if begin is None:
                    break
                at, inside, trace = begin.end(), True, False
                quoted = begin["quoted"] is not None
            finish = (_QUOTED_END if quoted else _SECTION_END).search(block, at, length)
            text = block[at : finish.start() if finish else length]
            text = _plain(text) if quoted else _without_entities(text)
            trace = trace or quoted or text.lstrip().startswith(b"#")
            if trace and text.strip():
                text += b"" if text.endswith(b"\n") else b"\n"
                yield text, len(text)
            if finish is None:
                break
            at, inside = finish.end(), False


def _without_entities(text: bytes) -> bytes:
    """Return `text` as it was before a tool escaped it for HTML: every switch then holds ``==&gt;``."""
    if b"=&gt;" in text:
        for entity, character in _ENTITIES:
            text = text.replace(entity, character)
    return text
