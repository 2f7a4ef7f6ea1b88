"""The collector `device_log`: messages of device drivers in the kernel log, of /dev/kmsg, of the journal, or of a file.

The kernel's own buffer is read first. If it may not be read, or no longer begins with the start of the kernel (or of
the time that is asked for), the journal follows, of which only what is older counts.
"""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from whystall.tools.collect.kernel_log import KernelLog
from whystall.tools.collect.tables import DEVICE_LOG, filled
from whystall.tools.contract.commands import argv
from whystall.tools.node import log_lines
from whystall.tools.node.xid_log import MARKS, Decoder, Event
from whystall.tools.recording.collector import Capture

_MOST_BYTES = 64 << 20
"""Most that is read of the kernel's buffer, and of the journal."""
_AT_ONCE = 1024
_JOURNAL_S, _RECENT_JOURNAL_S = 5.0, 2.0
"""Longest time for which the journal is read: of everything since the start, and of a recent time."""
_LINE_BYTES = 64 << 10
_SEQUENCE = re.compile(rb"\d+,(\d+),(\d+),")
_START = b"Linux version "
"""The first message of a kernel."""


@dataclass
class Source:
    """What was read of one source; see the table ``device_log.sources``."""

    name: str
    lines: int = 0
    bytes: int = 0
    from_us: int = -1
    until_us: int = -1
    clock: str = ""
    whole: bool = False

    def saw(self, us: int, clock: str) -> None:
        """Extend the time that the source covers by an instant."""
        if us < 0 or (self.clock and clock != self.clock):
            return
        self.clock = clock
        self.from_us = us if self.from_us < 0 else min(self.from_us, us)
        self.until_us = max(self.until_us, us)


class DeviceLog:
    """Reads the log of this host, once, by `read`. `journal`: yields lines of the journal, raising OSError. `recent_s`:
    the log of the last seconds suffices; 0: all is read."""

    def __init__(
        self,
        log: Callable[[], KernelLog] = lambda: KernelLog(new=False),
        journal: Callable[[], Iterable[bytes]] | None = None,
        now_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
        recent_s: int = 0,
    ) -> None:
        self._open, self._now_us, self._recent_s = log, now_us, recent_s
        self._journal = journal or (lambda: journal_lines(recent_s))

    def read(self) -> Capture:
        """Return the capture. What cannot be read is a blind spot, never an error."""
        kernel = Decoder()
        buffer, denied = self._buffer(kernel)
        parts, spots = [(buffer, kernel)], []
        if denied:
            parts, spots = [], [("not_permitted", "/dev/kmsg")]
        if denied or not self._suffices(buffer):
            older = Decoder()
            journal = self._older(older, buffer)
            if journal is not None and journal.lines:
                parts.append((journal, older))
            elif not denied:
                spots.append(("log_overwritten", _since(buffer, self._now_us())))
        for source, _ in parts[:1]:  # the newest one, in which nothing more has been written until now
            source.saw(self._now_us(), log_lines.BOOT)
        return capture(parts, spots)

    def _suffices(self, buffer: Source) -> bool:
        """Return whether the kernel's `buffer` covers the time that is asked for."""
        recent = self._recent_s and 0 <= buffer.from_us <= self._now_us() - self._recent_s * 1_000_000
        return buffer.whole or bool(recent)

    def _buffer(self, decoder: Decoder) -> tuple[Source, bool]:
        """Feed the kernel's buffer; return what it covers, and whether it may not be read."""
        log, source = self._open(), Source("kmsg")
        first = -1
        try:
            while source.bytes < _MOST_BYTES and (records := log.records(_AT_ONCE)):
                for record in records:
                    source.lines += 1
                    source.bytes += len(record)
                    if (head := _SEQUENCE.match(record)) is not None:
                        first = int(head[1]) if first < 0 else first
                        source.saw(int(head[2]), log_lines.BOOT)
                    decoder.feed(record)
        finally:
            log.close()
        source.whole = first == 0 and not log.overwritten
        return source, log.denied

    def _older(self, decoder: Decoder, buffer: Source) -> Source | None:
        """Feed what the journal has from before the kernel's `buffer`; None if there is no journal."""
        source = Source("journal")
        try:
            for raw in self._journal():
                entry = log_lines.journal_entry(raw)
                us, clock = entry.instant if entry is not None else (-1, "")
                if entry is None or (0 <= buffer.from_us <= us and clock == buffer.clock):
                    continue
                source.lines += 1
                source.bytes += len(raw)
                source.saw(us, clock)
                source.whole = source.whole or entry.text.startswith(_START.decode())
                decoder.take(entry)
        except OSError:
            return None
        return source


