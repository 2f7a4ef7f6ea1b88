"""Which processes are watched: those of named jobs, or of all jobs that look like training or serving."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from whystall.agent_server.job_lookup import inventory
from whystall.agent_server.job_lookup.grouping import jobs
from whystall.agent_server.job_lookup.models import Inventory, Job, Process, Wanted
from whystall.agent_server.job_lookup.resolve import resolve
from whystall.tools.node.ai_programs import has_ai_library, is_ai_program

MOST = 500
"""Maximum processes that are watched; the oldest jobs first."""
_AFTER_S = 5.0
# A scan may take this share of the time, however many processes there are.
_SCAN_SHARE = 0.002


@dataclass(frozen=True)
class Selection:
    """Which jobs are watched; with nothing named, all that look like training or serving."""

    pids: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    slurm_jobs: tuple[str, ...] = ()

    @property
    def everything(self) -> bool:
        return not (self.pids or self.names or self.cgroups or self.pods or self.slurm_jobs)


@dataclass(frozen=True)
class WatchedJob:
    """A job that is watched. `leaders`: the processes that make its progress (ranks, else workers), with when they
    started in ticks since boot; `ranks`: the rank of a leader; `pids`: all its processes."""

    id: str
    name: str
    leaders: dict[int, int]
    ranks: dict[int, int] = field(default_factory=dict)
    pids: frozenset[int] = frozenset()


class JobList:
    """The watched jobs, renewed when processes came or went.

    A process counts once it has lived for `min_age_s`, so that commands that start and end each second cost nothing.
    """

    def __init__(
        self,
        selection: Selection,
        min_age_s: float = 10.0,
        read: Callable[[], Inventory] = inventory.read,
        ai_library: Callable[[int], bool] = has_ai_library,
        listing: Callable[[], frozenset[int]] | None = None,
    ) -> None:
        self._selection = selection
        self._min_age_s = min_age_s
        self._read = read
        self._ai_library = ai_library
        self._listing = listing or _pids
        self._first_seen: dict[int, float] = {}
        self._known: frozenset[int] = frozenset()
        self._ai: dict[tuple[int, int], bool] = {}
        self._next = 0.0
        self.jobs: list[WatchedJob] = []
        self.beyond = 0

    def renew(self, now_s: float) -> bool:
        """Read the processes again if there are new ones or a watched one has ended; return whether `jobs` changed.
        `now_s`: of a monotonic clock."""
        if now_s < self._next:
            return False
        self._next = now_s + _AFTER_S
        present = self._listing()
        self._first_seen = {pid: self._first_seen.get(pid, now_s) for pid in present}
        settled = frozenset(pid for pid, since in self._first_seen.items() if now_s - since >= self._min_age_s)
        watched = {pid for job in self.jobs for pid in job.leaders}
        if self._known and settled <= self._known and watched <= present:
            return False
        began = time.thread_time()
        found = self._chosen(self._read())
        spent = time.thread_time() - began
        self._next = now_s + max(_AFTER_S, spent / _SCAN_SHARE)
        self._known = settled | watched
        changed = found != self.jobs
        self.jobs = found
        return changed

    def _chosen(self, seen: Inventory) -> list[WatchedJob]:
        old = [p for p in seen.processes if seen.now_s - p.started_s >= self._min_age_s]
        seen = Inventory(old, seen.missed, seen.host, seen.own, seen.now_s, seen.addresses)
        by_pid = {process.pid: process for process in seen.processes}
        found = self._looking_alike(seen, by_pid) if self._selection.everything else self._named(seen, by_pid)
        kept: list[WatchedJob] = []
        room, self.beyond = MOST, 0
        for job, leaders in found:
            if len(leaders) > room:
                self.beyond += 1
                if kept:  # a smaller one may fit
                    continue
                leaders = leaders[:room]
            room -= len(leaders)
            ranks = {rank.pid: rank.rank for rank in job.ranks}
            starts = {pid: by_pid[pid].start_ticks for pid in leaders if pid in by_pid}
            kept.append(WatchedJob(job.id, job.name, starts, ranks, frozenset(job.pids)))
        self._ai = {key: value for key, value in self._ai.items() if key[0] in by_pid}
        return kept

    def _looking_alike(self, seen: Inventory, by_pid: dict[int, Process]) -> list[tuple[Job, list[int]]]:
        found = []
        for job in jobs(seen):
            leaders = _leaders(job)
            if job.ranks or any(self._is_ai(by_pid[pid]) for pid in leaders if pid in by_pid):
                found.append((job, leaders))
        return found

    def _is_ai(self, process: Process) -> bool:
        key = (process.pid, process.start_ticks)
        if not self._ai.get(key, False):  # a library may be mapped later
            self._ai[key] = is_ai_program(process.program) or self._ai_library(process.pid)
        return self._ai[key]

    def _named(self, seen: Inventory, by_pid: dict[int, Process]) -> list[tuple[Job, list[int]]]:
        chosen, found = self._selection, {}
        for job in jobs(seen):
            members = [by_pid[pid] for pid in job.pids if pid in by_pid]
            leaders = _leaders(job)
            if named := [pid for pid in chosen.pids if pid in job.pids]:
                found[job.id] = (job, [pid for pid in named if pid in leaders] or leaders)
            elif any(_in(process, chosen) for process in members):
                found[job.id] = (job, leaders)
        for name in chosen.names:
            meant = resolve(Wanted(text=name), seen)
            listed = [meant.job] if meant.job is not None else meant.jobs
            if "close" not in meant.how:
                found.update({job.id: (job, _leaders(job)) for job in listed if job.id not in found})
        return list(found.values())


def _leaders(job: Job) -> list[int]:
    return [rank.pid for rank in job.ranks] or list(job.workers)


def _in(process: Process, chosen: Selection) -> bool:
    """Return whether `process` is in a chosen group, pod or Slurm job."""
    path = process.cgroup.strip("/")
    groups = (one.removeprefix("/sys/fs/cgroup").strip("/") for one in chosen.cgroups)
    return (
        any(path == group or path.startswith(f"{group}/") for group in groups)
        or bool({process.identity.pod_name, process.pod_uid} & set(chosen.pods))
        or process.slurm_job in chosen.slurm_jobs
    )


def _pids(root: Path = Path("/proc")) -> frozenset[int]:
    return frozenset(int(name) for name in os.listdir(root) if name.isdigit())
