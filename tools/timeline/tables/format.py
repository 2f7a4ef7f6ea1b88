"""Recognise the tables of ranks, and read them as one profile per rank."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean
from whystall.tools.files.formats import Head, Match
from whystall.tools.files.input import bad
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.profile_reading.format import ProfileFormat, rank_in_name
from whystall.tools.timeline.tables import ascend_cluster, containers
from whystall.tools.timeline.tables.mapping import REMEDY, UNITS, Mapping, mappings
from whystall.tools.timeline.tables.ranks import profiles_of
from whystall.tools.timeline.tables.rows import in_place, rows_of

_HEADER = 1 << 18
"""Bytes of a table's first line that are read."""
_NAMES = re.compile(r".*\.(?:csv|tsv|parquet|log|txt|prom|json)(?:\.gz)?|.*xpu_timer.*", re.IGNORECASE)


def detect(head: Head) -> Match:
    """Return how well a file fits the mappings."""
    found = mapping_of(head)
    if found is None:
        return Match.NO
    return Match.LIKELY if found.container == "events" else Match.CERTAIN


def mapping_of(head: Head, *, whole_directory: bool = False) -> Mapping | None:
    """Return the first mapping that a file fits, None without any. `whole_directory`: also of those that are read only
    as part of their directory."""
    if head.directory:
        return None
    columns: list[str] | None = None
    for one in mappings():
        if (one.rank_of == "directory" and not whole_directory) or (
            one.file and not re.fullmatch(one.file + r"(?:\.gz)?", head.name)
        ):
            continue
        if one.container == "table":
            if columns is None:
                columns = _columns(head)
            if columns and not _missing(one, columns, head.name) and _has_times(one, columns):
                return one
        elif one.container == "events":
            if head.json and re.search(one.marks.encode(), head.data):
                return one
        elif one.container == "lines":
            if not head.json and any(re.search(one.line, line) for line in head.lines):
                return one
        elif head.json == b"{":
            return one
    return None


def refusal(head: Head) -> ToolError | None:
    """Return the error for a table that lacks columns of the one that anybody can write; None for another file."""
    plain = mappings()[0]
    columns = _columns(head)
    missing = _missing(plain, columns, head.name)
    if len(missing) > 1:
        return None
    missing += [] if _has_times(plain, columns) else ["start and end, or duration"]
    return bad(head.path, f"a table without the column {', '.join(missing)}", REMEDY)


def read_ranks(path: Path) -> list[Profile]:
    """Return the profiles of the ranks in a file, and in the other tables of its directory that belong to it.

    Raises `ToolError` (bad_trace, io_error).
    """
    found = mapping_of(Head(path))
    if found is None:
        raise bad(path, "no table of ranks", REMEDY)
    if not found.together:
        frame, notes = read_rows(path, found)
        return profiles_of(frame, found.source, notes, **_meaning(found))
    parts = _siblings(path, found.source)
    if not all(one.alternative for _, one in parts):
        parts = [(place, one) for place, one in parts if not one.alternative]
    else:
        parts = parts[:1]
    frames, notes, errors = [], [], []
    for place, one in parts:
        try:
            frame, new = read_rows(place, one)
        except ToolError as error:
            errors.append(error)
            notes.append(("ranks_unread", clean(f"{place.name}: {error.message.rpartition(': ')[2]}")))
            continue
        frames.append(frame)
        notes += new
    if not frames:
        raise errors[0]
    return profiles_of(pl.concat(frames), found.source, notes, **_meaning(found))


def read_rows(path: Path, mapping: Mapping, rank: int = -1) -> tuple[pl.DataFrame, list[tuple[str, str]]]:
    """Return the rows (`rows.ROWS`) of a file by `mapping`, and notes as of `Profile`. `rank`: of a table without that
    column.

    Raises `ToolError` (bad_trace, io_error).
    """
    if mapping.container == "ascend_communication":
        frame, odd = ascend_cluster.communication(path)
        return frame, _odd(odd)
    other = 0
    if mapping.container == "lines":
        raw, _ = containers.lines(path, mapping.line)
    elif mapping.container == "events":
        raw, other = containers.events(path)
    else:
        raw = containers.table(path)
    if rank < 0:
        named = re.fullmatch(mapping.file + r"(?:\.gz)?", path.name) if mapping.file else None
        rank = int(named["rank"]) if named and "rank" in named.groupdict() else rank_in_name(path.name)
    frame, odd = rows_of(path, mapping, raw, rank)
    if not mapping.clock_of_step:
        frame, misplaced = in_place(frame)
        odd += misplaced
    return frame, _odd(odd + other) + _metrics(frame, raw, mapping)


def _meaning(mapping: Mapping) -> dict[str, bool]:
    return {"clock_of_step": mapping.clock_of_step, "whole_groups": bool(mapping.groups)}


def _metrics(frame: pl.DataFrame, raw: pl.DataFrame, mapping: Mapping) -> list[tuple[str, str]]:
    """Return the notes of metrics that are not 0, with the ranks."""
    notes = []
    for name, code in mapping.notes.items():
        raised = raw.filter((pl.col("name") == name) & (pl.col("value").cast(pl.Float64, strict=False) > 0))
        if raised.height:
            notes.append((code, "rank " + ", ".join(sorted(raised["rank"].unique().to_list(), key=int)[:64])))
    return notes


def _odd(count: int) -> list[tuple[str, str]]:
    return [("odd_lines", str(count))] if count else []


def _columns(head: Head) -> list[str]:
    if head.begin.startswith(containers.PARQUET):
        return containers.parquet_names(head.path)
    first = containers.first_line(head.data[:_HEADER])
    if head.json or head.database or "\0" in first:
        return []
    return containers.header(first)


def _missing(mapping: Mapping, columns: list[str], file: str) -> list[str]:
    """Return the required fields, or columns, that are not there. A file of one rank may name it instead."""
    missing = [field for field in mapping.requires if not set(mapping.names(field) or [field]) & set(columns)]
    return [field for field in missing if field != "rank" or rank_in_name(file) < 0]


def _has_times(mapping: Mapping, columns: list[str]) -> bool:
    if mapping.sums:
        return True
    known = {*mapping.names("start"), *mapping.names("duration")}
    return any(
        column in known or (column.rpartition("_")[0] in known and column.rpartition("_")[2] in UNITS)
        for column in columns
    )


def _siblings(path: Path, source: str) -> list[tuple[Path, Mapping]]:
    """Return the tables of `source` in the directory of `path`, by name."""
    found = []
    for place in sorted(path.parent.iterdir()):
        if place.is_file() and (place == path or _NAMES.fullmatch(place.name)):
            try:
                one = mapping_of(Head(place))
            except (ToolError, OSError):
                continue
            if one is not None and one.source == source:
                found.append((place, one))
    return found


def _read(path: Path) -> Profile:
    """Return the only rank in a file. Raises `ToolError` (bad_trace, io_error; bad_argument if there are several)."""
    found = read_ranks(path)
    if len(found) > 1:
        remedy = f"choose one by its rank, from {found[0].rank} to {found[-1].rank}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{path} holds {len(found)} ranks", remedy)
    return found[0]


def _together(head: Head) -> str:
    found = mapping_of(head)
    return found.source if found is not None and found.together else ""


FORMAT = ProfileFormat(
    "table",
    detect,
    _read,
    lambda head: -1,
    lambda head: _NAMES.fullmatch(head.name) is not None,
    only_collectives=True,
    read_ranks=read_ranks,
    together=_together,
)
