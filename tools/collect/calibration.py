"""Measure buffered and direct I/O on a file system: the collector `calibration`.

Its trials run after a window, on request, since they would disturb it, and their results are added to the recording.
They run in a named directory, or on the file systems of the files in the recording.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import anyio
import polars as pl

from whystall.tools.collect.calibration_child import FILE, LEAST_FILE, MIB, READ_ROUNDS, Plan
from whystall.tools.collect.proc_cgroup import Hierarchies, read_limits
from whystall.tools.collect.tables import CALIBRATION, filled
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import BlindSpot
from whystall.tools.contract.text import clean, clean_path
from whystall.tools.node.hierarchies import CgroupView
from whystall.tools.node.mounts import mountinfo
from whystall.tools.recording.collector import Capture
from whystall.tools.recording.manifest import CollectorManifest
from whystall.tools.recording.store import Recording
from whystall.tools.recording.window import Progress

NAME = "calibration"
SECONDS = 8.0
"""Time limit of the trials on one file system; a fast disk needs one or two seconds."""
WRITTEN = 256 * MIB
"""Limit of bytes written in total; at most 32 MiB of it are on the disk at once."""
_FREE_SHARE = 16
"""Each of our two files may take one part in 16 of the free space, so that they do not fill a disk."""
_LEAST_LIMIT = 128 * MIB
"""A smaller memory limit of our own cgroup would evict the trials' pages while they run."""
_GRACE_S = 10.0
_PLACES = 2
_SPENT = frozenset({"stuck", "too_slow", "ended", "io_error"})
"""Refusals after which a place counts as tried, since time was spent there."""
# File systems in memory, without direct I/O. tmpfs accepts O_DIRECT since Linux 6.6 (commit e88e0d366f9c), without
# effect.
_IN_MEMORY = frozenset(
    {"tmpfs", "ramfs", "hugetlbfs", "devtmpfs", "proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs"}
)
# File systems whose st_dev differs from the device number in the kernel's tracepoints.
_OTHER_NUMBERS = frozenset({"btrfs", "overlay", "zfs", "bcachefs"})
# Isolated (no PYTHON* variables, nothing from the working directory), but with our module path.
_START = (
    "import sys; sys.path += [p for p in {path!r} if p not in sys.path]; "
    "from whystall.tools.collect import calibration_child; calibration_child.main()"
)


class Place(NamedTuple):
    """A directory for trials, and the device number and type of its file system."""

    directory: str
    dev: str
    fstype: str


class Refusal(NamedTuple):
    """Why no trials, or no more, were done at a place: a code and a detail."""

    place: Place
    code: str
    detail: str = ""


@dataclass(frozen=True)
class Request:
    """Places for trials with their operations (read, write), most important first; at most `most` of them are used."""

    places: Sequence[tuple[Place, Sequence[str]]]
    refusals: Sequence[Refusal] = ()
    most: int = _PLACES


def in_directory(directory: str, operations: Sequence[str]) -> Request:
    """Return trials of `operations` in `directory`; raise `ToolError` (bad_argument) if it is no directory."""
    try:
        path = os.path.realpath(directory, strict=True)
        if not directory or not os.path.isdir(path):
            raise NotADirectoryError(0, "Not a directory")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no such path"
        message = f"cannot calibrate in {clean_path(directory)}: {why}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "give a directory on the file system to calibrate") from None
    return Request([(place_of(path), operations)])


