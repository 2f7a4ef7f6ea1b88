"""Read the ends of the files that the ranks of a job have as standard output and error, and of those of missing ranks.

A rank that has ended has no descriptors any more. Where launchers give each rank a file with its number in the path
(torchrun --redirects: ``attempt_0/2/stderr.log``; sbatch --error=job-%t.err), its file is found beside the others'.
Files of network file systems are not opened, since that may block.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from whystall.bpf.regular_files import open_regular
from whystall.tools.collect.log_exceptions import LOG_BYTES, logged_exceptions
from whystall.tools.collect.proc_files import Files
from whystall.tools.node.environment import Identity
from whystall.tools.node.mounts import REMOTE

_MOST_FILES = 64
_DESCRIPTORS = (2, 1)


class Log(NamedTuple):
    """A log: where to open it, with which flags, its path as shown, and the sole rank that writes to it (-1: unknown,
    or several)."""

    opened: str
    flags: int
    path: str
    rank: int
    local_rank: int


@dataclass
class Logs:
    """Rows of exceptions: path, rank, local rank, and those of `LoggedException`. `remote`: files not opened."""

    rows: list[tuple[object, ...]] = field(default_factory=list)
    remote: set[str] = field(default_factory=set)
    left: int = 0


def read_logs(root: str, ranks: Mapping[int, Identity], since_s: float, over: Callable[[], bool]) -> Logs:
    """Return the exceptions in the logs of `ranks` (processes of the job, by pid).

    Args:
        root: where /proc is.
        since_s: files not written since this time (seconds since the epoch) are of an earlier job.
        over: whether the time is used up.
    """
    found = Logs()
    logs = list(_logs(root, ranks, found.remote))
    for at, log in enumerate(logs):
        if at >= _MOST_FILES or over():
            found.left = len(logs) - at
            break
        for one in logged_exceptions(_end(log, since_s)):
            rank = one.rank if one.rank >= 0 else log.rank
            what = (one.line, one.exception, one.message, one.of_other, [*one.frames])
            found.rows.append((log.path, rank, log.local_rank, *what))
    return found


def _logs(root: str, ranks: Mapping[int, Identity], remote: set[str]) -> Iterator[Log]:
    files = Files(root)
    users: dict[int, dict[int, int]] = defaultdict(dict)
    for pid in ranks:
        for number in _DESCRIPTORS:
            opened = files.resolve(pid, number)
            if opened is not None:
                users[opened.key].setdefault(pid, number)
    own: dict[int, dict[str, int]] = defaultdict(dict)
    for key, pids in users.items():
        path = str(files.rows[key][1])
        if files.fstype(key).startswith(REMOTE):
            remote.add(path)
            continue
        pid, number = next(iter(pids.items()))
        stated = {(one.rank, one.local_rank) for one in (ranks[pid] for pid in pids) if one.rank is not None}
        rank, local = stated.pop() if len(stated) == 1 else (None, None)
        yield Log(f"{root}/{pid}/fd/{number}", 0, path, _number(rank), _number(local))
        if rank is not None:
            own[pid][path] = number
    yield from _of_missing(root, ranks, own)


def _of_missing(root: str, ranks: Mapping[int, Identity], own: Mapping[int, Mapping[str, int]]) -> Iterator[Log]:
    """Yield files beside those of at least two ranks whose paths differ in their numbers only."""
    for by_rank in (True, False):
        patterns: dict[str, dict[int, int]] = defaultdict(dict)
        for pid, paths in own.items():
            number = ranks[pid].rank if by_rank else ranks[pid].local_rank
            for path in paths if number is not None else ():
                for place in re.finditer(rf"(?<!\d){number}(?!\d)", path):
                    patterns[f"{path[: place.start()]}\0{path[place.end() :]}"][_number(number)] = pid
        sizes = [size for one in ranks.values() if (size := one.world_size if by_rank else one.local_size)]
        for pattern, known in patterns.items():
            if len(known) < 2 or not sizes:
                continue
            top = f"{root}/{next(iter(known.values()))}/root"
            for number in sorted(set(range(min(sizes[0], 4 * _MOST_FILES))) - known.keys()):
                path = pattern.replace("\0", str(number))
                yield Log(top + path, os.O_NOFOLLOW, path, number if by_rank else -1, -1 if by_rank else number)


def _number(value: int | None) -> int:
    return -1 if value is None else value


def _end(log: Log, since_s: float) -> bytes:
    """Return the end of a regular file that was written since `since_s`; empty if it cannot be read."""
    try:
        with open(open_regular(log.opened, log.flags), "rb") as file:
            state = os.fstat(file.fileno())
            if state.st_mtime < since_s:
                return b""
            file.seek(max(0, state.st_size - LOG_BYTES))
            return file.read(LOG_BYTES)
    except OSError:
        return b""
