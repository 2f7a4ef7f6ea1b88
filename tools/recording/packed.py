"""A recording as bytes, to send it to another host: a ZIP archive, stored, of the files of its directory.

Parquet is compressed already. What is read comes from another host: few bytes of it can stand for many rows, which are
counted in the footers before any row is read.
"""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.recording.store import Recording, Schemas

MOST_ROWS = 5_000_000
"""Rows of all tables together."""
_MANIFEST = "manifest.json"


def pack(recording: Recording) -> bytes:
    """Return `recording` as bytes. Raises `ToolError` (disk_full, io_error): it is written to a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="whystall-") as made:
        directory = Path(made, "recording")
        recording.save(directory)
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
            for path in sorted(directory.iterdir()):
                file.write(path, path.name)
        return archive.getvalue()


def unpack(data: bytes, schemas: Schemas) -> Recording:
    """Return the recording that `pack` made. Raises `ToolError` (bad_recording) for anything else, or too many rows."""
    names = {f"{collector}.{table}.parquet" for collector, tables in schemas.items() for table in tables} | {_MANIFEST}
    with tempfile.TemporaryDirectory(prefix="whystall-") as made:
        rows = 0
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as file:
                for entry in file.infolist():
                    if entry.filename not in names or entry.compress_type != zipfile.ZIP_STORED:
                        raise _bad("it holds something else")
                    if entry.file_size > len(data):
                        raise _bad("it is damaged")
                    path = Path(made, entry.filename)
                    path.write_bytes(file.read(entry))
                    if entry.filename != _MANIFEST:
                        rows += pl.scan_parquet(path).select(pl.len()).collect().item()
                    if rows > MOST_ROWS:
                        raise _bad(f"it has more than {MOST_ROWS} rows")
        except (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, NotImplementedError):
            raise _bad("it is damaged") from None
        except pl.exceptions.PolarsError:
            raise _bad("a table cannot be read") from None
        return Recording.open(Path(made), schemas)


def _bad(why: str) -> ToolError:
    return ToolError(ErrorCode.BAD_RECORDING, f"this is no packed recording: {why}", "record again")
