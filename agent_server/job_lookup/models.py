"""Types of the job lookup: process, job, search and result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from whystall.tools.node.cgroups import Grouped
from whystall.tools.node.environment import Identity

LISTED = 10
"""Maximum candidates listed if several jobs match."""

Kind = Literal["slurm", "run", "mpi", "pod", "container", "unit", "process"]
"""What identifies a job: a Slurm job, a run of torchrun or another launcher with ranks, an MPI job, a Kubernetes pod, a
container, a systemd unit, or a process with its like among its children.
"""


@dataclass(frozen=True, slots=True)
class Process:
    """One process, with cleaned texts.

    `program`: the script or module, else the executable, without directory; `words`: paths and option values of its
    command line, without secrets, for searching only; `started_s`: seconds since boot.
    """

    pid: int
    ppid: int
    comm: str
    state: str
    start_ticks: int
    started_s: float
    program: str
    words: tuple[str, ...] = ()
    cgroup: str = ""
    identity: Identity = field(default_factory=Identity)
    grouped: Grouped = field(default_factory=Grouped)

    @property
    def slurm_job(self) -> str | None:
        """Return the Slurm job: of the control group, else of the environment, which is inherited."""
        return self.grouped.slurm_job or self.identity.slurm_job

    @property
    def pod_uid(self) -> str | None:
        return self.grouped.pod_uid or self.identity.pod_uid


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Missed(_Model):
    """Processes that could not be read: `vanished` meanwhile; `denied`: environment or control groups unreadable (found
    by pid and name only); `beyond`: over the limit.
    """

    vanished: int = 0
    denied: int = 0
    beyond: int = 0


@dataclass(frozen=True)
class Inventory:
    """The processes of this host at one time.

    `host`: its names; `own`: our own container, which distinguishes no jobs; `now_s`: seconds since boot; `addresses`:
    of this host, empty if unknown.
    """

    processes: list[Process]
    missed: Missed = field(default_factory=Missed)
    host: tuple[str, ...] = ()
    own: str | None = None
    now_s: float = 0.0
    addresses: tuple[str, ...] = ()


class Wanted(_Model):
    """Which job is meant: by words, by the labels of an alert, by pid or rank."""

    text: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    pid: int | None = None
    rank: int | None = None


class Rank(_Model):
    """A rank of a job on this host, and its working process."""

    rank: int
    pid: int
    local_rank: int | None = None


class Job(_Model):
    """Processes that are one job.

    `id`: ``slurm:4242``, ``run:ID``, ``mpi:ID``, ``pod:UID``, ``container:ID``, ``unit:NAME``, ``process:PID``; `pid`:
    the default process (the lowest rank, else the first worker); `pids`: at most 1000 of `processes`; `workers`:
    neither launchers nor children of another worker; `ranks`: on this host; `world_size`: on all hosts, if known.
    """

    id: str
    kind: Kind
    name: str
    pid: int
    program: str
    processes: int
    pids: list[int]
    workers: list[int]
    ranks: list[Rank] = Field(default_factory=list)
    world_size: int | None = None
    pod: str | None = None
    namespace: str | None = None
    container: str | None = None
    age_s: float = 0.0


class Resolution(_Model):
    """Which process is meant.

    ``found``: `pid` of `job`; `start_ticks` distinguishes it from a later process with the same pid; `rank` is the
    requested or chosen one. ``several``: `jobs` match (`left_out` more are not listed), or ranks of `job`. ``none``.

    `how`: codes of what matched (``pid:4242``, ``slurm_job:12``, ``word:llama-7b``, ``rank:3``, ``suffers``,
    ``rank_0``). `tried`: codes of what did not match, ``elsewhere:HOST`` if the labels name another host, ``words`` if
    no word names a job.
    """

    status: Literal["found", "several", "none"]
    pid: int | None = None
    start_ticks: int | None = None
    rank: int | None = None
    job: Job | None = None
    jobs: list[Job] = Field(default_factory=list)
    left_out: int = 0
    how: list[str] = Field(default_factory=list)
    tried: list[str] = Field(default_factory=list)
    missed: Missed = Field(default_factory=Missed)
