"""Read exports of Nsight Systems: SQLite (``nsys export --type sqlite``).

A row of CUPTI_ACTIVITY_KIND_KERNEL: ``start 1563241, end 1567401, deviceId 0, streamId 7, correlationId 1027, globalPid
283686952306183, demangledName 117, shortName 118``.

Tables appear only when they have rows, and their columns differ between versions, so both are looked up. Instants count
from the start of the session, which ``TARGET_INFO_SESSION_START_TIME`` gives on the epoch. Threads are ``process << 24
| thread``. An export holds the environment of the profiled process, passwords included: only its rank is read.

A report may be of several processes. Each that works on a device is a rank (``globalPid``: a host's number, the
process, 24 zero bits); all of one report have one clock.

Steps are NVTX ranges with a step's name (``ProfilerStep#3``, ``step 3``, ``iteration_3``, ``train_step`` in order);
they are called ``ProfilerStep#N`` here.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean
from whystall.tools.files.formats import Head, Match
from whystall.tools.files.input import bad, unreadable
from whystall.tools.timeline.nsys.collectives import Ranges, with_collectives
from whystall.tools.timeline.nsys.names import call_name, kernel_name, range_name
from whystall.tools.timeline.nsys.steps import step_numbers
from whystall.tools.timeline.profile import Profile, Run
from whystall.tools.timeline.profile_reading.build import RAW, Found, call_kind, finished, is_collective
from whystall.tools.timeline.profile_reading.format import ProfileFormat
from whystall.tools.timeline.profile_reading.sqlite_tables import Database, opened_database

SOURCE = "nsys"
REPORTS = (".nsys-rep", ".qdrep")
"""Suffixes of reports that were not exported: a proprietary format."""
_EXPORTS = (".sqlite", ".sqlite3", ".db")

_KERNELS, _COPIES, _SETS = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET"))
_GRAPHS, _CALLS, _RANGES = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
_CONTENT = frozenset({_KERNELS, _COPIES, _SETS, _GRAPHS, _CALLS, _RANGES})
_OWN = frozenset({"StringIds", "TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT"})
# CUpti_ActivityMemcpyKind
_COPY_KINDS = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}
# torch's emit_nvtx: aten::mm, autograd::engine::evaluate_function: MmBackward0
_OPERATOR = re.compile(r"(?:aten|c10d|autograd|torch)::[\w:.]+(?: \w+)?")
_PUSHED, _STARTED = 59, 60  # NvtxPushPopRange, NvtxStartEndRange
_ENVIRONMENT = r"""(?:^|[\s"';,{{\0]){name}["']?\s*[=:]\s*["']?([0-9]{{1,6}})(?![0-9])"""
_RANK, _WORLD = (re.compile(_ENVIRONMENT.format(name=name)) for name in ("RANK", "WORLD_SIZE"))
_NAMED = re.compile(r"rank[_-]?([0-9]{1,6})(?![0-9])", re.IGNORECASE)
_KIND = {_KERNELS: "kernel", _COPIES: "memcpy", _SETS: "memset", _GRAPHS: "kernel", _CALLS: "call", _RANGES: "range"}
_EVENT = ("start", "end", "process", "thread", "device", "stream", "correlation", "name")
_MOST_DEVICES = 16
_EXTENTS = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_PID_BITS, _TID_BITS = 24, 24
_STRAY = 0.01
"""A process with less than this share of the busiest one's device work is no rank: a helper that touched a device."""


def is_export(path: Path) -> bool:
    """Return whether a database is an export of Nsight Systems. Raises OSError."""
    try:
        with opened_database(path) as database:
            return bool(database.tables & _CONTENT) and bool(database.tables & _OWN)
    except sqlite3.Error:
        return False


def detect(head: Head) -> Match:
    """Return CERTAIN for an export of Nsight Systems."""
    return Match.CERTAIN if head.database and is_export(head.path) else Match.NO


def rank_of(path: Path) -> int:
    """Return the rank in the environment of the process, else in the file's name; -1 without either."""
    try:
        with opened_database(path) as database:
            return _rank(path, _environment(database))
    except (OSError, sqlite3.Error):
        return -1


def named_rank(path: Path) -> int:
    """Return the rank in a file's name, -1 without one."""
    named = _NAMED.search(path.name)
    return int(named.group(1)) if named else -1


def read_report(path: Path) -> NoReturn:
    """Refuse a report that was not exported. Raises `ToolError` (bad_trace) with the command that exports it."""
    remedy = f"nsys export --type sqlite {path.name}"
    raise ToolError(ErrorCode.BAD_TRACE, f"{path} is a report of Nsight Systems that was not exported", remedy)


@dataclass(frozen=True)
class _Content:
    """What an export holds: tables of events (columns as `_EVENT`), NCCL's calls, texts, the session's start on the
    epoch, and the host's name with the environment, and the names of its
    devices."""

    tables: dict[str, pl.DataFrame]
    ranges: Ranges
    texts: dict[int, str]
    epoch: int
    environment: tuple[str, str]
    devices: tuple[str, ...] = ()

    def of_process(self, process: int) -> _Content:
        """Return the events of one process, by its number in the export."""
        number = pl.coalesce("process", "thread") // 2**_PID_BITS
        tables = {name: frame.filter(number == process) for name, frame in self.tables.items()}
        return replace(self, tables=tables, ranges=self.ranges.of_process(process % 2**_PID_BITS))


def read(path: Path) -> Profile:
    """Return the profile in an export: all of its processes together. Raises `ToolError` (bad_trace, io_error)."""
    content = _content(path)
    return _profile(path, content, _rank(path, content.environment))


def read_ranks(path: Path) -> list[Profile]:
    """Return the profile of each process that worked on a device, in the order of their devices, else of their numbers.

    The environment and the file's name tell the rank of the only one; of several only NCCL's calls do. Raises
    `ToolError` (bad_trace, io_error).
    """
    content = _content(path)
    processes = _working(content.tables)
    if len(processes) < 2:
        return [_profile(path, content, _rank(path, content.environment))]
    alone = replace(content, environment=(content.environment[0], ""))
    return [_profile(path, alone.of_process(process), -1) for process in processes]


def _working(tables: Mapping[str, pl.DataFrame]) -> list[int]:
    """Return the processes that worked on devices, without strays."""
    parts = [tables[name].select("process", "device") for name in (_KERNELS, _COPIES, _SETS, _GRAPHS) if name in tables]
    if not parts:
        return []
    number = pl.col("process") // 2**_PID_BITS
    work = pl.concat(parts).drop_nulls("process").group_by(process=number)
    counts = work.agg(count=pl.len(), device=pl.col("device").mode().sort().first())
    counts = counts.filter(pl.col("count") >= _STRAY * pl.col("count").max())
    by = "device" if counts["device"].n_unique() == counts.height else "process"
    return [int(process) for process in counts.sort(by)["process"]]


def _content(path: Path) -> _Content:
    try:
        with opened_database(path) as database:
            if not database.tables & _CONTENT:
                raise bad(path, "a database of something else")
            epoch = _epoch(database)
            environment = _environment(database)
            tables = _tables(database)
            ranges = Ranges.of(database)
            devices = _devices(database)
            return _Content(tables, ranges, _texts(database, tables.values()), epoch, environment, devices)
    except sqlite3.Error as error:
        raise bad(path, f"damaged ({error})") from None
    except OSError as error:
        raise unreadable(path, error) from None


def _profile(path: Path, content: _Content, rank: int) -> Profile:
    found, tables = Found(), content.tables
    processes = set(tables[_CALLS]["process"].drop_nulls()) if _CALLS in tables else set()
    for table, frame in tables.items():
        _add(found, table, frame, content.texts, content.epoch, apart=len(processes) > 1)
    tables.clear()
    profile = finished(path, found, _kind, source=SOURCE, rank=rank)
    working = set(profile.activities.filter((pl.col("device") >= 0) & (pl.col("pid") > 0))["pid"])
    host, variables = content.environment
    world = _WORLD.search(variables)
    run = Run(
        world_size=int(world.group(1)) if world else -1,
        host=host,
        pid=working.pop() if len(working) == 1 else -1,
        environment=tuple(("device", name) for name in content.devices),
    )
    return with_collectives(replace(profile, run=run), content.ranges.shifted(content.epoch))


def _epoch(database: Database) -> int:
    """Return what to add to an instant: the session's start on the epoch, 0 when it is unknown."""
    for column in ("utcEpochNs", "utcEpochTimeNs", "systemClockNs"):
        for rows in database.read("TARGET_INFO_SESSION_START_TIME", column):
            if isinstance(rows[0][0], int) and 0 < rows[0][0] < 2**62:
                return rows[0][0]
    return 0


def _environment(database: Database) -> tuple[str, str]:
    """Return the host's name, and the variables of the process as one text."""
    host = variables = ""
    for rows in database.read("TARGET_INFO_SYSTEM_ENV", "name", "value"):
        for name, value in rows:
            if name == "Hostname" and isinstance(value, str):
                host = clean(value)
            elif isinstance(name, str) and "Environment" in name and isinstance(value, str):
                variables += "\n" + value
    return host, variables


def _devices(database: Database) -> tuple[str, ...]:
    names = {
        clean(name) for rows in database.read("TARGET_INFO_GPU", "name") for (name,) in rows if isinstance(name, str)
    }
    return tuple(sorted(names)[:_MOST_DEVICES])


def _rank(path: Path, environment: tuple[str, str]) -> int:
    found = _RANK.search(environment[1])
    return int(found.group(1)) if found else named_rank(path)


def _tables(database: Database) -> dict[str, pl.DataFrame]:
    """Return the events by table; columns as `_EVENT`. `name` is a key of StringIds, or the text itself."""
    found = {}
    for table, wanted in {
        _KERNELS: ("globalPid", "", "deviceId", "streamId", "correlationId", ("demangledName", "shortName")),
        _COPIES: ("globalPid", "", "deviceId", "streamId", "correlationId", ("copyKind",)),
        _SETS: ("globalPid", "", "deviceId", "streamId", "correlationId", ()),
        _GRAPHS: ("globalPid", "", "deviceId", "streamId", "correlationId", ("graphId",)),
        _CALLS: ("globalTid", "globalTid", "", "", "correlationId", ("nameId",)),
    }.items():
        *places, names = wanted
        columns = database.columns(table)
        if {"start", "end"} <= columns:
            chosen = [place if place in columns else "" for place in places]
            chosen.append(next((name for name in names if name in columns), ""))
            extents = _EXTENTS if table == _KERNELS and columns >= set(_EXTENTS) else ()
            found[table] = _frame(database, table, ["start", "end", *chosen], extents)
    columns = database.columns(_RANGES)
    if {"start", "end"} <= columns:
        thread = "globalTid" if "globalTid" in columns else ""
        places = ["start", "end", thread, thread, "", "", "", "textId" if "textId" in columns else ""]
        found[_RANGES] = _ranges(database, columns, places)
    return found


def _frame(database: Database, table: str, places: list[str], extents: Sequence[str]) -> pl.DataFrame:
    """Return the columns `places` of a table (empty: there is none) named as `_EVENT`, and the columns `extents` of a
    kernel as the text ``shape``; non-numbers are null."""
    known = [place for place in dict.fromkeys([*places, *extents]) if place]
    schema = dict.fromkeys(known, pl.Int64)
    parts = [_columns(rows, schema) for rows in database.read(table, *known)]
    frame = pl.concat([pl.DataFrame(schema=schema), *parts])
    none = pl.lit(None, pl.Int64)
    return frame.select(
        **{name: pl.col(place) if place else none for name, place in zip(_EVENT, places, strict=True)},
        text=pl.lit(None, pl.String),
        shape=pl.format("grid [{},{},{}] block [{},{},{}]", *extents) if extents else pl.lit(None, pl.String),
    )


def _ranges(database: Database, columns: set[str], places: list[str]) -> pl.DataFrame:
    """Return NVTX ranges that ended; their text is in the row or in StringIds."""
    more = [name for name in ("text", "eventType") if name in columns]
    known = [place for place in dict.fromkeys(places) if place]
    kinds: dict[str, type[pl.DataType]] = dict.fromkeys(known, pl.Int64)
    kinds |= {name: pl.String if name == "text" else pl.Int64 for name in more}
    parts = []
    for rows in database.read(_RANGES, *known, *more):
        frame = _columns(rows, kinds)
        ranges = pl.col("eventType").is_in([_PUSHED, _STARTED]) if "eventType" in more else pl.lit(True)
        parts.append(frame.filter(ranges & pl.col("end").is_not_null()))
    frame = pl.concat([pl.DataFrame(schema=kinds), *parts])
    none = pl.lit(None, pl.Int64)
    return frame.select(
        **{name: pl.col(place) if place else none for name, place in zip(_EVENT, places, strict=True)},
        text=pl.col("text") if "text" in more else pl.lit(None, pl.String),
        shape=pl.lit(None, pl.String),
    )


def _columns(rows: list[tuple[object, ...]], kinds: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    """Return rows as columns of numbers and texts; other types become null: SQLite columns hold any type."""
    try:
        return pl.DataFrame(rows, schema=kinds, orient="row", infer_schema_length=None)
    except (pl.exceptions.PolarsError, TypeError, OverflowError):
        fitting = [_whole if kind == pl.Int64 else _text for kind in kinds.values()]
        rows = [tuple(fits(value) for fits, value in zip(fitting, row, strict=True)) for row in rows]
        return pl.DataFrame(rows, schema=kinds, orient="row", infer_schema_length=None)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _texts(database: Database, tables: Iterable[pl.DataFrame]) -> dict[int, str]:
    """Return the texts of StringIds that are used: it may hold many million."""
    used: set[int] = set()
    for frame in tables:
        used.update(frame["name"].drop_nulls().unique())
    found: dict[int, str] = {}
    for rows in database.read("StringIds", "id", "value"):
        found |= {key: str(value) for key, value in rows if key in used and isinstance(key, int)}
    return found


def _add(found: Found, table: str, frame: pl.DataFrame, texts: dict[int, str], epoch: int, *, apart: bool) -> None:
    """Add the rows of one table. `apart`: several processes, whose correlations count from 1 each."""
    process = pl.col("process") // 2**_PID_BITS % 2**_PID_BITS
    frame = frame.with_columns(pid=process.fill_null(-1), tid=(pl.col("thread") % 2**_TID_BITS).fill_null(-1))
    names = frame.select("name", "text").unique(maintain_order=True)
    labels = [_name(table, number, text, texts) for number, text in names.rows()]
    steps: dict[int, int] = {}
    if table == _RANGES:
        labelled = names.with_columns(label=pl.Series(labels, dtype=pl.String))
        wide = frame.join(labelled, on=["name", "text"], how="left", nulls_equal=True, maintain_order="left")
        steps = step_numbers(wide.select("label", "pid", "tid", "start", "end"))
        frame = wide.drop("label")
    what = [found.names[_KIND[table], one] for one in labels]
    names = names.with_columns(what=pl.Series(what, dtype=pl.UInt32))
    frame = frame.join(names, on=["name", "text"], how="left", nulls_equal=True, maintain_order="left")
    if steps:
        numbered = [found.names[_KIND[table], f"ProfilerStep#{number}"] for number in steps.values()]
        frame = frame.with_columns(frame["what"].scatter(list(steps), pl.Series(numbered, dtype=pl.UInt32)))
    correlation = pl.col("correlation").fill_null(-1)
    scoped = pl.when(correlation > 0).then(correlation + (pl.col("pid") * 2**32 if apart else 0)).otherwise(-1)
    device = table in (_KERNELS, _COPIES, _SETS, _GRAPHS)
    found.add(
        frame.select(
            start_ns=pl.col("start") + epoch,
            end_ns=pl.when(pl.col("start").is_not_null()).then(pl.col("end") + epoch),
            what="what",
            pid="pid",
            tid=pl.lit(-1, pl.Int64) if device else pl.col("tid"),
            device=pl.col("device").fill_null(0) if device else pl.lit(-1, pl.Int64),
            stream=pl.col("stream").fill_null(-1) if device else pl.lit(-1, pl.Int64),
            correlation=scoped,
        )
        .cast(RAW)
        .with_columns(shape=_shapes(found, frame["shape"]))
    )


def _shapes(found: Found, shapes: pl.Series) -> pl.Series:
    """Return the index of each of `shapes` in ``found.shapes``, -1 for null."""
    new = shapes.drop_nulls().unique(maintain_order=True).to_list()
    places = {shape: len(found.shapes) + place for place, shape in enumerate(new)}
    found.shapes += new
    numbered: pl.Series = shapes.replace_strict(places, default=-1, return_dtype=pl.Int32)
    return numbered


def _name(table: str, number: int | None, text: str | None, texts: dict[int, str]) -> str:
    if table == _COPIES:
        return f"Memcpy {_COPY_KINDS.get(number or 0, '')}".strip()
    if table == _SETS:
        return "Memset"
    if table == _GRAPHS:
        return "CUDA graph" if number is None else f"CUDA graph {number}"
    label = text or texts.get(-1 if number is None else number, "")
    return {_CALLS: call_name, _RANGES: range_name, _KERNELS: kernel_name}[table](label)


def _kind(label: str, name: str) -> str:
    if label == "call":
        return call_kind(name)
    if label == "range":
        return "operator" if _OPERATOR.fullmatch(name) else "annotation"
    return "collective" if label == "kernel" and is_collective(name) else label


FORMAT = ProfileFormat(
    "nsys",
    detect,
    read,
    lambda head: rank_of(head.path),
    lambda head: head.path.suffix in _EXPORTS and head.database,
    read_ranks=read_ranks,
)
REPORT = ProfileFormat(
    "nsys_report",
    lambda head: Match.CERTAIN if head.path.suffix in REPORTS else Match.NO,
    read_report,
    lambda head: named_rank(head.path),
    # not beside its own export
    lambda head: head.path.suffix in REPORTS and not any(head.path.with_suffix(suffix).exists() for suffix in _EXPORTS),
)
