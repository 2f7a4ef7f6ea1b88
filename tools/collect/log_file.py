"""Read a file with a kernel log as a recording: dmesg, syslog, the journal as text or JSON, or saved records of
/dev/kmsg; plain or packed."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from whystall.tools.collect.device_log import Source, capture, has_marks
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import BlindSpot
from whystall.tools.contract.text import clean
from whystall.tools.files.input import DAMAGED, opened
from whystall.tools.node import log_lines
from whystall.tools.node.xid_log import Decoder
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
    decoder, source = Decoder(), Source(FILE)
    spots: list[tuple[str, str]] = []
    try:
        with opened(path) as file:
            try:
                _feed(file, decoder, source, spots)
            except DAMAGED as error:
                spots.append(("log_damaged", clean(str(error))))
    except OSError as error:
        why = error.strerror or str(error)
        raise ToolError(ErrorCode.IO_ERROR, f"cannot read {path}: {why}", "check path and permission") from None
    except ValueError:
        raise ToolError(ErrorCode.IO_ERROR, "the path of the log has a NUL", _REMEDY) from None
    found = capture([(source, decoder)], spots)
    entry = CollectorManifest(
        engine=FILE,
        hooks=[FILE],
        seen=found.seen,
        kept=found.kept,
        lost=found.lost,
        proven=source.lines > 0,
        not_seen=[BlindSpot(code=code, detail=detail) for code, detail in found.not_seen],
    )
    manifest = Manifest(
        id=clean(path.name),
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


def _feed(file: BinaryIO, decoder: Decoder, source: Source, spots: list[tuple[str, str]]) -> None:
    """Read a log in blocks; only lines of blocks with a message in them are looked at, and some at both ends."""
    head: list[bytes] = []
    last = b""
    nuls = 0
    for block in _blocks(file):
        source.bytes += len(block)
        source.lines += block.count(b"\n") + (not block.endswith(b"\n"))
        nuls += block.count(b"\0")
        if len(head) < _TRIED:
            head += block.split(b"\n", _TRIED)[:_TRIED]
        source.whole = source.whole or _START in block
        last = block
        if has_marks(block):
            for line in block.split(b"\n"):
                decoder.feed(line[:_LINE_BYTES])
        if source.bytes >= _MOST_BYTES:
            spots.append(("log_cut", f"after {_MOST_BYTES >> 30} GiB"))
            break
    tail = last.rsplit(b"\n", _TRIED)[-_TRIED:]
    for line in (*head[:_TRIED], *tail):
        message = log_lines.first_message(line)
        source.saw(*(message.instant if message is not None else (-1, "")))
    if nuls:
        spots.append(("log_damaged", f"{nuls} NUL bytes"))
    if not source.lines:
        spots.append(("log_damaged", "empty"))
    elif not source.clock and not decoder.seen.lines:
        spots.append(("log_form_unknown", ""))


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the file in blocks of whole lines, as UTF-8; a line longer than a block is divided."""
    first = file.read(len(codecs.BOM_UTF16_LE))
    wide = _UTF16.get(first)
    decoder = codecs.getincrementaldecoder(wide)("replace") if wide else None
    rest = b"" if wide else first
    while True:
        raw = file.read(_BLOCK)
        block = decoder.decode(raw, not raw).encode() if decoder else raw
        if not raw:
            break
        whole, newline, rest_of = (rest + block).rpartition(b"\n")
        if newline:
            yield whole + newline
            rest = rest_of
        elif len(rest_of) >= _BLOCK:
            yield rest_of
            rest = b""
        else:
            rest = rest_of
    if rest:
        yield rest
