"""The output tables of slow_node_check."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from whystall.tools.contract.result import Model
from whystall.tools.ranks.hangs.tables import HangRow

Verdict = Literal["rank", "several", "intermittent", "stage", "moving", "link", "none", "cannot_tell"]
"""What holds the job back: one rank, several, one or more in some steps only, a pipeline stage (its ranks alike), ranks
that take turns, a link between ranks, nothing, or undecided (`reasons` give the reasons)."""

SlowClass = Literal["compute_slow", "communication_slow", "host_slow", "loader_slow", "unattributed", "hang"]
"""Its operators take longer; the transfer itself does; its CPU dispatches late; it waits for its data (only if the
traces mark data loading); slow without a known cause; or it did not enter an operation the others wait in."""


class EvidenceRow(Model):
    """One measured difference; `mine` is the rank's value. `what`: wait, own_time, compute, gap, loader, blocked,
    launch_delay, transfer, operator, operator_count, bandwidth, not_entered, not_finished, mismatch. `name`: the
    operator, group or operation. Times in ms per step."""

    what: str
    name: str = ""
    mine: float
    peers: float
    unit: str


class SlowSteps(Model):
    """The steps in which a rank is slow, if not in all: `steps` (numbers, the first 200), `count` of them, from `first`
    to `last`, at a cost of `lost_ms` together. `shape`: the first steps (``start``), a ``stretch``, one up to the end
    (``since``), every `period` steps (``period``), by `growth_pct` of a step more with every step (``drift``), or
    ``scattered``."""

    shape: Literal["start", "stretch", "since", "period", "drift", "scattered"]
    steps: list[int]
    count: int
    first: int
    last: int
    lost_ms: float
    period: int | None = None
    growth_pct: float | None = None


class AccusedRow(Model):
    """A rank that holds the job back. `of_step_pct`: its cost per step, of the step; `job_pct`: of the whole traced
    time. In `votes` of `steps` it was behind all who are not accused, p_value: of that many by chance. `began_step`:
    first slow step; None: from the start. A hang has no cost per step, no votes and no beginning: None. Of a rank that
    is slow only in `slow_steps`, the cost is per slow step, and `votes` is their number."""

    rank: int
    host: str
    pid: int | None
    slow_class: SlowClass
    lost_ms_per_step: float | None
    of_step_pct: float | None
    job_pct: float
    votes: int | None
    steps: int | None
    p_value: float | None
    began_step: int | None
    confidence: Literal["high", "medium", "low"]
    slow_steps: SlowSteps | None = None
    evidence: list[EvidenceRow] = Field(default_factory=list)


class RankRow(Model):
    """One rank per step on average, ms; None: unknown. `offset_us`, `residual_us`: of its clock against the others'."""

    rank: int
    host: str
    source: str
    peers: str
    steps: int
    step_ms: float
    own_ms: float
    wait_ms: float
    compute_ms: float | None
    gap_ms: float | None
    exposed_comm_ms: float | None
    offset_us: float | None
    residual_us: float | None
    last_pct: float


class LinkRow(Model):
    """A group (``0-3``) or pair (``2 to 3``) of ranks and the speed of its transfers compared with equal ones."""

    ranks: str
    group: str
    op: str
    bytes: int | None
    count: int
    transfer_ms: float
    peers_ms: float
    gb_per_s: float | None


class ReplicaRow(Model):
    """A rank of a job without collectives: latency of its steps."""

    rank: int
    host: str
    steps: int
    p50_ms: float
    p99_ms: float
    ratio: float


class NextCall(Model):
    """A call of another tool for more about `rank`: with traces its difference to `peer`, the median of the ranks that
    do the same work; of a running job the diagnosis of its process, on its host. `arguments` are the tool's own; for a
    recording without its traces they hold no paths."""

    tool: str
    rank: int
    peer: int | None = None
    arguments: dict[str, str | int]


class Data(Model):
    """The verdict and its tables. `reasons`: codes of why it abstains or is limited. `detectable_pct`: with no rank
    accused, the smallest slowdown of one rank in every step, of the step, that would have been found. `next`: proposed
    next calls."""

    verdict: Verdict = "cannot_tell"
    reasons: list[str] = Field(default_factory=list)
    step_ms: float | None = None
    steps: int = 0
    lost_pct: float | None = None
    detectable_pct: float | None = None
    accused: list[AccusedRow] = Field(default_factory=list)
    ranks: list[RankRow] = Field(default_factory=list)
    links: list[LinkRow] = Field(default_factory=list)
    hangs: list[HangRow] = Field(default_factory=list)
    replicas: list[ReplicaRow] = Field(default_factory=list)
    next: list[NextCall] = Field(default_factory=list)
    matched: dict[str, int] = Field(default_factory=dict)
