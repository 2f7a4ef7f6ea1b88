"""Read a file with a kernel log as a recording: dmesg, syslog, the journal as text or JSON, or saved records of
/dev/kmsg; plain or packed."""

from __future__ import annotations

import codecs
from pathlib import Path

from whystall.tools.collect.device_log import Source, capture, has_marks
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import BlindSpot
from whystall.tools.contract.text import clean
from whystall.tools.files.input import DAMAGED, opened
from whystall.tools.node import log_lines
from whystall.tools.node.xid_log import Decoder
from whystall.tools.recording.collector import Capture
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target

FILE = "file"
_UNKNOWN_START = "1970-01-01T00:00:00.000Z"
_BLOCK = 1 << 20
_MOST_BYTES = 4 << 30
_LINE_BYTES = 64 << 10
_TRIED = 200
"""Lines at each end of a file in which an instant is searched for."""
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_START = b"Linux version "
_REMEDY = "give the output of dmesg or `journalctl -k`, or a file below /var/log"


def recording_of_log(path: Path) -> Recording:
    """Return the kernel log in the file `path` as a recording with the collector ``device_log``.

    A binary, truncated or damaged file gives what can be read, and a blind spot. Raises `ToolError`: io_error,
    bad_trace for what is no regular file, or packed and too large.
    """
    reader, damage = LogReader(), ""
    try:
        with opened(path) as file:
            try:
                while not reader.full and (block := file.read(_BLOCK)):
                    reader.take(block)
            except DAMAGED as error:
                damage = clean(str(error))
    except OSError as error:
        why = error.strerror or str(error)
        raise ToolError(ErrorCode.IO_ERROR, f"cannot read {path}: {why}", "check path and permission") from None
    except ValueError:
        raise ToolError(ErrorCode.IO_ERROR, "the path of the log has a NUL", _REMEDY) from None
    return reader.recording(path.name, damage)


class LogReader:
    """Takes the bytes of one log, piece by piece, with `take`; `recording` returns what its driver's messages state.

    Only lines of pieces with a message in them are decoded, and some at both ends, for the time that the log covers.
    """

    def __init__(self) -> None:
        self._decoder, self._source = Decoder(), Source(FILE)
        self._spots: list[tuple[str, str]] = []
        self._head: list[bytes] = []
        self._last = self._rest = b""
        self._nuls = 0
        self._begun = False
        self._wide: codecs.IncrementalDecoder | None = None

    @property
    def full(self) -> bool:
        """Return whether no more of the log is read."""
        return self._source.bytes >= _MOST_BYTES

    @property
    def has_messages(self) -> bool:
        """Return whether the driver of a GPU or a switch has written something into the log, as far as it was taken."""
        return self._decoder.seen.lines > 0

    def take(self, raw: bytes) -> None:
        """Read the next piece of the file; once the log is `full`, nothing."""
        if self.full or not raw:
            return
        if not self._begun:
            self._begun = True
            mark = len(codecs.BOM_UTF16_LE)
            if (name := _UTF16.get(raw[:mark])) is not None:
                self._wide, raw = codecs.getincrementaldecoder(name)("replace"), raw[mark:]
        self._add(self._wide.decode(raw).encode() if self._wide is not None else raw)

    def _add(self, data: bytes) -> None:
        """Read the whole lines; one that is longer than a block is divided."""
        whole, newline, rest = (self._rest + data).rpartition(b"\n")
        if newline:
            self._lines(whole + newline)
        self._rest = rest
        if len(rest) >= _BLOCK:
            self._rest = b""
            self._lines(rest)

    def _lines(self, block: bytes) -> None:
        source, before = self._source, self._source.lines
        source.bytes += len(block)
        source.lines += block.count(b"\n") + (not block.endswith(b"\n"))
        self._nuls += block.count(b"\0")
        if len(self._head) < _TRIED:
            self._head += block.split(b"\n", _TRIED)[:_TRIED]
        source.whole = source.whole or _START in block
        self._last = block[-_BLOCK:]
        if has_marks(block):
            for number, line in enumerate(block.split(b"\n"), before + 1):
                self._decoder.feed(line[:_LINE_BYTES], number)
        if self.full:
            self._spots.append(("log_cut", f"after {_MOST_BYTES >> 30} GiB"))

    def recording(self, name: str, damage: str = "") -> Recording:
        """Return the recording, to be called once, after the last piece. `damage`: why not all could be read."""
        if self._wide is not None:
            self._add(self._wide.decode(b"", True).encode())
        if self._rest and not self.full:
            self._lines(self._rest)
        source, spots = self._source, [("log_damaged", damage)] if damage else []
        spots += self._spots
        tail = self._last.rsplit(b"\n", _TRIED)[-_TRIED:]
        for line in (*self._head[:_TRIED], *tail):
            message = log_lines.first_message(line)
            source.saw(*(message.instant if message is not None else (-1, "")))
        if self._nuls:
            spots.append(("log_damaged", f"{self._nuls} NUL bytes"))
        if not source.lines:
            spots.append(("log_damaged", "empty"))
        elif not source.clock and not self._decoder.seen.lines:
            spots.append(("log_form_unknown", ""))
        return _recorded(capture([(source, self._decoder)], spots), name, source.lines > 0)


def _recorded(found: Capture, name: str, proven: bool) -> Recording:
    entry = CollectorManifest(
        engine=FILE,
        hooks=[FILE],
        seen=found.seen,
        kept=found.kept,
        lost=found.lost,
        proven=proven,
        not_seen=[BlindSpot(code=code, detail=detail) for code, detail in found.not_seen],
    )
    manifest = Manifest(
        id=clean(name),
        host="",
        kernel="",
        machine="",
        cpus=1,
        target=Target(everything=True),
        started=_UNKNOWN_START,
        start_ns=0,
        window_ns=0,
        requested_ns=0,
        collectors={"device_log": entry},
    )
    return Recording.in_memory(manifest, {f"device_log.{name}": frame for name, frame in found.tables.items()})
