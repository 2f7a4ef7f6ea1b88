"""Find and open accelerator profiles of any format: a file, or one of several ranks below a directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.formats import Head, format_of
from whystall.tools.files.input import bad, unreadable
from whystall.tools.timeline.ascend import directory as ascend
from whystall.tools.timeline.ascend import files as ascend_files
from whystall.tools.timeline.ascend import msprof
from whystall.tools.timeline.kineto import trace as kineto
from whystall.tools.timeline.nccl import flight_recorder, inspector
from whystall.tools.timeline.nsys import export as nsys
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.profile_reading.format import ProfileFormat, rank_in_name
from whystall.tools.timeline.profile_reading.refused import refusal, refusal_below
from whystall.tools.timeline.tables import ascend_exports
from whystall.tools.timeline.tables import format as tables

FORMATS: tuple[ProfileFormat, ...] = (
    kineto.FORMAT,
    ascend.FORMAT,
    ascend_files.TEXT,
    ascend_files.DATABASE,
    msprof.FORMAT,
    nsys.FORMAT,
    nsys.REPORT,
    flight_recorder.FORMAT,
    inspector.FORMAT,
    tables.FORMAT,
    ascend_exports.FORMAT,
)
"""The formats that are read, in any order."""

_DEPTH = 4
_ENTRIES = 100_000
_LISTED = 8
_REMEDY = (
    "give a Kineto trace (.json, .json.gz), an *_ascend_pt or PROF_* directory, an export of Nsight Systems (.sqlite),"
    " Flight Recorder dumps or NCCL Inspector logs of all ranks, a table rank,step,phase,start,end, or a directory that"
    " holds such"
)
_OF_RANKS = "give the directory with the dumps of all ranks to slow_node_check (--traces DIR)"


@dataclass(frozen=True)
class Candidate:
    """A profile that was found and is not read yet. `rank` -1 if it is unknown before reading. `source`: as in
    `Profile` if it holds only collectives, else empty. `ranks`: reads the profile of each rank in it, if it may hold
    several. `together`: as in `ProfileFormat`. `readable`: False if it is known that `read` fails."""

    path: Path
    rank: int
    read: Callable[[], Profile]
    source: str = ""
    ranks: Callable[[], list[Profile]] | None = None
    together: str = ""
    readable: bool = True


def open_profile(path: str | os.PathLike[str], rank: int | None = None) -> Profile:
    """Return the profile at `path`: a file or directory of any known format; `rank` chooses among several below it.

    A profile of work is preferred to dumps of collectives only. A file of several ranks is one profile of all (tables
    are refused), unless `rank` chooses: by its number, or where the file does not number them, by place.

    Raises `ToolError`: bad_trace when there is none or it cannot be read, bad_argument when there are several (it lists
    the ranks) or `rank` is not among them, io_error.
    """
    found = _chosen(path, rank)
    if rank is None or found.ranks is None:
        return _numbered(found.read(), found.rank)
    profiles = _each(found)
    numbers = ranks_within(profiles)
    if rank in numbers:
        return _numbered(profiles[numbers.index(rank)], rank)
    if len(profiles) == 1 and profiles[0].rank < 0:
        return profiles[0]
    raise _no_rank(rank, path, numbers)


def open_ranks(path: str | os.PathLike[str], rank: int | None = None) -> list[Profile]:
    """Return the profiles at `path`, a file or directory of `rank` if that is known: one, unless it holds several
    ranks. Raises `ToolError` as `open_profile`."""
    return _each(_chosen(path, rank))


def _each(found: Candidate) -> list[Profile]:
    profiles = found.ranks() if found.ranks is not None else [found.read()]
    return profiles if len(profiles) > 1 else [_numbered(profiles[0], found.rank)]


def ranks_within(profiles: list[Profile]) -> list[int]:
    """Return by what number `open_profile` chooses each of the profiles of one file: its rank, or its place."""
    numbers = [one.rank for one in profiles]
    return list(range(len(profiles))) if min(numbers) < 0 else numbers


def _chosen(path: str | os.PathLike[str], rank: int | None) -> Candidate:
    found = candidates(path)
    found = [one for one in found if not one.source] or found
    chosen = [
        one for one in found if rank is None or one.rank == rank or (len(found) == 1 and (one.rank < 0 or one.ranks))
    ]
    if len(chosen) == 1:
        return chosen[0]
    many = chosen or found
    ranks = sorted({one.rank for one in many if one.rank >= 0})
    if rank is not None and not chosen:
        raise _no_rank(rank, path, ranks)
    names = ", ".join(os.path.relpath(one.path, path) for one in many[:_LISTED])
    if len(ranks) == len(many):
        remedy = f"choose one by rank: {_list(ranks)}"
    else:
        remedy = f"give one of them: {names}{', ...' if len(many) > _LISTED else ''}"
    raise ToolError(ErrorCode.BAD_ARGUMENT, f"{len(many)} profiles below {path}", remedy)


def _no_rank(rank: int, path: str | os.PathLike[str], ranks: list[int]) -> ToolError:
    return ToolError(ErrorCode.BAD_ARGUMENT, f"no profile of rank {rank} below {path}", f"there are: {_list(ranks)}")


def _numbered(profile: Profile, rank: int) -> Profile:
    return replace(profile, rank=rank) if profile.rank < 0 else profile


def candidates(path: str | os.PathLike[str], *, required: bool = True) -> list[Candidate]:
    """Return the profiles at or below `path`, by rank, then by name; at least one when `required`.

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
        if refused := refusal_below(place, tables.refusal):
            raise refused
        raise ToolError(ErrorCode.BAD_TRACE, f"no profile in {path}", _REMEDY)
    return sorted(_once(found), key=lambda one: (one.rank, one.path))