def journal_lines(recent_s: int = 0) -> Iterator[bytes]:
    """Yield kernel messages of this boot from the journal as JSON; with `recent_s` only those of the last seconds.

    Ends after `_MOST_BYTES`, and after `_JOURNAL_S` or `_RECENT_JOURNAL_S`. Raises OSError if there is no journalctl.
    """
    since = f"@{int(time.time()) - recent_s}" if recent_s else None
    limit = _RECENT_JOURNAL_S if recent_s else _JOURNAL_S
    deadline, left, rest = time.monotonic() + limit, _MOST_BYTES, b""
    with subprocess.Popen(
        argv("journalctl.kernel", since=since),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        if child.stdout is None:
            return
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(child.stdout, selectors.EVENT_READ)
                while left > 0 and selector.select(max(0.0, deadline - time.monotonic())):
                    block = os.read(child.stdout.fileno(), 1 << 16)
                    if not block:
                        break
                    left -= len(block)
                    *lines, rest = (rest + block).split(b"\n")
                    yield from lines
                    rest = rest[:_LINE_BYTES]
        finally:
            child.kill()


def capture(parts: list[tuple[Source, Decoder]], spots: list[tuple[str, str]]) -> Capture:
    """Return the capture of what the decoders of some sources found, in the order of their messages in time."""
    events: list[tuple[object, ...]] = []
    processes: list[tuple[object, ...]] = []
    found = [event for _, decoder in reversed(parts) for event in decoder.events()]
    for number, event in enumerate(found):
        events.append(_row(number, event))
        processes += [(number, pid, name) for pid, name in event.processes.items()]
    foreign = sum(decoder.seen.foreign + decoder.seen.quoted for _, decoder in parts)
    if foreign:
        spots = [*spots, ("log_forged", str(foreign))]
    if any(decoder.seen.unmarked for _, decoder in parts):
        spots = [*spots, ("log_writer_unknown", "")]
    lost = sum(decoder.seen.lost for _, decoder in parts)
    tables = filled(DEVICE_LOG, events=events, processes=processes, sources=[_source(*part) for part in parts])
    return Capture(
        tables=tables,
        hooks=[source.name for source, _ in parts],
        seen=int(tables["events"]["count"].sum()),
        kept=tables["events"].height,
        lost=lost,
        # a kernel that has started has written something
        proven=any(source.lines for source, _ in parts),
        not_seen=spots,
    )


def _row(number: int, event: Event) -> tuple[object, ...]:
    return (
        *(number, event.kind, event.code, event.device, event.uuid, event.unit, event.sub_code, event.status),
        *(event.fatal, event.link, event.root, event.recovery, event.numbered, event.count),
        *(event.first_us, event.last_us, event.clock, event.detail, event.line, event.host),
    )


def _source(source: Source, decoder: Decoder) -> tuple[object, ...]:
    seen = decoder.seen
    return (
        *(source.name, source.lines, source.bytes, seen.lines, seen.foreign, seen.unmarked, seen.quoted, seen.lost),
        *(source.from_us, source.until_us, source.clock, source.whole),
    )


def _since(buffer: Source, now_us: int) -> str:
    return f"the last {max(0, now_us - buffer.from_us) / 1e6:.0f} s are left" if buffer.from_us >= 0 else ""


def has_marks(block: bytes) -> bool:
    """Return whether `block` may hold a message that can be decoded."""
    return any(mark in block for mark in MARKS)
