"""The outcome of slow_node_check: the verdict, the reasons for it, and the ranks that are accused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from whystall.tools.ranks.hangs.find import ALL_ENTERED, DEADLOCK, DUMPS_EMPTY, NO_ENTRY, OTHER_ORDER
from whystall.tools.ranks.slow_node_check import replicas, votes
from whystall.tools.ranks.slow_node_check.classify import Kind
from whystall.tools.ranks.slow_node_check.grid import Grid
from whystall.tools.ranks.slow_node_check.intermittent import Intermittent
from whystall.tools.ranks.slow_node_check.links import Links, Transfers
from whystall.tools.ranks.slow_node_check.stages import SlowStage
from whystall.tools.ranks.slow_node_check.tables import Verdict

REASONS = frozenset(
    {
        "few_steps",  # too few steps for a vote
        "few_ranks",  # no two ranks do the same work
        "one_rank",  # there is the trace of one rank only
        "no_collectives",  # replicas: judged by their own latency
        "step_sums",  # the traces have sums of each step only: idle time is what is left of it, and accuses no rank
        "no_waits",  # tables without communication: nobody is seen to wait
        "no_durations",  # the traces have neither steps nor operations with a duration
        "no_work_seen",  # the traces have no work between collectives: one measure only
        "loader_unseen",  # the traces mark no data loading: a late host may have waited for data
        "no_baseline",  # most of a step is transfers, and there is nothing to compare them with
        "unmatched",  # too many operations were not found on all their ranks
        "ranks_missing",  # an absent rank may be the one that all wait for
        "mixed_signals",  # waited for, but not longer at work: or vice versa
        "few_slow_steps",  # a rank was slow in a few steps: too few to tell a fault from chance
        "noise",  # steps vary so much that a slow rank may hide in it
        "clocks",  # ranks leave operations further apart than what the rank would cost
        "uneven_steps",  # in every step some rank is late, but each time another
        "link_of_group",  # a group's transfers are slow; which of its ranks causes it is unknown
        "stage_of_one",  # the slow stage is one rank: its node and its layers are indistinguishable
        "hang",  # ranks wait in an operation that others have not entered
        ALL_ENTERED,
        DEADLOCK,
        DUMPS_EMPTY,
        NO_ENTRY,
        OTHER_ORDER,
    }
)
"""Codes of the reasons for a verdict."""


@dataclass(frozen=True)
class Floors:
    """What a rank must cost, as a share of a step. 0.10 and 0.20: the thresholds of published slow-node detectors;
    smaller variation is usual on healthy clusters."""

    warn: float = 0.10
    critical: float = 0.20


Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class Accused:
    """A rank that holds the job back. `cost_ns` per step since `began` (a step's number, -1 from the start), `of_step`
    and `of_job`: as shares of those steps' time and of the time of all steps. `transfers`: of a slow link. `at_times`:
    it is slow in some steps only, `slow_steps` (numbers); then `cost_ns` is per slow step."""

    rank: int
    late: votes.Late
    kind: Kind
    peers: tuple[int, ...]
    cost_ns: float
    of_step: float
    of_job: float
    began: int
    confidence: Confidence
    transfers: Transfers | None = None
    at_times: Intermittent | None = None
    slow_steps: tuple[int, ...] = ()


@dataclass
class Outcome:
    """The verdict and its evidence. `lost`: the share of the ranks' time that is waiting; None unknown. `incomplete`:
    ranks that are not judged (see `missing_operations`). `detectable`: the smallest slowdown of one rank in every step,
    as a share of a step, that would have been found; None where another reason than noise prevents it."""

    verdict: Verdict = "cannot_tell"
    reasons: list[str] = field(default_factory=list)
    accused: list[Accused] = field(default_factory=list)
    stages: list[SlowStage] = field(default_factory=list)
    turns: list[votes.Turns] = field(default_factory=list)
    links: Links | None = None
    replicas: list[replicas.Replica] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
    step_ns: float = 0.0
    steps: int = 0
    lost: float | None = None
    detectable: float | None = None
    incomplete: tuple[int, ...] = ()

    def because(self, code: str) -> None:
        """Add a reason, once."""
        if code not in self.reasons:
            self.reasons.append(code)
