"""Read files of a cluster's topology: matrices of nvidia-smi, XML of lstopo, our own data, results of tools, latencies.

A file is of the host that its name begins with: ``node7.topo.txt``, or ``node7/topo.txt``. Hosts are merged by name.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl

from whystall.tools.collect.tables import TOPOLOGY
from whystall.tools.collect.topology import latency, lstopo, smi_matrix
from whystall.tools.collect.topology.rows import UNKNOWN, Rows, host_named
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean, clean_path

FORMAT = "whystall_topology"
"""The key of our own data: its tables follow as ``tables``."""
_MOST_FILES, _MOST_BYTES, _DEPTH = 4096, 64 << 20, 4
_GENERIC = re.compile(
    r"(?:topo|topology|lstopo|hwloc|nvidia[-_]?smi|gpu_health|slow_node_check|result|metrics|latency)[-_\w]*", re.I
)
_MARKS = ("rank.", "link.", "stage.", "gpu.", "port.", "host.memory", "host.machine_check", "crash.")


def read(rows: Rows, paths: Sequence[str]) -> None:
    """Add what the files at and below `paths` state to `rows`.

    Raises `ToolError`: io_error or bad_trace if one of `paths` itself cannot be read; a file below a directory that
    cannot be read is a blind spot. bad_argument if there is no file at all.
    """
    files = list(islice(_files(paths), _MOST_FILES + 1))
    if not files:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "there is no file of a topology", "give files, or a directory of them")
    if len(files) > _MOST_FILES:
        rows.not_seen.append(("topology_unread", f"all but the first {_MOST_FILES} files"))
    named = {Path(path) for path in paths}
    for path in files[:_MOST_FILES]:
        try:
            _read(rows, path)
        except OSError as error:
            why = error.strerror or type(error).__name__
            failure = ToolError(ErrorCode.IO_ERROR, f"cannot read {path}: {why}", "check the path and the permission")
            if path in named:
                raise failure from error
            rows.not_seen.append(("topology_unread", clean_path(f"{path}: {why}")))
        except ToolError as error:
            if path in named:
                raise
            rows.not_seen.append(("topology_unread", clean_path(f"{path}: {error.message}")))


def _files(paths: Sequence[str]) -> Iterator[Path]:
    for name in paths:
        path = Path(name)
        if not path.is_dir():
            yield path
            continue
        for folder, below, names in os.walk(path):
            below[:] = sorted(below) if len(Path(folder).relative_to(path).parts) < _DEPTH else []
            yield from (one for each in sorted(names) if not (one := Path(folder, each)).is_symlink())


def _read(rows: Rows, path: Path) -> None:
    if not path.is_file():  # reading a pipe may block, a device never ends
        raise ToolError(ErrorCode.IO_ERROR, f"{path} is no regular file", "give a file, or a directory of them")
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise _unknown(path, f"it is larger than {_MOST_BYTES >> 20} MiB")
    begin = data.lstrip()[:1]
    stem = path.name.split(".")[0]
    host = path.parent.name if _GENERIC.fullmatch(stem) else path.name
    if begin == b"<":
        machine = lstopo.parse(data)
        host, kind = host_named(machine.host if _GENERIC.fullmatch(stem) and machine.host else host), "lstopo"
        lstopo.add(rows, host, machine)
    elif begin == b"{":
        host = host_named(host)
        kind = _json(rows, path, host, data)
        host = "" if kind == "whystall" else host  # it is of the hosts that it names
    else:
        text, host = data.decode("utf-8", "replace"), host_named(host)
        matrix, measured = smi_matrix.parse(text), latency.parse(text)
        if matrix is None and not measured:
            message = "it is no nvidia-smi topo -m, lstopo XML, result of a tool or metrics of an inference server"
            raise _unknown(path, message)
        kind = "nvidia-smi" if matrix is not None else "metrics"
        if matrix is not None:
            smi_matrix.add(rows, host, matrix)
        rows.latency += [(host, one.source, one.requests, one.p50_us, one.p90_us) for one in measured]
    rows.sources.append((clean_path(str(path)), kind, host))


def _unknown(path: Path, why: str) -> ToolError:
    remedy = "give the output of `nvidia-smi topo -m`, `lstopo --of xml` or `whystall run TOOL --json`"
    return ToolError(ErrorCode.BAD_TRACE, f"{path.name}: {why}", remedy)


def _json(rows: Rows, path: Path, host: str, data: bytes) -> str:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise _unknown(path, "it is no valid JSON") from None
    if isinstance(content, dict) and content.get(FORMAT) == 1 and isinstance(content.get("tables"), dict):
        if not _own(rows, content["tables"]):
            raise _unknown(path, "its tables have other columns")
        return "whystall"
    if isinstance(content, dict) and (one := latency.of_json(content)) is not None:
        rows.latency.append((host, one.source, one.requests, one.p50_us, one.p90_us))
        return "latency"
    if isinstance(content, dict) and isinstance(content.get("findings"), list):
        tool = content.get("tool")
        rows.marks += [mark for one in content["findings"] if (mark := _mark(one, host)) is not None]
        return clean(tool, 64) if isinstance(tool, str) else "result"
    raise _unknown(path, "it is neither a topology nor a result with findings")


def _own(rows: Rows, tables: Mapping[str, Any]) -> bool:
    """Add the rows of our own data; return False, and add nothing, if one has not the types of its columns."""
    added: dict[str, list[tuple[object, ...]]] = {}
    for name, schema in TOPOLOGY.items():
        found = tables.get(name, [])
        if not isinstance(found, list) or not all(isinstance(row, list) and len(row) == len(schema) for row in found):
            return False
        for row in found:
            for value, kind in zip(row, schema.dtypes(), strict=True):
                wanted = str if kind == pl.String else bool if kind == pl.Boolean else int
                if type(value) is not wanted or (wanted is int and not -1 <= int(value) < 1 << 31):
                    return False
        added[name] = [tuple(clean(v) if isinstance(v, str) else v for v in row) for row in found]
    for name, found in added.items():
        getattr(rows, name).extend(found)
    return True


def _mark(one: object, host: str) -> tuple[object, ...] | None:
    """Return the mark for an abnormal finding about a rank, a device or a host; None for any other."""
    if not isinstance(one, dict) or one.get("polarity") != "abnormal" or not isinstance(one.get("subject"), dict):
        return None
    kind, subject, severity = one.get("kind"), one["subject"], one.get("severity")
    if not isinstance(kind, str) or not kind.startswith(_MARKS) or severity not in ("minor", "major", "critical"):
        return None
    device, rank, of = subject.get("device"), subject.get("rank"), subject.get("host")
    known = rank if type(rank) is int and 0 <= rank < 1 << 31 else UNKNOWN
    # the result of a job is of many hosts
    here = host if known == UNKNOWN else ""
    place = host_named(of) if isinstance(of, str) and of else here
    return (place, clean(device, 64) if isinstance(device, str) else "", known, clean(kind, 64), severity)
