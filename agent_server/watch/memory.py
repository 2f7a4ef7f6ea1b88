"""What was learnt of jobs, kept over a restart of the watcher.

One JSON file, replaced at once. A job is known by its user, control group, command line and rank, of which only a hash
is kept. What cannot be read, or was written by another user or in another form, is learnt again.
"""

from __future__ import annotations

import json
import math
import os
import stat
import time
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from whystall.agent_server.watch.pauses import KEPT as PAUSES
from whystall.agent_server.watch.rhythm import NS

FILE = "learnt.json"
VERSION = 1
_BYTES = 8 << 20
_JOBS, _PLACES, _INTERVALS = 300, 16, 32
_OLD_S = 30 * 86400
_LONGEST_NS = 86400 * NS
_MOST = 1 << 63


@dataclass(frozen=True)
class Identity:
    """A process. `job`: a hash that another run of the same job has, too; `run`: one of this process alone."""

    job: str
    run: str


@dataclass(frozen=True)
class Learnt:
    """What was learnt of one thread. `tid`: 0 for the main thread; `places`: the intervals between visits, ns, with how
    many there were, by place; `pauses`: the accepted lengths, ns, by place; `steps`: step times, ns, of `step`, a
    place; `run`: of the process; `seen`: when, seconds since 1970."""

    run: str
    seen: float
    tid: int = 0
    places: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    pauses: dict[int, int] = field(default_factory=dict)
    step: int = 0
    steps: list[int] = field(default_factory=list)


class Memory:
    """What was learnt, below `directory`, by job."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._known: dict[str, Learnt] = {}

    def load(self) -> str:
        """Read the file. Return why it cannot be used, empty if it can or there is none."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return error.strerror or str(error)
        with os.fdopen(descriptor, "rb") as file:
            seen = os.fstat(descriptor)
            if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid():
                return "it is no file of this user"
            if seen.st_size > _BYTES:
                return "it is too large"
            try:
                self._known = _parsed(json.loads(file.read(_BYTES)))
            except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
                return "it is damaged, or of another version"
        return ""

    def find(self, identity: Identity) -> Learnt | None:
        """Return what is known of this process, or of an earlier run of its job."""
        return self._known.get(identity.job)

    def keep(self, identity: Identity, learnt: Learnt) -> None:
        """Keep what was learnt of a process, of the latest jobs."""
        if not learnt.places:
            return
        self._known.pop(identity.job, None)
        self._known[identity.job] = learnt
        while len(self._known) > _JOBS:
            del self._known[next(iter(self._known))]

    def save(self) -> str:
        """Replace the file. Return why it cannot be written, empty if it was."""
        jobs = [{"job": job, **asdict(learnt)} for job, learnt in self._known.items()]
        partial = self._path.with_name(f".{FILE}")
        try:
            partial.unlink(missing_ok=True)
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                json.dump({"version": VERSION, "jobs": jobs}, file, separators=(",", ":"))
            partial.replace(self._path)
        except OSError as error:
            return error.strerror or str(error)
        return ""


def _parsed(given: Any) -> dict[str, Learnt]:
    """Return the content of a file. Raises ValueError, TypeError, KeyError, AttributeError for what `save` does not
    write."""
    if given["version"] != VERSION:
        raise ValueError
    found: dict[str, Learnt] = {}
    now = time.time()
    for one in given["jobs"][-_JOBS:]:
        seen = float(one["seen"])
        if not math.isfinite(seen):
            raise ValueError
        if seen < now - _OLD_S:
            continue
        places = {
            int(place): (_number(count), [_number(each, _LONGEST_NS) for each in intervals[:_INTERVALS]])
            for place, (count, intervals) in list(one["places"].items())[:_PLACES]
        }
        pauses = {int(place): _number(each, _LONGEST_NS) for place, each in list(one["pauses"].items())[:PAUSES]}
        steps = [_number(each, _LONGEST_NS) for each in one["steps"][:_INTERVALS]]
        run, job = one["run"], one["job"]
        if not (isinstance(run, str) and isinstance(job, str)):
            raise TypeError
        found[job] = Learnt(run, seen, _number(one["tid"]), places, pauses, _number(one["step"]), steps)
    return found


def _number(given: Any, most: int = _MOST) -> int:
    if type(given) is not int or not 0 <= given <= most:
        raise ValueError
    return given


def sampled(intervals: list[int]) -> list[int]:
    """Return at most 32 of `intervals` that are distributed like all, with the shortest and the longest."""
    ordered = sorted(intervals)
    if len(ordered) <= _INTERVALS:
        return ordered
    return [ordered[at * (len(ordered) - 1) // (_INTERVALS - 1)] for at in range(_INTERVALS)]


def identity_of(pid: int, start_ticks: int, rank: int | None, root: Path = Path("/proc")) -> Identity | None:
    """Return the identity of a process; None if it has ended."""
    try:
        command = (root / str(pid) / "cmdline").read_bytes()
        group = (root / str(pid) / "cgroup").read_bytes()
        user = os.stat(root / str(pid)).st_uid
        boot = (root / "sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return None
    job = _hash(str(user).encode(), group, command, str(rank).encode())
    return Identity(job, _hash(boot, str(pid).encode(), str(start_ticks).encode()))


def _hash(*parts: bytes) -> str:
    return blake2b(b"\0\0".join(parts), digest_size=16).hexdigest()
