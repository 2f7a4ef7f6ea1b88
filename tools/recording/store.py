"""A recording on disk: a directory with `manifest.json` and one Parquet file per table.

The manifest is written last and the directory moved into place, so that a recording is either whole or missing.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import polars as pl
from pydantic import ValidationError

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean_path
from whystall.tools.recording.manifest import SCHEMA_VERSION, Manifest

_MANIFEST = "manifest.json"
_MANIFEST_LIMIT = 4 << 20
# Options of `whystall record` for collectors that are not recorded by default.
_ON_REQUEST = {"ftrace": " --trace", "samples": " --samples", "page_cache": " --cache"}
Schemas = Mapping[str, Mapping[str, pl.Schema]]


class TableSchema(pl.Schema):
    """The columns of a table. `added`: the last of them, which recordings of older versions lack."""

    def __init__(self, columns: Mapping[str, pl.DataType], added: Sequence[str] = ()) -> None:
        super().__init__(columns)
        self.added = tuple(added)

    def completed(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return `frame` with the added columns that it lacks, unknown: -1, or empty."""
        missing = [name for name in self.added if name not in frame.columns]
        if not missing:
            return frame
        unknown = {name: "" if self[name] == pl.String() else -1 for name in missing}
        return frame.with_columns(pl.lit(value, dtype=self[name]).alias(name) for name, value in unknown.items())


