"""Jobs of this host: what a process says of itself, which processes are one job, and what was meant by some words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from whystall.tools.node.cgroups import Grouped

LISTED = 10
"""Candidates that are told where several jobs are meant."""

Kind = Literal["slurm", "run", "mpi", "pod", "container", "unit", "process"]
"""What makes processes one job: a job of Slurm; a run of torchrun or another launcher with ranks; MPI; a pod of
Kubernetes; a container; a unit of systemd; or a process and its like among its children.
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """What the environment of a process says of the job that it belongs to; None: it does not say. Only these leave
    the reader (`environment.NAMES`).
    """

    slurm_job: str | None = None
    slurm_step: str | None = None
    slurm_array: str | None = None  # ``JOB_TASK``, as squeue shows it
    job_name: str | None = None
    run_id: str | None = None
    mpi_job: str | None = None
    master: str | None = None  # ``ADDRESS:PORT``
    rank: int | None = None
    local_rank: int | None = None
    group_rank: int | None = None
    world_size: int | None = None
    pod_name: str | None = None
    namespace: str | None = None
    pod_uid: str | None = None
    hostname: str | None = None  # of the container


@dataclass(frozen=True, slots=True)
class Process:
    """One process. All text is inert. `program`: the script or module it runs, else its executable, without directory.
    `words`: what its command line calls things (paths, values of options, but of none that looks like a secret); for
    finding it, not for showing. `started_s`: seconds since the start of the host.
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
        """The job of Slurm; its control group knows better than an environment, which is inherited."""
        return self.grouped.slurm_job or self.identity.slurm_job

    @property
    def pod_uid(self) -> str | None:
        """The pod."""
        return self.grouped.pod_uid or self.identity.pod_uid


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Missed(_Model):
    """What the inventory does not hold: processes that ended while they were read; those whose environment or control
    groups may not be read (they are found by pid and name only); processes beyond the bound.
    """

    vanished: int = 0
    denied: int = 0
    beyond: int = 0


@dataclass(frozen=True)
class Inventory:
    """The processes of this host at one time. `host`: its names. `own`: the container that we are in ourselves, which
    tells none of its processes apart. `now_s`: when that was, in seconds since the start of the host. `addresses`: its
    own; empty: not known.
    """

    processes: list[Process]
    missed: Missed = field(default_factory=Missed)
    host: tuple[str, ...] = ()
    own: str | None = None
    now_s: float = 0.0
    addresses: tuple[str, ...] = ()


class Wanted(_Model):
    """Which job is meant: `text` that somebody said, the `labels` of an alert as they came, a `pid`, a `rank`."""

    text: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    pid: int | None = None
    rank: int | None = None


class Rank(_Model):
    """One rank of a job on this host, and the process that does its work."""

    rank: int
    pid: int
    local_rank: int | None = None


class Job(_Model):
    """Processes that are one job. `id` says what makes them one: ``slurm:4242``, ``run:ID``, ``mpi:ID``, ``pod:UID``,
    ``container:ID``, ``unit:NAME``, ``process:PID``. `pid`: the process to look at where nothing else is said (the
    lowest rank, else the first that does the work). `pids`: all of them, at most 1000; `processes`: how many there are;
    `workers`: those that do the work, and none that another of them started. `ranks`: those on this host; `world_size`:
    how many there are on all hosts, None where it is not known.
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
    """Which process was meant.

    ``found``: `pid` is to be looked at, of `job`; `start_ticks` tells it from a later process of the same number;
    `rank` is the one asked for, or the one that was chosen. ``several``: `jobs` might be meant (`left_out` more are not
    listed), or `job` and its ranks; ask. ``none``: nothing matches.

    `how`: codes of what led there (``pid:4242``, ``slurm_job:12``, ``word:llama-7b``, ``rank:3``, ``suffers``,
    ``rank_0``). `tried`: what was looked for and not found, the same codes, and ``elsewhere:HOST`` where the labels
    name another host, ``words`` where no word says anything of a job.
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
