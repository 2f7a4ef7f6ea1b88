"""Read one trace of a rank into its summary: in this process, in a worker's, or on a cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass

from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.text import clean, clean_path
from whystall.tools.files.input import REMEDY
from whystall.tools.timeline.profiles import candidates, open_ranks, ranks_within
from whystall.tools.timeline.rank_data.summary import Summary, summarise
from whystall.tools.timeline.rank_data.tables import SEVERAL


@dataclass(frozen=True)
class Trace:
    """A trace to be read. `path` on this machine's file system; `shown`: relative to the directory of the run; `rank`:
    if known before it is read, else -1; `size`: bytes on disk."""

    path: str
    shown: str
    rank: int = -1
    size: int = 0


@dataclass(frozen=True)
class Unread:
    """A trace that could not be read, why, and the way to a readable one. `rank` -1 unknown."""

    shown: str
    rank: int
    why: str
    remedy: str = REMEDY

    def __str__(self) -> str:
        """Return it as one text, with a remedy that is its own."""
        return f"{self.shown}: {self.why}" + (f" ({self.remedy})" if self.remedy != REMEDY else "")


def read(trace: Trace) -> list[Summary | Unread]:
    """Return the summary of one trace, or of each rank in it; any error becomes an `Unread`."""
    try:
        profiles = open_ranks(trace.path, trace.rank if trace.rank >= 0 else None)
        shown = [trace.shown]
        if len(profiles) > 1:
            shown = [f"{trace.shown}{SEVERAL}{number}" for number in ranks_within(profiles)]
        return [summarise(profile, name) for profile, name in zip(profiles, shown, strict=True)]
    except ToolError as error:
        return [unread(trace, error.message, error.remedy)]
    except MemoryError:
        return [unread(trace, "too little memory to read it")]
    except Exception as error:  # files can be damaged in unforeseen ways, and the other ranks count
        return [unread(trace, f"reading it failed: {type(error).__name__}: {error}")]


def unread(trace: Trace, why: str, remedy: str = REMEDY) -> Unread:
    """Return `trace` as unread because of `why`, without its path, which is shown beside it."""
    plain = why.removeprefix(f"{trace.path} ").removeprefix("is not a usable profile: ").replace(f" {trace.path}", "")
    return Unread(trace.shown, trace.rank, clean(plain), clean(remedy))


def traces_at(place: str, *, required: bool = True) -> list[Trace]:
    """Return the traces at or below `place`, one if `required`. Raises `ToolError` as `profiles.candidates`."""
    base = place if os.path.isdir(place) else os.path.dirname(place) or "."
    return [
        Trace(
            os.path.abspath(one.path),
            clean_path(os.path.relpath(one.path, base)),
            one.rank,
            _size(os.fspath(one.path)),
        )
        for one in candidates(place, required=required)
    ]


def _size(path: str) -> int:
    """Return the bytes on disk at or below `path`; unreadable parts count 0: reading them reports the error."""
    if not os.path.isdir(path):
        return _size_of(path)
    return sum(_size_of(os.path.join(directory, name)) for directory, _, names in os.walk(path) for name in names)


def _size_of(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return 0