def for_recording(recording: Recording, first: Sequence[int] = ()) -> Request:
    """Return trials on the file systems of files that were read or written in the recording.

    First those of the files `first` (numbers of the recording), then those with the most bytes of the target, then
    those with the most bytes of any process.
    """
    sizes, files = recording.table("page_cache.sizes"), recording.table("page_cache.files")
    used = recording.table("page_cache.use").select("file", "pid").unique(subset="file")
    ranks = pl.DataFrame({"file": first, "rank": range(len(first))}, schema={"file": pl.Int64, "rank": pl.Int64})
    moved = (
        sizes.filter(pl.col("file") >= 0)
        .with_columns(of_target=pl.col("bytes") * pl.col("pid").is_in(recording.manifest.target.pids))
        .group_by("file", "operation")
        .agg(pl.col("bytes").sum(), pl.col("of_target").sum())
        .join(files, on="file")
        .join(used, on="file", how="left")
        .join(ranks, on="file", how="left")
        .with_columns(pl.col("rank").fill_null(len(first)))
        .sort("rank", "of_target", "bytes", descending=[False, True, True])
    )
    if recording.manifest.target.pids:  # with a target, other processes' file systems are left out
        moved = moved.filter((pl.col("of_target") > 0) | (pl.col("rank") < len(first)))
    totals = moved.group_by("dev").agg(pl.col("rank").min(), pl.col("bytes").sum(), pl.col("of_target").sum())
    totals = totals.sort("rank", "of_target", "bytes", "dev", descending=[False, True, True, False])
    places: list[tuple[Place, Sequence[str]]] = []
    refusals: list[Refusal] = []
    for dev in totals["dev"].head(2 * _PLACES):
        rows = moved.filter(pl.col("dev") == dev)
        operations = sorted(set(rows["operation"].to_list()) & {"read", "write"})
        found = next((place for row in rows.head(16).iter_rows(named=True) if (place := _directory_of(row))), None)
        if found is not None:
            places.append((found, operations))
        else:
            nowhere = Place(os.path.dirname(rows["path"][0]), dev, rows["fstype"][0])
            refusals.append(Refusal(nowhere, "not_reachable", "removed, or visible in another mount namespace only"))
    important = moved.filter(pl.col("rank") < len(first))["dev"].n_unique()
    return Request(places, refusals, min(important or _PLACES, _PLACES))


def place_of(directory: str) -> Place:
    """Return `directory` with its file system."""
    status = os.stat(directory)
    dev = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    path = os.fsencode(directory)
    with open("/proc/self/mountinfo", "rb") as file:
        mounts = mountinfo(file.read())
    above = [m for m in mounts if path == m.point or path.startswith(m.point.rstrip(b"/") + b"/")]
    same = [m for m in above if m.dev == dev] or above
    # of two mounts on the same point the later one is visible
    fstype = max(enumerate(same), key=lambda m: (len(m[1].point), m[0]))[1].fstype if same else ""
    return Place(directory, dev, fstype)


def _directory_of(row: dict[str, Any]) -> Place | None:
    """Return the directory of a file on its file system, by its path, or through a process that used it."""
    pid, directory, numbers = row["pid"] or 0, row["path"], _OTHER_NUMBERS
    while directory.startswith("/") and directory != "/":
        directory = os.path.dirname(directory)  # or an ancestor on the same file system
        for candidate in (directory, f"/proc/{pid}/root{directory}") if pid > 0 else (directory,):
            try:
                place = place_of(candidate)
            except (OSError, ValueError):
                continue  # removed, hidden, in another mount namespace, or its path was changed by `clean`
            if place.dev == row["dev"] or place.fstype == row["fstype"] in numbers:
                return place._replace(dev=row["dev"])  # the number in the recording
        numbers = frozenset()
    return None


