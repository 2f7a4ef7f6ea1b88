"""Any accelerator profile: which format it is, which ranks a directory holds, and the one that is asked for."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.input import bad, unreadable
from whystall.tools.timeline.ascend import db as ascend_db
from whystall.tools.timeline.ascend import directory as ascend
from whystall.tools.timeline.ascend import msprof
from whystall.tools.timeline.ascend import text as ascend_text
from whystall.tools.timeline.ascend.info import info_of
from whystall.tools.timeline.kineto import trace as kineto
from whystall.tools.timeline.nccl import flight_recorder
from whystall.tools.timeline.nccl import inspector as nccl_inspector
from whystall.tools.timeline.nsys import export as nsys
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.profile_reading.sqlite_tables import is_database
from whystall.tools.timeline.profile_reading.trace_events import head

_DEPTH = 4
_ENTRIES = 100_000
_LISTED = 8
_RANK = re.compile(r"(?:rank[_-]?|_profiler_)([0-9]{1,6})(?![0-9])", re.IGNORECASE)
_TIMELINE = re.compile(r"(?:rank[_-]?[0-9]{1,6}(?![0-9]).*|\.pt\.trace)\.json(?:\.gz)?\Z", re.IGNORECASE)
_DATABASES = (".sqlite", ".sqlite3", ".db")
_REMEDY = (
    "give a Kineto trace (.json, .json.gz), an *_ascend_pt or PROF_* directory, an export of Nsight Systems (.sqlite),"
    " Flight Recorder dumps or NCCL Inspector logs of all ranks, or a directory that holds such"
)
_OF_RANKS = "give the directory with the dumps of all ranks to slow_node_check (--traces DIR)"


@dataclass(frozen=True)
class Candidate:
    """A profile found, not read yet. `rank` -1 when it does not say before it is read. `source`: as in `Profile`,
    when it tells only how ranks communicate and nothing of what they or their devices work on; else empty.
    """

    path: Path
    rank: int
    read: Callable[[], Profile]
    source: str = ""


def open_profile(path: str | os.PathLike[str], rank: int | None = None) -> Profile:
    """The profile at `path`: a file or directory of any format known; `rank` chooses among several below it.

    One that tells what ran goes before dumps that tell only how ranks communicate.

    Raises `ToolError`: bad_trace when there is none or it cannot be read, bad_argument when there are several (it
    lists the ranks) or `rank` is not among them, io_error.
    """
    found = candidates(path)
    found = [one for one in found if not one.source] or found
    chosen = [one for one in found if rank is None or one.rank == rank or (one.rank < 0 and len(found) == 1)]
    if len(chosen) == 1:
        profile = chosen[0].read()
        return replace(profile, rank=chosen[0].rank) if profile.rank < 0 else profile
    many = chosen or found
    ranks = sorted({one.rank for one in many if one.rank >= 0})
    names = ", ".join(os.path.relpath(one.path, path) for one in many[:_LISTED])
    if not chosen:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"no profile of rank {rank} below {path}", f"there are: {_list(ranks)}")
    if len(ranks) == len(many):
        remedy = f"choose one by rank: {_list(ranks)}"
    else:
        remedy = f"give one of them: {names}{', ...' if len(many) > _LISTED else ''}"
    raise ToolError(ErrorCode.BAD_ARGUMENT, f"{len(many)} profiles below {path}", remedy)


def candidates(path: str | os.PathLike[str], *, required: bool = True) -> list[Candidate]:
    """The profiles at or below `path`, by rank, then by name; at least one when `required`.

    Raises `ToolError` as `open_profile`.
    """
    place = Path(path)
    try:
        if place.is_dir():
            found = list(_below(place, _DEPTH, [_ENTRIES]))
        else:
            place.stat()
            found = [_of_file(place)]
    except OSError as error:
        raise unreadable(place, error) from None
    except ValueError:  # a NUL in the path
        raise ToolError(ErrorCode.BAD_ARGUMENT, "the path of the profile holds a NUL", _REMEDY) from None
    if not found and required:
        raise ToolError(ErrorCode.BAD_TRACE, f"no profile in {path}", _REMEDY)
    return sorted(found, key=lambda one: (one.rank, one.path))


def with_work(found: list[Candidate]) -> list[Candidate]:
    """Those that tell what ran. Raises `ToolError` (bad_trace) when all tell only how ranks communicate."""
    working = [one for one in found if not one.source]
    if found and not working:
        what = f"{found[0].path} tells the collectives of a rank ({found[0].source}), not what ran on it"
        raise ToolError(ErrorCode.BAD_TRACE, what, _OF_RANKS)
    return working


def _list(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:_LISTED])) or "none that says its rank"
    return shown + (f", ... {ranks[-1]}" if len(ranks) > _LISTED else "")


def _of_file(path: Path) -> Candidate:
    database = is_database(path)
    top = None if database else head(path)
    if not database and (top is None or top.content is None):
        found = (_damaged(path) if top is None else None) or _of_ranks(path, named=True)
        if found is not None:
            return found
    if path.suffix in nsys.REPORTS:
        return _report(path)
    if not database and top is None:
        raise bad(path, "neither a timeline in JSON nor a database")
    if top is not None and not top.bare:
        return Candidate(path, _rank(path, top.content or {}), lambda: kineto.read(path))
    if database and nsys.is_export(path):
        return Candidate(path, nsys.rank_of(path), lambda: nsys.read(path))
    info, of_msprof = info_of(_home(path)), path.name.startswith(msprof.SOURCE)
    if database:
        source = msprof.SOURCE if of_msprof else "ascend_db"
        return Candidate(path, _rank(path, {}, info.rank), lambda: ascend_db.read(path, info, source))
    source = msprof.SOURCE if of_msprof else "ascend_text"
    return Candidate(path, _rank(path, {}, info.rank), lambda: ascend_text.read([path], info, source))


def _of_ranks(path: Path, *, named: bool = False) -> Candidate | None:
    """A file that tells only how ranks communicate; `named`: also one that is only called so, to hear what is wrong."""
    if flight_recorder.is_dump(path) or (named and flight_recorder.is_pickle(path)):
        rank = flight_recorder.named_rank(path)
        return Candidate(path, rank, lambda: flight_recorder.read(path), flight_recorder.SOURCE)
    if (named or path.name.endswith(nccl_inspector.SUFFIXES)) and nccl_inspector.is_log(path):
        rank = nccl_inspector.rank_of(path)
        return Candidate(path, rank, lambda: nccl_inspector.read(path), nccl_inspector.SOURCE)
    return None


def _report(path: Path) -> Candidate:
    """A report of Nsight Systems that is not exported: reading it says how to."""
    return Candidate(path, nsys.named_rank(path), lambda: nsys.read_report(path))


def _home(path: Path) -> Path:
    """The directory with the small files that belong to a timeline or database."""
    parent = path.absolute().parent
    return parent.parent if parent.name in (ascend.OUTPUT, "mindstudio_profiler_output") else parent


def _rank(path: Path, top: dict[str, object], known: int = -1) -> int:
    """As the content says, else the name: rank3.json, ascend_pytorch_profiler_3.db."""
    rank = known if known >= 0 else kineto.rank_of(top)
    if rank < 0 and (named := _RANK.search(path.name)):
        return int(named.group(1))
    return rank


def _below(place: Path, depth: int, budget: list[int]) -> Iterator[Candidate]:
    if place.name == ascend.OUTPUT:
        place = place.absolute().parent
    if ascend.is_directory(place):
        yield Candidate(place, info_of(place).rank, lambda: ascend.read(place))
        return
    if msprof.is_directory(place):
        yield Candidate(place, info_of(place).rank, lambda: msprof.read(place))
        return
    for entry in sorted(os.scandir(place), key=lambda entry: entry.name):
        budget[0] -= 1
        if budget[0] < 0:
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"more than {_ENTRIES} files below {place}", _REMEDY)
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            if depth > 1:
                yield from _below(path, depth - 1, budget)
        elif _is_file(entry):
            if path.suffix in nsys.REPORTS:
                if not any(path.with_suffix(suffix).exists() for suffix in _DATABASES):
                    yield _report(path)
            elif _promising(path):
                yield _of_file(path)
            elif found := _of_ranks(path, named=flight_recorder.has_its_name(path)) or _damaged(path):
                yield found


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads to itself
        return False


def _damaged(path: Path) -> Candidate | None:
    """A file called like a rank's timeline that does not begin like one: reading it says what is wrong."""
    if not _TIMELINE.search(path.name) or head(path) is not None:
        return None
    return Candidate(path, _rank(path, {}), lambda: kineto.read(path))


def _promising(path: Path) -> bool:
    """Whether a file among others is a profile of its own."""
    if path.name.endswith((".json", ".json.gz")):
        top = head(path)
        return top is not None and top.content is not None
    if path.suffix in _DATABASES and is_database(path) and nsys.is_export(path):
        return True
    return ascend.DATABASE.fullmatch(path.name) is not None
