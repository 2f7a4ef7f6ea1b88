"""Decode dumps of PyTorch's Flight Recorder (see `flight_recorder`), pickled or JSON, without trust."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from whystall.tools.files.input import bad
from whystall.tools.timeline.nccl.plain_pickle import PickleRefused, loads

_ENTRIES = 1_000_000


class Entry(msgspec.Struct, gc=False):
    """One recorded operation."""

    # name and description
    process_group: tuple[str, ...] | None = None
    pg_id: int = -1
    thread_id: int | str | None = None
    collective_seq_id: int | None = None
    p2p_seq_id: int | None = None
    # before 2.1 one number for both
    seq_id: int | None = None
    profiling_name: str = ""
    state: str = ""
    is_p2p: bool = False
    retired: bool = False
    time_created_ns: int = 0
    time_discovered_started_ns: int | None = None
    time_discovered_completed_ns: int | None = None
    input_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    output_sizes: list[list[int]] = []
    output_dtypes: list[str] = []


class Group(msgspec.Struct, gc=False):
    """A group of ``pg_config``."""

    desc: str = ""
    # "[0, 1]" or [0, 1]
    ranks: str | list[int] = ""


class Status(msgspec.Struct, gc=False):
    """The counters of a group in ``pg_status``."""

    last_enqueued_collective: int = -1
    last_completed_collective: int = -1


class _Dump(msgspec.Struct):
    version: Any = ""
    pg_config: Any = None
    pg_status: Any = None
    entries: list[msgspec.Raw] | None = None


@dataclass
class Content:
    """A decoded dump; `odd` counts entries that could not be read."""

    version: str
    config: dict[str, Group]
    status: dict[str, Status]
    entries: list[Entry] = field(default_factory=list)
    odd: int = 0


def content_of(path: Path, data: bytes) -> Content:
    """Decode the dump `data` of the file `path`; one of a rank without open operations may have no entries at all.

    Raises `ToolError` (bad_trace).
    """
    return _of_json(path, data) if data.lstrip()[:1] in (b"{", b"[") else _of_pickle(path, data)


def _of_json(path: Path, data: bytes) -> Content:
    try:
        top = msgspec.json.decode(data, type=_Dump, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad(path, f"no Flight Recorder dump ({error})") from None
    content = Content(str(top.version), _each(top.pg_config, Group), _each(top.pg_status, Status))
    if top.entries is None and not content.config:
        raise bad(path, "JSON without entries: no Flight Recorder dump")
    decoder = msgspec.json.Decoder(Entry, strict=False)
    entries = top.entries or []
    for entry in entries[:_ENTRIES]:
        try:
            content.entries.append(decoder.decode(entry))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            content.odd += 1
    content.odd += max(len(entries) - _ENTRIES, 0)
    return content


def _of_pickle(path: Path, data: bytes) -> Content:
    try:
        top = loads(data)
    except PickleRefused as error:
        raise bad(path, str(error)) from None
    if not isinstance(top, dict):
        raise bad(path, "a pickle without entries: no Flight Recorder dump")
    content = Content(
        str(top.get("version", "")), _each(top.get("pg_config"), Group), _each(top.get("pg_status"), Status)
    )
    entries = top.get("entries", [] if content.config else None)
    if not isinstance(entries, list):
        raise bad(path, "a pickle without entries: no Flight Recorder dump")
    for entry in entries[:_ENTRIES]:
        try:
            content.entries.append(msgspec.convert(entry, Entry, strict=False))
        except msgspec.ValidationError:
            content.odd += 1
    content.odd += max(len(entries) - _ENTRIES, 0)
    return content


def _each(table: object, kind: type[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items() if isinstance(table, dict) else ():
        try:
            found[str(name)] = msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError:
            continue
    return found
