"""Buffered beside direct I/O, tried on the file system that is meant: the collector `calibration`.

No engine of a window: what it tries would be observed with everything else, and would disturb what is observed. It is
done when a window is over, where that was asked for, and joins the recording as a profile does. Where to try follows
from the recording, the file systems that its files are on, or is named.
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
from whystall.tools.collect.tables import CALIBRATION
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
"""What the trials on one file system may take; a fast disk needs one or two."""
WRITTEN = 256 * MIB
"""What they may write in all; never more than 32 MiB of it are on the disk at once."""
_ROOM = 16
"""Of what is free, one part in so many is a file of ours, and there are two: ours are the last that may fill a disk."""
_LEAST_LIMIT = 128 * MIB
"""A memory cgroup of ours below this would evict the trials' own pages while they run."""
_GRACE_S = 10.0
_PLACES = 2
_SPENT = frozenset({"stuck", "too_slow", "ended", "io_error"})
"""Refusals that come late: time was spent there, though nothing came of it."""
# What keeps its files in memory: there is nothing to go direct to. tmpfs takes O_DIRECT since Linux 6.6 (commit
# e88e0d366f9c) and does the same with it as without.
_IN_MEMORY = frozenset(
    {"tmpfs", "ramfs", "hugetlbfs", "devtmpfs", "proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs"}
)
# Their st_dev is not the number that the kernel's tracepoints know the file system by.
_OTHER_NUMBERS = frozenset({"btrfs", "overlay", "zfs", "bcachefs"})
# Isolated (no PYTHON* variables, nothing from the working directory), but with the modules that we have.
_START = (
    "import sys; sys.path += [p for p in {path!r} if p not in sys.path]; "
    "from whystall.tools.collect import calibration_child; calibration_child.main()"
)


class Place(NamedTuple):
    """A directory to try in, and its file system: number and type."""

    directory: str
    dev: str
    fstype: str


class Refusal(NamedTuple):
    """Why nothing, or no more, was tried at a place: a code and a detail."""

    place: Place
    code: str
    detail: str = ""


@dataclass(frozen=True)
class Asked:
    """What to try, and where, the place that matters most first, on so many at `most`. `operations` by place: read,
    write.
    """

    places: Sequence[tuple[Place, Sequence[str]]]
    refusals: Sequence[Refusal] = ()
    most: int = _PLACES


def named(directory: str, operations: Sequence[str]) -> Asked:
    """Trials of `operations` in `directory`; `ToolError` (bad_argument) where it is no directory."""
    try:
        path = os.path.realpath(directory, strict=True)
        if not directory or not os.path.isdir(path):
            raise NotADirectoryError(0, "Not a directory")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no such path"
        message = f"cannot try anything in {clean_path(directory)}: {why}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "give a directory on the file system that is meant") from None
    return Asked([(place_of(path), operations)])


def observed(recording: Recording, first: Sequence[int] = ()) -> Asked:
    """Trials on the file systems whose files were read and written in the recording, with what was done: those of the
    files `first` (as numbered there), and only where they refuse, or there are none, those that the target moved most
    of, then anybody.
    """
    sizes, files = recording.table("page_cache.sizes"), recording.table("page_cache.files")
    used = recording.table("page_cache.use").select("file", "pid").unique(subset="file")
    turns = pl.DataFrame({"file": first, "turn": range(len(first))}, schema={"file": pl.Int64, "turn": pl.Int64})
    moved = (
        sizes.filter(pl.col("file") >= 0)
        .with_columns(mine=pl.col("bytes") * pl.col("pid").is_in(recording.manifest.target.pids))
        .group_by("file", "operation")
        .agg(pl.col("bytes").sum(), pl.col("mine").sum())
        .join(files, on="file")
        .join(used, on="file", how="left")
        .join(turns, on="file", how="left")
        .with_columns(pl.col("turn").fill_null(len(first)))
        .sort("turn", "mine", "bytes", descending=[False, True, True])
    )
    if recording.manifest.target.pids:  # what others read and write elsewhere is none of its business
        moved = moved.filter((pl.col("mine") > 0) | (pl.col("turn") < len(first)))
    totals = moved.group_by("dev").agg(pl.col("turn").min(), pl.col("bytes").sum(), pl.col("mine").sum())
    totals = totals.sort("turn", "mine", "bytes", "dev", descending=[False, True, True, False])
    places: list[tuple[Place, Sequence[str]]] = []
    refusals: list[Refusal] = []
    for dev in totals["dev"].head(2 * _PLACES):
        rows = moved.filter(pl.col("dev") == dev)
        operations = sorted(set(rows["operation"].to_list()) & {"read", "write"})
        found = next((place for row in rows.head(16).iter_rows(named=True) if (place := _beside(row))), None)
        if found is not None:
            places.append((found, operations))
        else:
            nowhere = Place(os.path.dirname(rows["path"][0]), dev, rows["fstype"][0])
            refusals.append(Refusal(nowhere, "not_reachable", "gone, or seen from another mount namespace only"))
    matter = moved.filter(pl.col("turn") < len(first))["dev"].n_unique()
    return Asked(places, refusals, min(matter or _PLACES, _PLACES))


