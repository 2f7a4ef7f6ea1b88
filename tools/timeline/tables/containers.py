"""Read the containers of tables (CSV, Parquet, lines of text, Chrome trace events) as columns without a meaning."""

from __future__ import annotations

import codecs
import io
import re
from pathlib import Path
from typing import Any

import polars as pl

from whystall.tools.files.input import DAMAGED, bad, opened, unreadable
from whystall.tools.timeline.profile_reading.trace_events import Event, EventFile

PARQUET = b"PAR1"
_LIMIT = 2 << 30
"""Bytes of a table of text, unpacked."""
_ROWS = 20_000_000
_SEPARATORS = ",;\t"
# ``Rank 3``, ``DP rank [0]``, ``PP rank 3, TP rank 0``: dimensions of a parallel job, or the rank itself.
_LABEL = re.compile(r"(?:\b([A-Za-z]{2,3}) )?\brank[ _:#=-]{0,2}\[?([0-9]{1,7})(?![0-9])", re.IGNORECASE)
# Megatron numbers ranks so: tensor parallel ranks are neighbours, pipeline stages are far apart.
_DIMENSIONS = ("pp", "dp", "cp", "tp")
_STEPS = ("step", "iteration", "Step", "step_id")
_UNIT = re.compile(r"\s?[\[(](ns|us|ms|s)[\])]$")
_DECIMAL_COMMA = r"^\s*(-?[0-9]+),([0-9]+)\s*$"
_DETAILS = ("group", "peer", "seq", "bytes")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""Byte order marks of UTF-16, in which spreadsheets save "Unicode text"."""


class _Event(Event, gc=False):
    args: dict[str, Any] | None = None


def header(line: str) -> list[str]:
    """Return the names of the columns in the first line of a CSV file (`_column`)."""
    return [_column(name) for name in line.split(separator_of(line))]


def _column(name: str) -> str:
    """Return a column's name in lower case, with a unit in brackets as a suffix: ``Start (ms)`` is ``start_ms``."""
    return _UNIT.sub(r"_\1", name.strip(" \t\r\n\"'\ufeff").lower())


def first_line(content: bytes) -> str:
    """Return the first line of a file of text, in UTF-8, or UTF-16 with its byte order mark."""
    if content.startswith(_UTF16):
        content = _as_utf8(content)
    return content.lstrip().split(b"\n", 1)[0].decode("utf-8", "replace")


def _as_utf8(content: bytes) -> bytes:
    return content[: len(content) & ~1].decode("utf-16", "replace").encode()


def separator_of(line: str) -> str:
    """Return the separator of a CSV file with this first line: the comma, semicolon or tab it has most of."""
    return max(_SEPARATORS, key=line.count)


def parquet_names(path: Path) -> list[str]:
    """Return the names of the columns of a Parquet file (`_column`); none if it cannot be read."""
    try:
        return [_column(name) for name in pl.read_parquet_schema(path)]
    except (pl.exceptions.PolarsError, OSError):
        return []


def table(path: Path) -> pl.DataFrame:
    """Return a CSV (plain or packed) or Parquet file, names of columns as `_column`; CSV fields are text.

    Raises `ToolError` (bad_trace, io_error).
    """
    try:
        with opened(path) as file:
            parquet = file.read(len(PARQUET)) == PARQUET
        frame = pl.read_parquet(path) if parquet else _csv(path, _content(path))
    except pl.exceptions.PolarsError as error:
        raise bad(path, f"not a table ({str(error).splitlines()[0][:200]})", "write it again") from None
    except OSError as error:
        raise unreadable(path, error) from None
    if frame.height > _ROWS:
        raise bad(path, f"more than {_ROWS} rows", "give fewer steps")
    names: dict[str, str] = {}
    for name in frame.columns:
        names.setdefault(_column(name), name)
    return frame.select(pl.col(name).alias(lower) for lower, name in names.items())


def lines(path: Path, pattern: str) -> tuple[pl.DataFrame, int]:
    """Return the named groups of `pattern` in each line that has it, as text; and how many other lines there are.

    Raises `ToolError` (bad_trace, io_error).
    """
    text = _content(path).decode("utf-8", "replace").splitlines()
    if len(text) > _ROWS:
        raise bad(path, f"more than {_ROWS} lines", "give fewer")
    found = pl.Series("line", text, dtype=pl.String).str.extract_groups(pattern).struct.unnest()
    rows = found.filter(pl.any_horizontal(pl.all().is_not_null()))
    return rows, len(text) - rows.height