async def calibrate(request: Request, progress: Progress | None = None, seconds: float = SECONDS) -> Capture:
    """Run the trials on the first places that allow them, at most `seconds` on each and `WRITTEN` bytes in total; the
    others are reported as refusals. No file is left, also when this is cancelled or killed.
    """
    rows: list[dict[str, Any]] = []
    refusals = list(request.refusals)
    proven: list[bool] = []
    done, most, file = 0, min(request.most, len(request.places)), LEAST_FILE
    for place, operations in request.places:
        if done == most:
            break
        if progress is not None:
            progress(done, most, "calibrating")
        refusal = refused(place)
        if refusal is not None:
            refusals.append(refusal)
            continue
        with suppress(OSError):  # removed meanwhile: the trials will report it
            file = _file(_free(place))
        plan = Plan(place.directory, list(operations), seconds, WRITTEN // most, file=max(file, LEAST_FILE))
        trials, why, proof = await _run(plan)
        done += bool(trials) or (why is not None and why[0] in _SPENT)
        rows += [{**trial, **_columns(place)} for trial in trials]
        refusals += [Refusal(place, *why)] if why else []
        proven.append(bool(trials) and proof.get("cold") is not False and proof.get("direct") is not False)
    refused_rows = [{**_columns(r.place), "code": r.code, "detail": clean(r.detail)} for r in refusals]
    return Capture(
        tables=filled(CALIBRATION, trials=rows, refusals=refused_rows),
        hooks=["O_TMPFILE", "O_DIRECT"],
        seen=len(rows),
        kept=len(rows),
        lost=0,
        proven=all(proven),
        not_seen=[("not_calibrated", f"{r['code']} {r['directory']}") for r in refused_rows],
    )


def joined(recording: Recording, capture: Capture) -> Recording:
    """Return a copy of `recording` with the trials of `capture`."""
    manifest = recording.manifest.model_copy(deep=True)
    manifest.collectors[NAME] = CollectorManifest(
        engine=NAME,
        options={"rounds": READ_ROUNDS, "written_bytes": WRITTEN},
        hooks=capture.hooks,
        seen=capture.seen,
        kept=capture.kept,
        lost=capture.lost,
        proven=capture.proven,
        not_seen=[BlindSpot(code=code, detail=detail) for code, detail in capture.not_seen],
    )
    tables = {f"{NAME}.{name}": frame for name, frame in capture.tables.items()}
    return Recording.in_memory(manifest, recording.tables() | tables)


def refused(place: Place) -> Refusal | None:
    """Return why no trials are possible at `place`, as far as is known without them; else None."""
    if place.fstype in _IN_MEMORY:
        return Refusal(place, "in_memory", place.fstype)
    if place.fstype.partition(".")[0] in ("fuse", "fuseblk"):
        # its server may serve direct requests from the page cache
        return Refusal(place, "fuse", place.fstype)
    try:
        free = _free(place)
    except OSError as error:
        return Refusal(place, "no_directory", error.strerror or "")
    if _file(free) < LEAST_FILE:
        return Refusal(place, "no_room", f"{free >> 20} MiB free")
    limit = _own_limit()
    if 0 <= limit < _LEAST_LIMIT:
        return Refusal(place, "cgroup_small", f"{limit >> 20} MiB")
    return None


def _free(place: Place) -> int:
    """Return the free bytes for unprivileged users; raises OSError if the directory was removed."""
    status = os.statvfs(place.directory)
    return status.f_bavail * status.f_frsize


def _file(free: int) -> int:
    """Return the size of a file of ours with `free` bytes left: a power of two, or 0."""
    return 1 << (size.bit_length() - 1) if (size := min(FILE, free // _FREE_SHARE)) > 0 else 0


def _own_limit() -> int:
    """Return the memory limit of this process's cgroups in bytes; -1: none."""
    try:
        view = CgroupView()
        with open("/proc/self/cgroup", "rb") as file:
            places = Hierarchies(view.mounts).places([view.membership(file.read())])
    except OSError:
        return -1
    limits = [read.memory_limit_bytes for place in places if (read := read_limits(place)) is not None]
    return min((limit for limit in limits if limit > 0), default=-1)


def _columns(place: Place) -> dict[str, str]:
    return {"directory": clean_path(place.directory), "dev": clean(place.dev), "fstype": clean(place.fstype)}


async def _run(plan: Plan) -> tuple[list[dict[str, Any]], tuple[str, str] | None, dict[str, bool | None]]:
    """Run the trials of `plan` in a child process; return rows, why there are no more, and their proofs."""
    path = [entry for entry in sys.path if os.path.isabs(entry)]
    arguments = [json.dumps(asdict(plan)), str(os.getpid())]
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", _START.format(path=path), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )
    rows: list[dict[str, Any]] = []
    why: tuple[str, str] | None = None
    proof: dict[str, bool | None] | None = None
    if child.stdout is None:
        raise AssertionError("stdout is a pipe")
    try:
        with anyio.move_on_after(plan.seconds + _GRACE_S):
            async for line in _lines(child.stdout.fileno()):
                message = json.loads(line)
                if "trial" in message:
                    rows.append(message["trial"])
                elif "refusal" in message:
                    why = (message["refusal"][0], message["refusal"][1])
                else:
                    proof = message["proof"]
    finally:
        # A child that waits for a disk forever cannot be reaped: do not wait for it.
        child.kill()
        child.stdout.close()
        with anyio.CancelScope(shield=True), anyio.move_on_after(1):
            while child.poll() is None:
                await anyio.sleep(0.01)
    if proof is None and why is None:
        late = child.returncode in (None, -signal.SIGKILL)  # killed above
        why = ("stuck", f"{plan.seconds + _GRACE_S:g} s") if late else ("ended", f"status {child.returncode}")
    return rows, why, proof or {}


async def _lines(descriptor: int) -> AsyncIterator[bytes]:
    rest = b""
    while True:
        await anyio.wait_readable(descriptor)
        if not (more := os.read(descriptor, 65536)):
            return
        *whole, rest = (rest + more).split(b"\n")
        for line in whole:
            yield line
