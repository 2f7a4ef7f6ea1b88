"""Parse server-sent events, as far as chat completions use them."""

from __future__ import annotations

from collections.abc import Iterator

from whystall.agent_server.llm.faults import Fault

DONE = "[DONE]"
_EVENT_LIMIT = 4 << 20


class Events:
    """Splits bytes into the data lines of events, such as ``data: {"choices": [...]}``.

    Comments (``: keep-alive``) and other fields are ignored; llama.cpp's field ``error`` counts as data. An event is a
    list of lines, since some servers leave out the empty line between events.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[str] = []
        self._size = 0
        self._after_cr = False

    def feed(self, piece: bytes) -> Iterator[list[str]]:
        """Yield the data lines of every event that `piece` completes. Raises `Fault` (too_large)."""
        if self._after_cr and piece[:1] == b"\n":
            piece = piece[1:]
        self._after_cr = piece[-1:] == b"\r" if piece else self._after_cr
        lines = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for at, part in enumerate(lines):
            self._line += part
            self._size += len(part)
            if self._size > _EVENT_LIMIT:
                raise Fault("too_large", f"one event of the stream is larger than {_EVENT_LIMIT >> 20} MiB")
            if at < len(lines) - 1:
                yield from self._ended_line()

    def close(self) -> Iterator[list[str]]:
        """Yield the last event, if it has no empty line after it."""
        yield from self._ended_line()
        if self._data:
            yield self._take()

    def _ended_line(self) -> Iterator[list[str]]:
        line = self._line.decode("utf-8", "replace").removeprefix("\ufeff")
        self._line.clear()
        if not line:
            if self._data:
                yield self._take()
            self._size = 0
            return
        field, _, value = line.partition(":")
        if field in ("data", "error"):
            self._data.append(value.removeprefix(" "))
        else:
            self._size = sum(map(len, self._data))

    def _take(self) -> list[str]:
        data, self._data, self._size = self._data, [], 0
        return data
