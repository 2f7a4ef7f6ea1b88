"""Read databases of the Ascend profilers: ``ascend_pytorch_profiler_N.db`` of torch_npu, ``msprof_*.db`` of msprof.

SQLite. Times are nanoseconds (as text in PYTORCH_API), names are keys of STRING_IDS, threads ``pid << 32 | tid``.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl

from whystall.tools.contract.text import clean
from whystall.tools.files.input import bad, unreadable
from whystall.tools.timeline.ascend.collectives import DETAILS, with_collectives
from whystall.tools.timeline.ascend.groups import Communicators
from whystall.tools.timeline.ascend.info import Info
from whystall.tools.timeline.ascend.measured import Measured
from whystall.tools.timeline.ascend.rows import NO_ID, cann_kind, host_kind, task_kind, with_streams
from whystall.tools.timeline.profile import OWNERS, Profile
from whystall.tools.timeline.profile_reading.build import NAME_LIMIT, RAW, Found, finished
from whystall.tools.timeline.profile_reading.groups import ELEMENT_LIMIT, number, text
from whystall.tools.timeline.profile_reading.numbers import whole
from whystall.tools.timeline.profile_reading.sqlite_tables import Database, opened_database

_API_LEVELS = {5000: "runtime", 5500: "hccl", 10000: "node", 15000: "model", 20000: "acl"}
_FRAMEWORK = {50001: "op", 50002: "queue", 50003: "trace", 50004: "mstx"}
_PREFIX = {"runtime": "Runtime@", "hccl": "Hccl@", "node": "Node@", "model": "Model@", "acl": "AscendCL@"}
_ANALYSIS = "analysis.db"
_NAMES = (("STRING_IDS", "value"), ("ENUM_HCCL_DATA_TYPE", "name"))
_COUNTED = ("count", "dataType")
_COMPUTE, _TASK, _OP, _CALL, _HOST = "compute", "task", "collective", "cann", "host"


def read(path: Path, info: Info, source: str) -> Profile:
    """Return the profile in a database. Raises `ToolError` (bad_trace, io_error)."""
    try:
        with opened_database(path) as database:
            if not database.tables & {"TASK", "PYTORCH_API", "CANN_API"}:
                raise bad(path, "a database of something else")
            found, rank = _found(database)
            details, known, host = _communication(database)
        measured = _measured(path.absolute().parent / _ANALYSIS)
    except sqlite3.Error as error:
        raise bad(path, f"damaged ({error})") from None
    except OSError as error:
        raise unreadable(path, error) from None
    found.rows = with_streams(found.rows)
    listed = f"{_OP}|" in {label for label, _ in found.names}
    profile = finished(
        path,
        found,
        partial(_kind, listed=listed),
        source=source,
        rank=info.rank if info.rank >= 0 else rank,
        bridges=info.bridges,
    )
    groups = Communicators(info.groups or known)
    info = replace(info, host=info.host or host)
    return with_collectives(profile, details, measured, groups, info, listed=listed)


def _found(database: Database) -> tuple[Found, int]:
    found = Found()
    texts = database.mapping("STRING_IDS", "id", "value")
    _calls(database, found, texts)
    _tasks(database, found, texts)
    ranks = {row[0] for rows in database.read("RANK_DEVICE_MAP", "rankId") for row in rows}
    rank = next(iter(ranks)) if len(ranks) == 1 else -1
    return found, int(whole([rank])[0])


def _calls(database: Database, found: Found, texts: dict[object, object]) -> None:
    """Add the calls of the host.

    A row of CANN_API: ``startNs 1736413971558972912, endNs 1736413971558980112, type 20000, globalTid
    13690157342886273, connectionId 4295, name 117``.
    """
    for rows in database.read("CANN_API", "startNs", "endNs", "name", "globalTid", "connectionId", "type"):
        levels = [_level(_API_LEVELS, row[5]) for row in rows]
        names = [_PREFIX.get(level, "") + str(texts.get(row[2], "")) for level, row in zip(levels, rows, strict=True)]
        _add(found, rows, names, [f"{_CALL}|{level}" for level in levels], thread=3, correlation=4)
    framework = ("startNs", "endNs", "name", "globalTid", "type", "connectionId")
    linked = _mapping_list(database, "CONNECTION_IDS")
    owners: list[tuple[object, ...]] = []
    for rows in database.read("PYTORCH_API", *framework):
        kinds = [_level(_FRAMEWORK, row[4]) for row in rows]
        names = [str(texts.get(row[2], "")) for row in rows]
        _add(found, rows, names, [f"{_HOST}|{kind}" for kind in kinds], thread=3)
        for row, kind in zip(rows, kinds, strict=True):
            if kind == "op" and isinstance(row[3], int):
                owners += [(c, row[0], row[3] >> 32, row[3] & NO_ID) for c in linked.get(row[5], ())]
    for rows in database.read("MSTX_EVENTS", "startNs", "endNs", "message", "globalTid"):
        names = [str(texts.get(row[2], "")) for row in rows]
        _add(found, rows, names, [f"{_HOST}|mstx"] * len(rows), thread=3)
    columns = list(zip(*owners, strict=True)) or [()] * 4
    found.owners = pl.DataFrame([whole(list(column)) for column in columns], schema=OWNERS).sort("at_ns")


def _tasks(database: Database, found: Found, texts: dict[object, object]) -> None:
    """Add the tasks of the device.

    A row of TASK: ``startNs 1736413971559012912, endNs 1736413971559014832, deviceId 0, connectionId 4295, globalTaskId
    30, globalPid 3187488, taskType 112, contextId 4294967295, streamId 2, taskId 30, modelId 4294967295``.
    """
    computed = database.mapping("COMPUTE_TASK_INFO", "globalTaskId", "name")
    columns = ("startNs", "endNs", "taskType", "globalPid", "deviceId", "streamId", "connectionId", "globalTaskId")
    devices: list[object] = []
    for rows in database.read("TASK", *columns):
        types = [str(texts.get(row[2], "")) for row in rows]
        names, labels = [], []
        for row, kind in zip(rows, types, strict=True):
            compute = row[7] in computed
            names.append(str(texts.get(computed[row[7]], kind)) if compute else kind)
            # Without details of any task, its type decides. With details, a task without them is one of several parts.
            labels.append(f"{_COMPUTE if compute or not computed else _TASK}|{kind}")
        _add(found, rows, names, labels, process=3, device=4, stream=5, correlation=6)
        devices += {row[4] for row in rows}
    device = devices[0] if len(set(devices)) == 1 else 0
    for rows in database.read("COMMUNICATION_OP", "startNs", "endNs", "opName", "connectionId"):
        names = [str(texts.get(row[2], "")) for row in rows]
        rows = [(*row, device) for row in rows]
        _add(found, rows, names, [f"{_OP}|"] * len(rows), correlation=3, device=4)


def _communication(database: Database) -> tuple[pl.DataFrame, object, str]:
    """Return details of the collectives; the groups as in the metadata; the host's name."""
    texts, types = (database.mapping(table, "id", name) for table, name in _NAMES)
    # Earlier versions have no counts.
    counted = _COUNTED if set(_COUNTED) <= database.columns("COMMUNICATION_OP") else ()
    rows = [
        (
            int(start),
            clean(str(texts.get(name, "")), NAME_LIMIT),
            str(texts.get(group, "")),
            number(count[0] if count else -1, ELEMENT_LIMIT),
            text(types.get(count[1], "")) if count else "",
        )
        for batch in database.read("COMMUNICATION_OP", "startNs", "opName", "groupName", *counted)
        for start, name, group, *count in batch
        if isinstance(start, int)
    ]
    metadata = database.mapping("META_DATA", "name", "value")
    hosts = [row[0] for batch in database.read("HOST_INFO", "hostName") for row in batch]
    return (
        pl.DataFrame(rows, schema=DETAILS, orient="row"),
        metadata.get("parallel_group_info"),
        text(hosts[0]) if len(hosts) == 1 else "",
    )


