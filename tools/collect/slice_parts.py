"""The parts of a continuous recording in its log: raw records, and the end of each slice.

A slice is the `RECORDS` entries since the end of the one before, and its `SLICE` entry. Without one, its recorder was
killed: the records are there, totals of short waits and the waits in progress are not.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from whystall.bpf import layout as lay
from whystall.bpf.continuous import Cut
from whystall.tools.collect.slice_log import Entry

RECORDS, SLICE, CODES, PROC, OBJECTS, HISTORY, CALLS = 1, 2, 3, 4, 5, 6, 7
"""Kinds of entries. `CODES`: code objects, compressed (zlib), in the frame of `RECORDS`. `PROC`: rows of the tables of
the collector ``proc``, as JSON, compressed. `OBJECTS`: a snapshot of the collector ``objects``, likewise.
`HISTORY`: see `slice_history`, likewise, in a log of its own. `CALLS`: calls of
accelerators' libraries in the slice of the same time."""
_MOST_BYTES = 64 << 20  # of JSON
LAYOUT = zlib.crc32(
    repr([(name, one._fields_) for name, one in sorted(vars(lay).items()) if hasattr(one, "_fields_")]).encode()
)
"""Of the records and maps of this version: those of another one cannot be read."""
_OWN_LAYOUT, _ANY_LAYOUT = f'{{"layout":{LAYOUT},'.encode(), b'{"layout":'
_LENGTHS = struct.Struct("<5I")
_LENGTH = struct.Struct("<I")


@dataclass
class Slice:
    """One slice. `head`: see `slice_end`; empty if its recorder was killed. `totals`, `threads`: as of `Cut`."""

    start_ns: int
    end_ns: int
    chunks: list[bytes] = field(default_factory=list)
    head: dict[str, Any] = field(default_factory=dict)
    totals: tuple[bytes, bytes] = (b"", b"")
    threads: tuple[bytes, bytes] = (b"", b"")


def slice_end(cut: Cut, head: dict[str, Any]) -> bytes:
    """Return the content of a `SLICE` entry. `head`, as JSON: ``pids`` (kinds by process id), ``min_ns``,
    ``lowered`` (the same, of processes with less detail), ``sample_ns``, ``target``, ``observer``, ``hooks``,
    ``variants``, ``python`` (minor versions by process id), ``refused``; `LAYOUT` comes first."""
    text = json.dumps({"layout": LAYOUT, **head, "counters": cut.counters}, separators=(",", ":")).encode()
    parts = (text, *cut.totals, *cut.threads)
    return _LENGTHS.pack(*map(len, parts)) + b"".join(parts)


def calls_entry(cut: Cut) -> bytes:
    """Return the content of a `CALLS` entry."""
    keys, values = cut.calls
    return _LENGTH.pack(len(keys)) + keys + values


def calls_of(data: bytes) -> tuple[bytes, bytes]:
    """Return keys and values of a `CALLS` entry, as of `Cut`; empty if it is damaged."""
    if len(data) < _LENGTH.size:
        return b"", b""
    split = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    return data[_LENGTH.size : split], data[split:]


def packed(content: dict[str, Any]) -> bytes:
    """Return the content of an entry that is JSON."""
    return zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 1)


def unpacked(data: bytes) -> dict[str, Any]:
    """Return what `packed` was given; empty if it is damaged."""
    try:
        found = json.loads(zlib.decompressobj().decompress(data, _MOST_BYTES))
    except (zlib.error, ValueError):  # also of bytes that are no text
        return {}
    return found if isinstance(found, dict) else {}


def of_this_version(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return the entries since the last slice that another version has recorded, whose records have another layout.
    What states no layout has this one, which was the first."""
    first, other = 0, False
    for at, entry in enumerate(entries):
        if entry.kind == SLICE:
            head = entry.data[_LENGTHS.size : _LENGTHS.size + len(_OWN_LAYOUT)]
            if head.startswith(_ANY_LAYOUT) and head != _OWN_LAYOUT:
                other = True
            elif other:
                first, other = at, False
    return [] if other else entries[first:]


def slices_of(entries: Sequence[Entry]) -> list[Slice]:
    """Return the slices of a log, oldest first. Entries that are damaged are left out."""
    found: list[Slice] = []
    chunks: list[Entry] = []
    for entry in entries:
        if entry.kind == RECORDS:
            chunks.append(entry)
        elif entry.kind == SLICE:
            killed = [one for one in chunks if one.start_ns < entry.start_ns]  # by an earlier recorder
            if killed:
                found.append(_unfinished(killed))
            made = Slice(entry.start_ns, entry.end_ns, [one.data for one in chunks[len(killed) :]])
            chunks = []
            if _complete(made, entry.data):
                found.append(made)
    if chunks:
        found.append(_unfinished(chunks))
    return found


def _unfinished(chunks: Sequence[Entry]) -> Slice:
    return Slice(chunks[0].start_ns, chunks[-1].end_ns, [one.data for one in chunks])


def _complete(made: Slice, data: bytes) -> bool:
    """Add the content of a `SLICE` entry; return False if it is none."""
    if len(data) < _LENGTHS.size:
        return False
    lengths = _LENGTHS.unpack_from(data)
    if _LENGTHS.size + sum(lengths) != len(data):
        return False
    parts, at = [], _LENGTHS.size
    for length in lengths:
        parts.append(data[at : at + length])
        at += length
    try:
        head = json.loads(parts[0])
    except ValueError:
        return False
    if not isinstance(head, dict):
        return False
    made.head, made.totals, made.threads = head, (parts[1], parts[2]), (parts[3], parts[4])
    return True


def map_items(keys: bytes, values: bytes, key_bytes: int) -> list[tuple[bytes, bytes]]:
    """Split the keys and the values of a map, each in a row."""
    count = len(keys) // key_bytes
    if not count or len(values) % count:
        return []
    size = len(values) // count
    return [(keys[i * key_bytes : (i + 1) * key_bytes], values[i * size : (i + 1) * size]) for i in range(count)]
