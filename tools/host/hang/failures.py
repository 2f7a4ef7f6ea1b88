"""Find the ranks of a job that have failed, or have left it, while others still need them. Pure.

A rank that has ended is no process any more, or a zombie without an environment. Which rank it was follows from the
ranks that live: it is missing among them, and launchers start ranks in the order of their numbers. A rank that may as
well be on another host is not counted as failed.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from whystall.tools.host.common.places import Place, place_of_texts
from whystall.tools.host.common.thread_states import ThreadStates
from whystall.tools.host.hang.ranks import DEFAULT_GROUP, RankState, early_pids
from whystall.tools.recording.store import Recording

Row = Mapping[str, Any]
KILLED = "killed"
"""It was ended by a signal."""
EXITED = "exited"
"""It exited."""
GONE = "gone"
"""There is no such process any more; how it ended is not known."""
RAISED = "raised"
"""Its process lives, but its program ended with an exception that nothing caught."""
LEAVING = "leaving"
"""Its process lives, but its program has ended: it waits for its threads or children, or leaves the process group."""

# Functions that run after a program's last line: of threading, multiprocessing and concurrent.futures of Python, and
# torch.distributed.
_LAST = frozenset(
    {
        ("_shutdown", "threading.py"),
        ("_exit_function", "multiprocessing/util.py"),
        ("_python_exit", "concurrent/futures/thread.py"),
        ("_python_exit", "concurrent/futures/process.py"),
        ("destroy_process_group", "torch/distributed/distributed_c10d.py"),
    }
)
# Functions that run when an exception was not caught: pdb (python -m pdb), torch.distributed.
_UNCAUGHT = frozenset(
    {
        ("post_mortem", "pdb.py"),
        ("_distributed_excepthook", "torch/distributed/distributed_c10d.py"),
    }
)
# Signals with which launchers and people end the other ranks; NCCL's watchdog aborts.
_ENDED_BY_OTHERS = (15, 2, 1, 6)
_KILL = 9
_MOST_RANKS = 1 << 17
_MOST_OF_HOST = 1024


@dataclass(frozen=True)
class Failure:
    """A rank that has failed or left.

    `pid`: -1 if unknown; `how`: a constant above; `code`: the signal or the exit status, -1 if unknown; `ago_ns`: since
    it ended, -1 if unknown; `exception`: ``ValueError: text`` from `log`, at `line` of the program, the `order`-th line
    of the log (`of_other`: ranks raise it when another one has ended); `oom_group`: the kernel killed it (`oom_it`), or
    processes of the job, for lack of memory in this cgroup (``/``: unknown); `host`: empty for the observed one.
    """

    rank: int
    pid: int
    how: str
    comm: str = ""
    code: int = -1
    ago_ns: int = -1
    exception: str = ""
    line: str = ""
    log: str = ""
    order: int = -1
    of_other: bool = False
    oom_group: str = ""
    oom_it: bool = False
    host: str = ""

    @property
    def process(self) -> tuple[str, int]:
        """Its process, as of `RankState`."""
        return self.host, self.pid

    @property
    def sure(self) -> bool:
        """Whether it failed: a healthy rank, too, may exit while others continue."""
        return self.how in (KILLED, RAISED) or bool(self.exception) or (self.how == EXITED and self.code > 0)

    @property
    def may_have_raised(self) -> bool:
        """Whether an exception may be why it ended: Python then exits with a status other than 0."""
        return self.how != KILLED and self.code != 0

    @property
    def consequence(self) -> bool:
        """Whether this is how ranks end when another one has."""
        if self.exception:
            return self.of_other
        return self.how == KILLED and self.code in _ENDED_BY_OTHERS


@dataclass(frozen=True)
class Failures:
    """`failed`: the first one first. `just_left`: ranks that ended within the window, maybe because the job ends."""

    failed: list[Failure] = field(default_factory=list)
    just_left: tuple[int, ...] = ()


def failures_of(recording: Recording, ranks: Sequence[RankState], known: ThreadStates) -> Failures:
    """Return the ranks that have failed or left while `ranks` (those that are in process groups) live."""
    if not ranks or not recording.has("job_processes"):
        return Failures()
    processes = recording.table("job_processes.processes")
    rows = {row["pid"]: row for row in processes.sort("at_ns", maintain_order=True).iter_rows(named=True)}
    last_ns = processes["at_ns"].max()
    rows = {pid: row for pid, row in rows.items() if row["at_ns"] == last_ns}
    idle = dict(recording.table("job_processes.idle").select("pid", "idle_ns").iter_rows())
    early = early_pids(recording)
    absent = _absent(ranks, rows)
    ended: dict[int, Row | None] = {
        rank: rows.get(pid) for rank, pid in early.items() if rank in absent and _has_ended(rows.get(pid))
    }
    just_left = set(ended)
    ended |= {rank: row for rank, row in _zombies(ranks, rows, absent).items() if rank not in ended}
    ended |= {rank: None for rank in _missing_here(ranks, rows, absent) if rank not in ended}
    found = [_ended(rank, row, early.get(rank, -1), idle) for rank, row in ended.items()]
    found += [_leaving(one, known) for one in ranks if _has_left(one, ranks, known)]
    found += list(_left_groups(ranks, rows, absent - ended.keys(), known))
    found = _with_logs(found, recording, rows)
    found = _with_kills(found, recording, ranks)
    kept = [one for one in found if one.sure or one.rank not in just_left]
    return Failures(in_order(kept), tuple(sorted(just_left - {one.rank for one in kept})))


def in_order(found: Iterable[Failure]) -> list[Failure]:
    """Return the first failure first: unknown times and places in a log come last."""
    return sorted(found, key=lambda f: (f.consequence, not f.sure, -f.ago_ns, f.order < 0, f.order, f.rank))


def _absent(ranks: Sequence[RankState], rows: Mapping[int, Row]) -> set[int]:
    """Return the ranks of the job that are in no process group here."""
    sizes = [key.size for one in ranks for key in one.groups if key.name == DEFAULT_GROUP]
    sizes = sizes or [row["world_size"] for row in rows.values()]
    present = {one.rank for one in ranks}
    return set() if -1 in present else set(range(min(max(sizes, default=0), _MOST_RANKS))) - present


def _has_ended(row: Row | None) -> bool:
    return row is None or row["state"] == "Z"


def _siblings(ranks: Sequence[RankState], rows: Mapping[int, Row]) -> dict[int, list[RankState]]:
    """Return the ranks by the process that started them, in the order of their starts."""
    found = defaultdict(list)
    for one in ranks:
        if one.pid in rows and rows[one.pid]["ppid"] > 1:
            found[rows[one.pid]["ppid"]].append(one)
    return {parent: sorted(of, key=lambda one: _started(rows[one.pid])) for parent, of in found.items()}


def _started(row: Row) -> tuple[int, int]:
    return row["start_ticks"], row["pid"]


def _zombies(ranks: Sequence[RankState], rows: Mapping[int, Row], absent: set[int]) -> dict[int, Row]:
    """Return zombies by rank: as many of them started between two ranks as there are numbers missing."""
    found: dict[int, Row] = {}
    world = max(absent, default=-1)
    for parent, of in _siblings(ranks, rows).items():
        numbers = [one.rank for one in of]
        names = {one.comm for one in of}
        ended = [row for row in rows.values() if row["state"] == "Z" and row["ppid"] == parent and row["comm"] in names]
        if numbers != sorted(numbers):
            continue
        low, high = _local_range(of, rows) or (0, max(world, numbers[-1]) + 1)
        limits = [(low - 1, (-1, -1)), *((one.rank, _started(rows[one.pid])) for one in of), (high, (1 << 62, 0))]
        for (before, since), (after, until) in pairwise(limits):
            there = sorted((row for row in ended if since < _started(row) < until), key=_started)
            missing = sorted(rank for rank in absent if before < rank < after)
            if len(there) == len(missing):
                found |= dict(zip(missing, there, strict=True))
    return found


def _local_range(of: Sequence[RankState], rows: Mapping[int, Row]) -> tuple[int, int] | None:
    """Return the first rank of a host and the one after its last, if its ranks have consecutive numbers."""
    known = [rows[one.pid] for one in of]
    offsets = {row["rank"] - row["local_rank"] for row in known}
    size, group = known[0]["local_size"], known[0]["group_rank"]
    if (
        not 0 < size <= _MOST_OF_HOST
        or len(offsets) != 1
        or any(min(row["rank"], row["local_rank"]) < 0 for row in known)
    ):
        return None
    first = offsets.pop()
    # with one rank only, it could be by chance
    return (first, first + size) if len(of) > 1 or (group >= 0 and first == group * size) else None


def _missing_here(ranks: Sequence[RankState], rows: Mapping[int, Row], absent: set[int]) -> set[int]:
    """Return absent ranks that must have been on this host, and of which no process lives."""
    expected: set[int] = set()
    if len(absent) <= _MOST_OF_HOST and any(rows[one.pid]["one_host"] for one in ranks if one.pid in rows):
        expected |= absent
    for of in _siblings(ranks, rows).values():
        if (local := _local_range(of, rows)) is not None:
            expected |= {rank for rank in absent if local[0] <= rank < local[1]}
    return {rank for rank in expected if not any(_may_be(rank, row, ranks, rows) for row in rows.values())}


def _may_be(rank: int, row: Row, ranks: Sequence[RankState], rows: Mapping[int, Row]) -> bool:
    """Return whether a process may be that of `rank`: it states it, and those that started the ranks started it.
    Children of a rank state the same, also when it has ended."""
    parents = {rows[one.pid]["ppid"] for one in ranks if one.pid in rows}
    return bool(row["rank"] == rank and row["state"] != "Z" and row["ppid"] in parents)


def _ended(rank: int, row: Row | None, pid: int, idle: Mapping[int, int]) -> Failure:
    if row is None:
        return Failure(rank, pid, GONE)
    status, ended = row["exit_code"], row["pid"]
    found = Failure(rank, ended, GONE, row["comm"], ago_ns=idle.get(ended, -1))
    if status < 0:
        return found
    if os.WIFSIGNALED(status):
        return replace(found, how=KILLED, code=os.WTERMSIG(status))
    return replace(found, how=EXITED, code=os.WEXITSTATUS(status))


# --- ranks whose processes live ----------------------------------------------------------------------------------


def _end_of_program(place: Place) -> str:
    """Return whether the program of this main thread has ended, as `RAISED` or `LEAVING`; empty if not."""
    calls = {(name.rpartition(".")[2], re.sub(r"^python3[^/]*/", "", file)) for name, file, _ in place.python}
    return RAISED if calls & _UNCAUGHT else LEAVING if calls & _LAST else ""


def _main_end(pid: int, known: ThreadStates) -> str:
    thread = known.threads.get(pid)
    return _end_of_program(place_of_texts(thread.frames)) if thread is not None else ""


def _has_left(one: RankState, ranks: Sequence[RankState], known: ThreadStates) -> bool:
    """Return whether the program of a rank has ended although others wait for it in a group.

    A program may as well train in another thread than the main one: then the others look alike.
    """
    if one.waits_for_ranks or not _main_end(one.pid, known):
        return False
    ahead = [
        other
        for other in ranks
        if other.waits_for_ranks
        and any(key in one.groups and of.started > one.groups[key].started for key, of in other.groups.items())
    ]
    return bool(ahead) and not any(_main_end(other.pid, known) for other in ahead)


def _leaving(one: RankState, known: ThreadStates) -> Failure:
    return Failure(one.rank, one.pid, _main_end(one.pid, known), one.comm, line=one.line)


def _left_groups(
    ranks: Sequence[RankState], rows: Mapping[int, Row], absent: set[int], known: ThreadStates
) -> Iterator[Failure]:
    """Yield absent ranks whose process lives, and whose program has ended: their process groups are destroyed."""
    for rank in sorted(absent):
        alive = [row for row in rows.values() if _may_be(rank, row, ranks, rows) and _main_end(row["pid"], known)]
        if len(alive) == 1:
            yield Failure(rank, alive[0]["pid"], _main_end(alive[0]["pid"], known), alive[0]["comm"])


# --- logs --------------------------------------------------------------------------------------------------------


def _with_logs(found: Sequence[Failure], recording: Recording, rows: Mapping[int, Row]) -> list[Failure]:
    """Add the exceptions of the logs; one whose rank is not stated only where there is no other choice."""
    logged = list(recording.table("job_processes.exceptions").iter_rows(named=True))
    offsets = {row["rank"] - row["local_rank"] for row in rows.values() if min(row["rank"], row["local_rank"]) >= 0}
    by_rank: dict[int, Row] = {}
    for row in logged:
        rank = row["rank"]
        if rank < 0 <= row["local_rank"] and len(offsets) == 1:
            rank = min(offsets) + row["local_rank"]
        by_rank[rank] = row
    if len(found) == 1 and len(logged) == 1 and -1 in by_rank:
        by_rank[found[0].rank] = by_rank[-1]
    return [_explained(one, by_rank[one.rank]) if one.may_have_raised and one.rank in by_rank else one for one in found]


def _explained(one: Failure, row: Row) -> Failure:
    text = f"{row['exception']}: {row['detail']}" if row["detail"] else row["exception"]
    how = RAISED if one.how == LEAVING else one.how
    line = place_of_texts(row["frames"]).line
    found = replace(one, how=how, exception=text, line=line, log=row["path"])
    return replace(found, order=row["line"], of_other=row["of_other"])


def _with_kills(found: Sequence[Failure], recording: Recording, ranks: Sequence[RankState]) -> list[Failure]:
    """Add which ranks the kernel killed for lack of memory.

    If the pid of a rank is not known: the only process of such a name that started between the ranks. Else, kills in
    the job's cgroups are added to what may be one.
    """
    kills = list(recording.table("job_processes.oom_kills").iter_rows(named=True))
    groups = {row["pid"]: row["limit_cgroup"] or row["cgroup"] or "/" for row in kills}
    names, first, last = {one.comm for one in ranks}, min(one.pid for one in ranks), max(one.pid for one in ranks)
    between = [row["pid"] for row in kills if row["comm"] in names and first < row["pid"] < last]
    unknown = [one for one in found if one.how == GONE and one.pid < 0]
    done = []
    for one in found:
        pid = between[0] if [one] == unknown and len(between) == 1 else one.pid
        may_be = one.how == GONE or (one.how == KILLED and one.code == _KILL)
        if may_be and pid > 0 and pid in groups:
            one = replace(one, pid=pid, how=KILLED, code=_KILL, oom_group=groups[pid], oom_it=True)
        elif may_be:
            one = replace(one, oom_group=next((groups[row["pid"]] for row in kills if row["of_job"]), ""))
        done.append(one)
    return done