def _measured(path: Path) -> Measured:
    """Read ``analysis.db``; what is missing or damaged is left out and counted."""
    measured = Measured()
    times = ("hccl_op_name", "group_name", "start_timestamp", "step", "elapse_time", "wait_time", "idle_time")
    pairs = ("src_rank", "dst_rank", "transport_type", "transit_size", "transit_time", "op_name")
    try:
        if not path.exists():
            return measured
        with opened_database(path) as database:
            for rows in database.read("CommAnalyzerTime", *times):
                for name, group, start, step, *parts in rows:
                    measured.time(str(name), group, start, parts, step)
            for rows in database.read("CommAnalyzerMatrix", "hccl_op_name", "group_name", "step", *pairs):
                for label, group, step, source, target, transport, size, took, operation in rows:
                    measured.pair((step, group, label, operation), (source, target), transport, size, took)
    except (sqlite3.Error, OSError):
        measured.odd += 1
    return measured


def _add(
    found: Found,
    rows: list[tuple[object, ...]],
    names: list[str],
    labels: list[str],
    **places: int,
) -> None:
    """Add rows that begin with start and end; `places`: indexes of thread (or process), device, stream, correlation."""

    def column(what: str) -> pl.Series:
        place = places.get(what)
        return whole([-1] * len(rows) if place is None else [row[place] for row in rows])

    thread, start, end = column("thread"), whole([row[0] for row in rows]), whole([row[1] for row in rows])
    correlation = column("correlation")
    known = thread >= 0
    frame = pl.DataFrame(
        {
            "start_ns": start,
            "end_ns": end,
            "what": pl.Series([found.names[pair] for pair in zip(labels, names, strict=True)], dtype=pl.UInt32),
            "pid": column("process") if "process" in places else (thread // 2**32).set(~known, -1),
            "tid": (thread % 2**32).set(~known, -1),
            "device": column("device"),
            "stream": column("stream"),
            "correlation": correlation.set(correlation == NO_ID, -1),
        },
        schema=RAW,
    )
    timed = (pl.col("start_ns") > 0) & (pl.col("end_ns") > 0)
    found.add(frame.with_columns(pl.when(timed).then("end_ns").alias("end_ns")))


def _kind(label: str, name: str, *, listed: bool) -> str:
    where, _, what = label.partition("|")
    if where == _OP:
        return "collective"
    if where == _CALL:
        return cann_kind(what, name.partition("@")[2] or name)
    if where == _HOST:
        return host_kind(what, name)
    kind = task_kind(what, name, listed=listed)
    return "other" if kind == "kernel" and where == _TASK else kind


def _level(levels: dict[int, str], number: object) -> str:
    return levels.get(number, "") if isinstance(number, int) else ""


def _mapping_list(database: Database, table: str) -> dict[object, list[object]]:
    found: dict[object, list[object]] = {}
    for rows in database.read(table, "id", "connectionId"):
        for key, value in rows:
            found.setdefault(key, []).append(value)
    return found