def events(path: Path) -> tuple[pl.DataFrame, int]:
    """Return the activities of a Chrome trace: name, category (``cat|name``), ts, dur (text), step, what is known of
    its rank (rank, pp, dp, cp, tp; of the names of process and thread, else the number of the process), and group,
    peer, seq, bytes of its arguments; and how many events could not be read.

    Raises `ToolError` (bad_trace, io_error); also where processes are neither named nor numbered as ranks.
    """
    file = EventFile(path, _Event)
    names: dict[object, str] = {}
    found: list[tuple[Any, ...]] = []
    for piece in file.pieces():
        for event in piece:
            if event.ph == "M" and event.args is not None:
                if event.name in ("process_name", "thread_name"):
                    key = event.pid if event.name == "process_name" else (event.pid, event.tid)
                    names[key] = str(event.args.get("name", ""))
            elif event.ph == "X":
                found.append(_fields(event))
        if len(found) > _ROWS:
            raise bad(path, f"more than {_ROWS} events", "give fewer steps")
    columns = ("pid", "tid", "name", "category", "ts", "dur", "step", *_DETAILS)
    frame = pl.DataFrame(found, schema=dict.fromkeys(columns, pl.String), orient="row")
    return frame.join(_ranks(path, frame, names), on=["pid", "tid"], how="left", maintain_order="left"), file.odd


def _fields(event: _Event) -> tuple[Any, ...]:
    args = event.args or {}
    step = next((args[key] for key in _STEPS if key in args), None)
    details = (args.get(key) for key in _DETAILS)
    texts = (event.ts, event.dur, step, *details)
    return (
        str(event.pid),
        str(event.tid),
        event.name,
        f"{event.cat}|{event.name}",
        *(None if value is None else str(value) for value in texts),
    )


def _ranks(path: Path, frame: pl.DataFrame, names: dict[object, str]) -> pl.DataFrame:
    """Return by pid and tid (text) the rank and its places in the dimensions of the job."""
    named = {str(pid): name for pid, name in names.items() if not isinstance(pid, tuple)}
    threads = {(str(key[0]), str(key[1])): name for key, name in names.items() if isinstance(key, tuple)}
    lanes = frame.select("pid", "tid").unique(maintain_order=True).rows()
    places: list[dict[str, int]] = []
    for pid, tid in lanes:
        label = f"{named.get(pid, '')}, {threads.get((pid, tid), '')}"
        places.append({(kind or "rank").lower(): int(number) for kind, number in _LABEL.findall(label)})
    known = {one for place in places for one in place}
    if "rank" not in known and known & set(_DIMENSIONS):
        sizes = {one: 1 + max(place.get(one, 0) for place in places) for one in _DIMENSIONS}
        for place in places:
            place["rank"] = 0
            for one in _DIMENSIONS:
                place["rank"] = place["rank"] * sizes[one] + place.get(one, 0)
    elif "rank" not in known:
        numbers = {pid for pid, _ in lanes}
        if numbers != {str(number) for number in range(len(numbers))}:
            why = "its processes are neither named as ranks nor numbered from 0"
            raise bad(path, why, 'name each process "rank N" (process_name)')
        places = [{"rank": int(pid)} for pid, _ in lanes]
    rows = [
        (*lane, *(place.get(one) for one in ("rank", *_DIMENSIONS))) for lane, place in zip(lanes, places, strict=True)
    ]
    schema = {"pid": pl.String, "tid": pl.String} | dict.fromkeys(("rank", *_DIMENSIONS), pl.Int64)
    return pl.DataFrame(rows, schema=schema, orient="row")


def _csv(path: Path, content: bytes) -> pl.DataFrame:
    if content.startswith(_UTF16):
        content = _as_utf8(content)
    if not content.strip():
        raise bad(path, "it is empty", "write it again")
    separator = separator_of(first_line(content[: 1 << 16]))
    for quote in ('"', None):  # an unbalanced quote would swallow all lines behind it
        try:
            frame = pl.read_csv(
                io.BytesIO(content),
                separator=separator,
                quote_char=quote,
                infer_schema=False,
                truncate_ragged_lines=True,
                encoding="utf8-lossy",
            )
            return frame if separator == "," else frame.with_columns(pl.all().str.replace(_DECIMAL_COMMA, "$1.$2"))
        except pl.exceptions.ComputeError:
            if quote is None:
                raise
    raise AssertionError


def _content(path: Path) -> bytes:
    try:
        with opened(path) as file:
            content = file.read(_LIMIT + 1)
    except DAMAGED as error:
        raise bad(
            path, f"damaged or cut short ({type(error).__name__})", f"copy it again: gzip -t {path.name}"
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
    if len(content) > _LIMIT:
        raise bad(path, f"more than {_LIMIT >> 20} MiB", "give fewer steps")
    return content