def place_of(directory: str) -> Place:
    """`directory` with its file system."""
    status = os.stat(directory)
    dev = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    path = os.fsencode(directory)
    with open("/proc/self/mountinfo", "rb") as file:
        mounts = mountinfo(file.read())
    above = [m for m in mounts if path == m.point or path.startswith(m.point.rstrip(b"/") + b"/")]
    same = [m for m in above if m.dev == dev] or above
    # the later one of two on the same point is what is seen there
    fstype = max(enumerate(same), key=lambda m: (len(m[1].point), m[0]))[1].fstype if same else ""
    return Place(directory, dev, fstype)


def _beside(row: dict[str, Any]) -> Place | None:
    """The directory of a file, as it can be reached from here: by its path, or as a process that used it sees it."""
    pid, directory, numbers = row["pid"] or 0, row["path"], _OTHER_NUMBERS
    while directory.startswith("/") and directory != "/":
        directory = os.path.dirname(directory)  # or further up on the same file system
        for candidate in (directory, f"/proc/{pid}/root{directory}") if pid > 0 else (directory,):
            try:
                place = place_of(candidate)
            except (OSError, ValueError):
                continue  # gone, hidden, of another mount namespace, or no name that could be recorded as it is
            if place.dev == row["dev"] or place.fstype == row["fstype"] in numbers:
                return place._replace(dev=row["dev"])  # as the recording knows it
        numbers = frozenset()
    return None


async def calibrate(asked: Asked, progress: Progress | None = None, seconds: float = SECONDS) -> Capture:
    """Run the trials on the first places that let them, at most `seconds` on each and `WRITTEN` bytes in all; what
    cannot be tried is told as a refusal. Nothing is left of it, also when this is cancelled or killed.
    """
    rows: list[dict[str, Any]] = []
    refusals = list(asked.refusals)
    proven: list[bool] = []
    done, most, file = 0, min(asked.most, len(asked.places)), LEAST_FILE
    for place, operations in asked.places:
        if done == most:
            break
        if progress is not None:
            progress(done, most, "calibrating")
        refusal = refused(place)
        if refusal is not None:
            refusals.append(refusal)
            continue
        with suppress(OSError):  # gone since: whoever tries finds out
            file = _file(_free(place))
        plan = Plan(place.directory, list(operations), seconds, WRITTEN // most, file=max(file, LEAST_FILE))
        trials, why, proof = await _run(plan)
        done += bool(trials) or (why is not None and why[0] in _SPENT)
        rows += [{**trial, **_said(place)} for trial in trials]
        refusals += [Refusal(place, *why)] if why else []
        proven.append(bool(trials) and proof.get("cold") is not False and proof.get("direct") is not False)
    said = [{**_said(r.place), "code": r.code, "detail": clean(r.detail)} for r in refusals]
    return Capture(
        tables={
            "trials": pl.DataFrame(rows, schema=CALIBRATION["trials"], orient="row"),
            "refusals": pl.DataFrame(said, schema=CALIBRATION["refusals"], orient="row"),
        },
        hooks=["O_TMPFILE", "O_DIRECT"],
        seen=len(rows),
        kept=len(rows),
        lost=0,
        proven=all(proven),
        not_seen=[("not_calibrated", f"{r['code']} {r['directory']}") for r in said],
    )


def joined(recording: Recording, capture: Capture) -> Recording:
    """A copy of `recording` that also holds the trials."""
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
    """Why nothing should be tried at `place`, as far as can be told without trying."""
    if place.fstype in _IN_MEMORY:
        return Refusal(place, "in_memory", place.fstype)
    if place.fstype.partition(".")[0] in ("fuse", "fuseblk"):
        # what a server of files does with direct requests is its own: it may well read them from the page cache
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
    """Bytes that anybody may still take there; OSError where it is gone."""
    told = os.statvfs(place.directory)
    return told.f_bavail * told.f_frsize


def _file(free: int) -> int:
    """How large a file of ours may be where so many bytes are free: a power of two, or nothing."""
    return 1 << (room.bit_length() - 1) if (room := min(FILE, free // _ROOM)) > 0 else 0


def _own_limit() -> int:
    """The memory that the cgroups of this process leave it, bytes; -1: no limit."""
    try:
        view = CgroupView()
        with open("/proc/self/cgroup", "rb") as file:
            places = Hierarchies(view.mounts).places([view.membership(file.read())])
    except OSError:
        return -1
    limits = [read.memory_limit_bytes for place in places if (read := read_limits(place)) is not None]
    return min((limit for limit in limits if limit > 0), default=-1)


def _said(place: Place) -> dict[str, str]:
    return {"directory": clean_path(place.directory), "dev": clean(place.dev), "fstype": clean(place.fstype)}


async def _run(plan: Plan) -> tuple[list[dict[str, Any]], tuple[str, str] | None, dict[str, bool | None]]:
    """The trials of `plan` in a process of its own: rows, why there are no more, and what proves them."""
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
        raise AssertionError("a pipe was asked for")
    try:
        with anyio.move_on_after(plan.seconds + _GRACE_S):
            async for line in _lines(child.stdout.fileno()):
                said = json.loads(line)
                if "trial" in said:
                    rows.append(said["trial"])
                elif "refusal" in said:
                    why = (said["refusal"][0], said["refusal"][1])
                else:
                    proof = said["proof"]
    finally:
        # A child that waits for a disk for ever cannot be reaped, but it must not keep anybody waiting either.
        child.kill()
        child.stdout.close()
        with anyio.CancelScope(shield=True), anyio.move_on_after(1):
            while child.poll() is None:
                await anyio.sleep(0.01)
    if proof is None and why is None:
        late = child.returncode in (None, -signal.SIGKILL)  # killed just now
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