class Recording:
    """The result of one window: a manifest and tables named ``collector.table``.

    Times in the tables are integers, nanoseconds since the start of the recording.
    """

    def __init__(self, manifest: Manifest, tables: dict[str, pl.DataFrame], directory: Path | None = None) -> None:
        self.manifest = manifest
        self.before: Recording | None = None
        """An earlier recording with which this one is compared; it is not saved."""
        self._tables = tables
        self._directory = directory

    @classmethod
    def in_memory(cls, manifest: Manifest, tables: Mapping[str, pl.DataFrame]) -> Recording:
        """Return a recording that has not been written, and set the manifest's row counts."""
        for name, frame in tables.items():
            collector, _, table = name.partition(".")
            manifest.collectors[collector].rows[table] = frame.height
        return cls(manifest, dict(tables))

    @classmethod
    def open(cls, directory: Path, schemas: Schemas) -> Recording:
        """Read a recording, and check its tables against `schemas` and the manifest's row counts.

        Raises `ToolError` (bad_recording) when it is not a recording, is of another version, or is damaged.
        """
        try:
            content = json.loads(_manifest_bytes(directory))
        except OSError as error:
            raise _bad(directory, f"no readable {_MANIFEST} ({error.strerror})") from None
        except (ValueError, RecursionError):  # also a NUL in the path
            raise _bad(directory, f"{_MANIFEST} is not JSON") from None
        version = content.get("schema_version") if isinstance(content, dict) else None
        if version != SCHEMA_VERSION:  # first: another version has other fields
            raise _bad(directory, f"schema version {version}, this program reads {SCHEMA_VERSION}")
        try:
            manifest = Manifest.model_validate(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise _bad(directory, f"{_MANIFEST}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        recording = cls(manifest, {}, directory)
        for collector, entry in manifest.collectors.items():
            for table, rows in entry.rows.items():
                schema = schemas.get(collector, {}).get(table)
                if schema is None:
                    raise _bad(directory, f"unknown table {collector}.{table}")
                frame = _read(directory, f"{collector}.{table}", schema, manifest.window_ns)
                if frame.height != rows:
                    raise _bad(directory, f"{collector}.{table} has {frame.height} rows instead of {rows}")
                recording._tables[f"{collector}.{table}"] = frame
        return recording

    def has(self, collector: str) -> bool:
        """Return whether `collector` was recorded."""
        return collector in self.manifest.collectors

    def table(self, name: str) -> pl.DataFrame:
        """Return the table ``collector.table``. Raises `ToolError` (missing_collector) when it was not recorded."""
        try:
            return self._tables[name]
        except KeyError:
            collector = name.partition(".")[0]
            raise ToolError(
                ErrorCode.MISSING_COLLECTOR,
                f"this recording has no {collector!r} data",
                f"record again with `whystall record{_ON_REQUEST.get(collector, '')}`",
            ) from None

    def find(self, name: str) -> pl.DataFrame | None:
        """Return the table ``collector.table``; None if it was not recorded, as by an older version."""
        return self._tables.get(name)

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return all tables by name."""
        return dict(self._tables)

    def save(self, directory: Path) -> None:
        """Write to `directory`, which must not exist or be empty. A new one gets mode 0700, as it describes processes
        of all users; an existing one keeps its mode.

        Raises `ToolError`: bad_argument when it is not empty, disk_full or io_error when it cannot be written; nothing
        is left behind then.
        """
        check_place(directory)
        directory = Path(os.path.abspath(directory))
        partial = directory.with_name(f".whystall-{secrets.token_hex(4)}.partial")
        made = [path for path in directory.parents if not path.exists()]
        try:
            partial.mkdir(mode=0o700, parents=True)
            for name, frame in self._tables.items():
                frame.write_parquet(partial / f"{name}.parquet", compression="zstd")
            (partial / _MANIFEST).write_bytes(self.manifest.model_dump_json(indent=1).encode())
            if directory.exists():
                partial.chmod(stat.S_IMODE(directory.stat().st_mode))
                directory.rmdir()
            partial.rename(directory)
        except (OSError, pl.exceptions.PolarsError) as error:
            _remove(partial, made)
            raise _write_error(directory, error) from error
        except BaseException:
            _remove(partial, made)
            raise
        self._directory = directory


def check_place(directory: Path) -> None:
    """Check by a trial, before a window is recorded, that a recording can be written to `directory`.

    Raises `ToolError`: bad_argument when it is not empty, io_error or disk_full when nothing can be created there.
    """
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"{directory} exists", "give a new directory")
        place = next(path for path in Path(os.path.abspath(directory)).parents if path.exists())
        probe = place / f".whystall-{secrets.token_hex(4)}.partial"
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise _write_error(directory, error) from error


def _remove(partial: Path, made: list[Path]) -> None:
    """Remove a partial recording, and the directories `made` for it, innermost first."""
    shutil.rmtree(partial, ignore_errors=True)
    for path in made:
        with suppress(OSError):
            path.rmdir()


def _manifest_bytes(directory: Path) -> bytes:
    """Return the manifest's text. Only a regular file is read: a pipe would block, a device never end."""
    with open(directory / _MANIFEST, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise _bad(directory, f"{_MANIFEST} is not a regular file")
        content = file.read(_MANIFEST_LIMIT + 1)
    if len(content) > _MANIFEST_LIMIT:
        raise _bad(directory, "its manifest is too large")
    return content


def _read(directory: Path, name: str, schema: pl.Schema, window_ns: int) -> pl.DataFrame:
    """Return one table, with its texts made inert, as a recording may come from a stranger."""
    path = directory / f"{name}.parquet"
    if path.exists() and not path.is_file():
        raise _bad(directory, f"{path.name} is not a regular file")
    try:
        frame = pl.read_parquet(path, memory_map=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise _bad(directory, f"{path.name} cannot be read: {type(error).__name__}") from None
    if isinstance(schema, TableSchema):
        frame = schema.completed(frame)
    if frame.schema != schema:
        raise _bad(directory, f"{path.name} does not have the columns of {name}")
    lists = [pl.col(c) for c, dtype in schema.items() if dtype == pl.List(pl.String)]
    nulls = [column.list.eval(pl.element().is_null()).list.any() for column in lists]
    if any(frame.null_count().row(0)) or (nulls and not frame.filter(pl.any_horizontal(nulls)).is_empty()):
        raise _bad(directory, f"{path.name} has empty cells")
    if not _in_window(frame, window_ns):
        raise _bad(directory, f"{path.name} has times outside its window")
    return frame.with_columns(_inert(frame[c], t) for c, t in schema.items() if t in (pl.String, pl.List(pl.String)))


def _in_window(frame: pl.DataFrame, window_ns: int) -> bool:
    if not {"start_ns", "end_ns"} <= set(frame.columns):
        return True
    backwards = (pl.col("start_ns") > pl.col("end_ns")) & (pl.col("end_ns") != 0)  # 0: end unknown
    outside = (pl.min_horizontal("start_ns", "end_ns") < 0) | (pl.max_horizontal("start_ns", "end_ns") > window_ns)
    outside |= backwards
    return frame.filter(outside).is_empty()


def _inert(series: pl.Series, dtype: pl.DataType) -> pl.Series:
    texts = series.explode().drop_nulls() if dtype != pl.String else series
    if not texts.str.contains(r"[\p{C}\p{Zl}\p{Zp}]").any():
        return series
    if dtype == pl.String:
        return pl.Series(series.name, [clean_path(t) for t in series.to_list()], dtype=dtype)
    return pl.Series(series.name, [[clean_path(t) for t in ts] for ts in series.to_list()], dtype=dtype)


def _bad(directory: Path, why: str) -> ToolError:
    return ToolError(ErrorCode.BAD_RECORDING, f"{directory} is not a usable recording: {why}", "record again")


def _write_error(directory: Path, error: Exception) -> ToolError:
    full = (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)) or "No space left" in str(error)
    if full:
        return ToolError(
            ErrorCode.DISK_FULL, f"no space left to write {directory}", "free space or choose another --out"
        )
    why = (error.strerror if isinstance(error, OSError) else None) or error
    return ToolError(ErrorCode.IO_ERROR, f"cannot write {directory}: {why}", "choose another --out")
