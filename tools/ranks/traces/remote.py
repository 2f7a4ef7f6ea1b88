"""Remote traces: listed through fsspec, copied to this machine one at a time by the process that reads them."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.extras import extra
from whystall.tools.contract.text import clean, clean_path
from whystall.tools.ranks.traces.read import Unread, read, traces_at

if TYPE_CHECKING:
    from whystall.tools.timeline.rank_data.summary import Summary

OF_PROCESS = "memory://"
"""URLs whose content no other process can see."""
_DEPTH = 8
_FILES = 100_000
_BLOCK = 8 << 20
_KEPT_FREE = 256 << 20
"""Bytes that stay free in the directory that traces are copied to."""
# A directory that is one trace: of an Ascend profiler, or of msprof.
_DIRECTORY = re.compile(r".*_ascend_(?:pt|ms)|PROF_[0-9]+_.*")
_EXPORT = "ASCEND_PROFILER_OUTPUT"
# Other content of such a directory.
_RAW_DATA = re.compile(r"(?:.*/)?FRAMEWORK/.*|.*\.slice_[0-9]+(?:\.done)?")
# A file that may be a trace by itself.
_FILE = re.compile(
    r".*\.(?:json|jsonl|log|txt|pkl|pickle|csv|tsv|parquet|prom)(?:\.gz)?|.*\.(?:db|sqlite3?)"
    r"|.*(?:_dump_|_trace_rank_)[0-9]{1,6}|.*xpu_timer.*",
    re.IGNORECASE,
)


# Tables that are read together with the others of their directory, and only where there is no profile.
_TABLES = re.compile(
    r"(?:.*/)?(?:step_trace_raw_[0-9]|ascend_cluster_analyse_|hccl_raw_[0-9]|cluster_step_trace_time|cluster_communication)"
    r"[^/]*\.(?:csv|json)(?:\.gz)?"
)


@dataclass(frozen=True)
class RemoteTrace:
    """A trace behind `url`, the location of the run: its `files` (path within that location, bytes), to be put below a
    directory called `name`; a location that is a file has one, with an empty path."""

    url: str
    name: str
    files: tuple[tuple[str, int], ...]

    @property
    def size(self) -> int:
        """Bytes to copy."""
        return sum(size for _, size in self.files)

    @property
    def shown(self) -> str:
        """Its path within the run."""
        return clean_path(os.path.commonpath([path for path, _ in self.files]) or self.name)


def is_url(place: str) -> bool:
    """Return whether `place` is an fsspec URL that is no path of this machine."""
    return "://" in place and not place.startswith("file://")


def local_path(place: str) -> str:
    """Return `place` without ``file://``."""
    return place.removeprefix("file://")


def remote_traces(url: str) -> list[RemoteTrace]:
    """Return possible traces at or below `url`, listed, not opened.

    Raises `ToolError`: bad_argument without fsspec or the package it needs for such a URL, or with too many files;
    bad_trace when there is nothing; io_error.
    """
    try:
        system, root = file_system(url)
        listed = system.find(root, maxdepth=_DEPTH, detail=True)
    except (OSError, ValueError) as error:
        raise ToolError(
            ErrorCode.IO_ERROR, f"cannot list {url}: {error}", "check the URL and the access to it"
        ) from None
    if len(listed) > _FILES:
        raise ToolError(
            ErrorCode.BAD_ARGUMENT, f"more than {_FILES} files below {url}", "give the directory of one run"
        )
    top = PurePosixPath(root)
    sizes = {
        "" if path == root else str(PurePosixPath(path).relative_to(top)): int(info.get("size") or 0)
        for path, info in listed.items()
    }
    found = [RemoteTrace(url, clean(top.name), tuple(files)) for files in _units(sizes)]
    if not found:
        raise ToolError(ErrorCode.BAD_TRACE, f"no profile in {url}", "give the directory with the traces of the ranks")
    return found


def read_remote(trace: RemoteTrace) -> list[Summary | Unread]:
    """Copy a trace to a temporary directory of this machine and read it there; empty when it is no trace."""
    with tempfile.TemporaryDirectory(prefix="whystall-") as directory:
        place = Path(directory, os.path.basename(trace.name) or "run")
        try:
            _copy(trace, place)
            found = traces_at(os.fspath(place), required=trace.files[0][0] == "")
        except ToolError as error:
            return [Unread(trace.shown, -1, clean(error.message.replace(f" {place}", "")), clean(error.remedy))]
        except (OSError, ValueError) as error:
            return [Unread(trace.shown, -1, clean(f"cannot be brought here: {error}"))]
        return [one for local in found for one in read(local)]


def file_system(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of `url`, and the path there. Raises `ToolError` (bad_argument) without the package
    that it needs, ValueError for an unknown kind of URL.
    """
    with extra("ranks"):
        from fsspec.core import url_to_fs
    try:
        system, root = url_to_fs(url)
    except ImportError as error:  # s3:// needs s3fs, and so on
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{url}: {error}", "install the package it names") from None
    return system, str(root)


def _units(sizes: dict[str, int]) -> list[list[tuple[str, int]]]:
    """Group files by their trace, in the order of names."""
    exports = {path[: path.index(_EXPORT)].rstrip("/") for path in sizes if f"/{_EXPORT}/" in f"/{path}"}
    units: dict[str, list[tuple[str, int]]] = defaultdict(list)
    tables: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for path, size in sorted(sizes.items()):
        if ".." in path.split("/"):
            continue
        within = _directory(path, exports)
        if within is not None:
            if not _RAW_DATA.fullmatch(path):
                units[within + "/"].append((path, size))
        elif path and _TABLES.fullmatch(path):
            tables[path.rpartition("/")[0]].append((path, size))
        elif not path or _FILE.fullmatch(path):
            units[path].append((path, size))
    profiles = any(path.endswith("/") for path in units)
    return [*units.values(), *(() if profiles else tables.values())]


def _directory(path: str, exports: set[str]) -> str | None:
    """Return the outermost directory around `path` that is a trace as a whole; empty: the location itself."""
    parts = path.split("/")[:-1]
    for depth in range(len(parts) + 1):
        directory = "/".join(parts[:depth])
        if directory in exports or (depth and _DIRECTORY.fullmatch(parts[depth - 1])):
            return directory
    return None


def _copy(trace: RemoteTrace, place: Path) -> None:
    """Copy the files of `trace` to `place`. Raises OSError, `ToolError` (disk_full) when there is no space for them."""
    system, root = file_system(trace.url)
    space = shutil.disk_usage(place.parent).free - _KEPT_FREE
    if trace.size > space:
        message = f"{trace.size >> 20} MiB to be brought, {max(space, 0) >> 20} MiB free in {tempfile.gettempdir()}"
        raise ToolError(ErrorCode.DISK_FULL, message, "free space, or set TMPDIR to another directory")
    for path, _ in trace.files:
        target = place / path if path else place
        target.parent.mkdir(parents=True, exist_ok=True)
        with system.open(f"{root}/{path}" if path else root, "rb") as source, target.open("wb") as copy:
            while block := source.read(_BLOCK):
                space -= len(block)
                if space < 0:  # it has grown since it was listed, or its size was not listed
                    raise ToolError(ErrorCode.DISK_FULL, "no space to bring it here", "free space, or set TMPDIR")
                copy.write(block)