def _once(found: list[Candidate]) -> list[Candidate]:
    """Keep one of those in a directory that are read together, and none beside the profiles they were made from."""
    alone = [one for one in found if not one.together]
    if any(one.readable and one.source in ("", ascend_exports.SOURCE) for one in alone):
        return alone
    first: dict[tuple[Path, str], Candidate] = {}
    for one in sorted((one for one in found if one.together), key=lambda one: one.path):
        first.setdefault((one.path.parent, one.together), one)
    return [*alone, *first.values()]


def with_work(found: list[Candidate]) -> list[Candidate]:
    """Return those that hold work. Raises `ToolError` (bad_trace) if all hold only collectives."""
    working = [one for one in found if not one.source]
    if found and not working:
        what = f"{found[0].path} holds the collectives of a rank ({found[0].source}), not what ran on it"
        raise ToolError(ErrorCode.BAD_TRACE, what, _OF_RANKS)
    return working


def _list(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:_LISTED])) or "none with a known rank"
    return shown + (f", ... {ranks[-1]}" if len(ranks) > _LISTED else "")


def _of_file(path: Path) -> Candidate:
    found = _candidate(Head(path), FORMATS)
    if found is None:
        raise tables.refusal(Head(path)) or bad(path, "neither a timeline in JSON, a database nor a table of ranks")
    return found


def _candidate(head: Head, formats: Iterable[ProfileFormat]) -> Candidate | None:
    """Return the profile in `head`, of one of `formats`. Raises `ToolError` if several formats fit."""
    formats = list(formats)
    if formats and (refused := refusal(head)):
        return Candidate(head.path, rank_in_name(head.name), partial(_fail, refused), readable=False)
    found = format_of(head, [one for one in formats if one.directory == head.directory])
    if found is None:
        return None
    ranks = partial(found.read_ranks, head.path) if found.read_ranks is not None else None
    source = found.name * found.only_collectives
    return Candidate(head.path, found.rank(head), partial(found.read, head.path), source, ranks, found.together(head))


def _below(place: Path, depth: int, budget: list[int]) -> Iterator[Candidate]:
    if place.name == ascend.OUTPUT:
        place = place.absolute().parent
    if found := _candidate(Head(place), FORMATS):
        yield found
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
            head = Head(path)
            try:
                found = _candidate(head, [one for one in FORMATS if one.listed(head)])
            except ToolError as error:
                found = Candidate(path, -1, partial(_fail, error), readable=False)
            if found:
                yield found


def _fail(error: ToolError) -> NoReturn:
    raise error


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a symbolic link to itself
        return False
