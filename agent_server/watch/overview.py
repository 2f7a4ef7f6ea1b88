"""The jobs of this host as its watcher states them: its status, what each process waits for, its log of stalls."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from whystall.agent_server.watch.jobs import JobList, Selection
from whystall.agent_server.watch.status import read_stalls, read_status, runs
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Lang
from whystall.tools.collect.continuous import directory_of_watch
from whystall.tools.collect.proc_calls import syscall_name
from whystall.tools.collect.proc_parse import pid_stat, syscall
from whystall.tools.collect.slice_history import HistoryRow, Place, history_rows
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.text import clean
from whystall.tools.node.vantage import host_name

RESOURCE = "whystall://watch/host"
"""URI of the resource of MCP that has the `overview` of a host."""
_LATELY_S = 180  # a minute is known when it is over
_STALLS = 50
_MOST = 2000  # of jobs, and of processes of a job; the watcher follows at most 500 processes
State = Literal["running", "silent", "none"]


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore")


class WatchedProcess(_Read):
    """A process of a watched job; see `WatchService`."""

    pid: Annotated[int, Field(ge=1, le=1 << 31)]
    rank: Annotated[int | None, Field(ge=0, le=1 << 31)] = None
    step_ms: float = 0.0
    stalled: bool = False
    stalled_s: float = 0.0


class Watched(_Read):
    """A watched job."""

    id: str
    name: str
    processes: Annotated[list[WatchedProcess], Field(max_length=_MOST)] = []

    @property
    def stalled(self) -> int:
        return sum(process.stalled for process in self.processes)

    @property
    def leader(self) -> WatchedProcess | None:
        """Return the process that stands for the job: one that is stalled, else the first."""
        return next((process for process in self.processes if process.stalled), next(iter(self.processes), None))


class Waiting(_Read):
    """What a process waits for. `now`: the system call in which its main thread is, ``running``, or empty if that
    cannot be read. The others are where most of its waits that ended lately were; `share`: percent of the waiting of
    all its threads, 0 without any.
    """

    now: str = ""
    comm: str = ""
    state: str = ""
    call: str = ""
    line: str = ""
    object: str = ""
    share: float = 0.0


class NotedStall(BaseModel):
    """An entry of the log of stalls. `seconds`: None while it lasted; `title`: the cause, empty if none was found."""

    at: str
    job: str
    name: str
    pid: int | None
    kind: str
    seconds: float | None
    why: str
    verdict: str = ""
    title: str = ""
    diagnosis: str = ""
    ticket: str = ""


class Watch(_Read):
    """What the watcher states. `state`: ``silent`` if one has ended without notice, or does not write any more;
    `waiting`: what processes of `jobs` and `unwatched` wait for, by pid, where it was asked for.
    """

    host: str
    state: State
    jobs: Annotated[list[Watched], Field(max_length=_MOST)] = []
    since: float = 0.0
    beyond: int = 0
    unwatched: Annotated[list[Watched], Field(max_length=_MOST)] = []
    waiting: dict[int, Waiting] = {}

    def job(self, id: str) -> Watched | None:
        return next((job for job in self.jobs if job.id == id), None)


def watch(also_unwatched: bool = False) -> Watch:
    """Return the state of this host's watcher. `also_unwatched`: without one, look for jobs now. Blocks."""
    status = read_status(directory_of_watch())
    host = clean(host_name(), 253)
    try:
        running = runs(status, time.time())
        if status is not None and running:
            jobs = [Watched.model_validate(job) for job in status["jobs"]]
            beyond, since = int(status.get("beyond", 0)), float(status.get("since", 0.0))
            return Watch(host=host, state="running", jobs=jobs, since=since, beyond=beyond)
        state: State = "silent" if status is not None and status.get("running") else "none"
    except (KeyError, TypeError, ValueError, ValidationError):  # of another version
        state = "silent"
    return Watch(host=host, state=state, unwatched=_jobs() if also_unwatched else [])


def overview() -> Watch:
    """Return the state of this host's watcher, or without one the jobs that run, and what each process waits for.
    Blocks."""
    found = watch(also_unwatched=True)
    pids = {process.pid for job in (*found.jobs, *found.unwatched) for process in job.processes}
    return found.model_copy(update={"waiting": waiting(pids)})


def _jobs() -> list[Watched]:
    """Return the jobs of this host that look like training or serving."""
    found = JobList(Selection(), 0.0)
    found.renew(time.monotonic())
    return [
        Watched(
            id=job.id,
            name=job.name,
            processes=[WatchedProcess(pid=pid, rank=job.ranks.get(pid)) for pid in job.leaders],
        )
        for job in found.jobs
    ]


def _recent_rows(seconds: float, pids: Collection[int]) -> list[HistoryRow]:
    """Return the history of these processes; empty if nothing was recorded."""
    end = time.time_ns()
    try:
        rows = history_rows(directory_of_watch(), end - int(seconds * 1e9), end + 1)
    except ToolError:
        return []
    return [row for row in rows if row.pid in pids]


def waiting(pids: Collection[int]) -> dict[int, Waiting]:
    """Return what each process waits for."""
    lately = _longest(_recent_rows(_LATELY_S, pids))
    return {pid: lately.get(pid, Waiting()).model_copy(update={"now": _in_call(pid)}) for pid in pids}


def _in_call(pid: int) -> str:
    try:
        stat, call = (Path(f"/proc/{pid}/{name}").read_bytes() for name in ("stat", "syscall"))
        found = syscall(call)
        if found is None or pid_stat(stat).state == "R":
            return "running"
        return syscall_name(found.nr)
    except (OSError, ValueError):
        return ""


def _longest(rows: Iterable[HistoryRow]) -> dict[int, Waiting]:
    sums: dict[int, dict[Place, int]] = {}
    for row in rows:
        places = sums.setdefault(row.pid, {})
        places[row.place] = places.get(row.place, 0) + row.waited_ns
    found = {}
    for pid, places in sums.items():
        place = max(places, key=lambda one: places[one])
        share = 100 * places[place] / max(sum(places.values()), 1)
        shown = {"comm": place.comm, "state": place.state, "call": place.call, "line": place.line}
        found[pid] = Waiting(**shown, object=place.object, share=share)
    return found


def stalls(lang: Lang, job: str | None = None) -> Sequence[NotedStall]:
    """Return the latest entries of the log of stalls, of `job` or of all, the newest first; causes in `lang`."""
    found: list[NotedStall] = []
    for entry in read_stalls(directory_of_watch()):
        try:
            if job is None or entry["job"] == job:
                found.append(_noted(entry, lang))
        except (KeyError, TypeError, ValueError, ValidationError, AttributeError):
            continue  # of another version
        if len(found) == _STALLS:
            break
    return found


def _noted(entry: dict[str, Any], lang: Lang) -> NotedStall:
    stall, answer = entry.get("stall") or {}, entry.get("answer") or {}
    ended = stall.get("end_ns")
    known = {name: answer.get(name) or "" for name in ("verdict", "title", "diagnosis", "ticket")}
    cause = load_causes().get(answer.get("cause") or "")
    if cause is not None and known["verdict"] in ("confirmed", "likely"):
        known["title"] = cause.title.get(lang)
    return NotedStall(
        at=entry["at"],
        job=entry["job"],
        name=entry["name"],
        pid=entry.get("pid"),
        kind=stall.get("kind", ""),
        seconds=None if ended is None else (ended - stall["start_ns"]) / 1e9,
        why=entry["why"],
        **known,
    )
