"""The output tables of compare_runs. Times are ms per step; `before` and `after` are means over a run's steps, and
changes are after minus before."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from whystall.tools.contract.result import Model
from whystall.tools.stacks.alignment import AlignedRow

Verdict = Literal["slower", "faster", "none", "cannot_tell"]
"""The later run compared with the earlier one. `none`: no difference beyond the variation of steps."""

Shape = Literal["", "all_steps", "since_step", "some_steps"]
"""Which steps of the later run differ: all alike, those from `began_step` on, or some among unchanged ones."""

Effect = Literal["same", "said", "limited", "refused"]
"""Effect of a check on the comparison: none, a remark, some parts are left out, or no comparison at all."""

REASONS = (
    "few_steps",  # too few steps for any test
    "below_min",  # there is a difference, but smaller than the requested minimum
    "too_noisy",  # steps vary so much that a difference of the requested size could hide
    "odd_steps",  # a few outliers (compilation, checkpoint) were left out in both runs
    "unexplained",  # the steps differ, and no measured part explains it
    "other_world_size",  # refused: the runs have another number of ranks,
    "other_backend",  # another backend,
    "other_device",  # one ran on a device and one did not,
    "other_groups",  # ranks are grouped in another way,
    "other_collectives",  # other operations between ranks or other payloads,
    "other_operators",  # other operators make up most of the time
    "world_sizes_differ",  # limited: another number of ranks, each with the same work: compared per rank and step
    "groups_differ",  # remark: groups have other members, in runs of another number of ranks
    "no_common_ranks",  # no rank is in both
    "ranks_differ",  # limited: only ranks that are in both are compared
    "collectives_differ",  # some operations between ranks are in one run only
    "operators_differ",  # some operators are in one run only
    "other_format",  # traces of different profilers: only steps and operations between ranks are compared
    "hosts_differ",  # remark: some ranks ran on other hosts
    # with a stored baseline
    "other_hardware",  # refused: stored runs are of other devices
    "other_versions",  # remark: libraries or drivers have other versions
    "environment_unknown",  # remark: the traces do not state hardware and versions
    "one_run",  # one stored run does not show how much runs differ: only changes of twice the minimum count
    "most_operators",  # most operators changed alike: look at clocks, the host and versions
    "shapes_unknown",  # without shapes an operator is judged only where all its quantiles changed
    "nothing_comparable",  # no operator has enough calls in both
)
"""Codes of `CompareData.reasons` and of checks; their sentences are in prompts/."""


class CheckRow(Model):
    """Whether the runs are of the same configuration. `what`: world_size, backend, device, groups, collectives,
    operators, ranks, format, hosts. `code`: one of `REASONS`, empty when the same."""

    what: str
    before: str
    after: str
    effect: Effect
    code: str = ""


class PartRow(Model):
    """A part of the step of the rank that the others wait for; the parts add up to the change of the step. `what`:
    compute, loader, gap (without the loader), transfer, communication (waiting for others, or not separable from
    transfers), rest."""

    what: str
    before_ms: float
    after_ms: float
    change_ms: float
    of_change_pct: float | None
    p_value: float


class RankChange(Model):
    """A rank's mean step; its changes by part add up to `step_change_ms`. `own`: compute, loader and gap, which no
    other rank can lengthen; `p_value`: of the change of `own` by chance, for as many ranks as there are."""

    rank: int
    host: str
    step_before_ms: float
    step_after_ms: float
    step_change_ms: float
    compute_change_ms: float
    loader_change_ms: float
    gap_change_ms: float
    transfer_change_ms: float
    waiting_change_ms: float
    rest_change_ms: float
    own_before_ms: float
    own_after_ms: float
    p_value: float


class OperatorRow(Model):
    """Work of one name, on average over `ranks`. `by_count_ms`: the share of the change due to more or fewer calls, at
    their earlier length; `by_length_ms`: due to longer or shorter ones. The last row, `kind` rest, is all other work.
    """

    kind: str
    name: str
    ranks: str
    before_ms: float
    after_ms: float
    change_ms: float
    count_before: float
    count_after: float
    median_before_us: float | None
    median_after_us: float | None
    by_count_ms: float
    by_length_ms: float


class CollectiveRow(Model):
    """Operations of one kind, payload and group size. Transfer: the shortest duration on any rank, waiting not
    included; before and after are medians of one, `change_ms` is per step and rank. `ranks`: where it changed most."""

    op: str
    bytes: int
    size: int
    count_before: float
    count_after: float
    transfer_before_ms: float | None
    transfer_after_ms: float | None
    change_ms: float
    gb_per_s_before: float | None
    gb_per_s_after: float | None
    p_value: float | None
    ranks: str


class SlowStep(Model):
    """A step of the later run that is longer than the median of the earlier run. `of_excess_pct`: of all such excess.
    `rank`: the one the others waited for, `what`: the part of its step that is most above its usual length before."""

    step: int
    after_ms: float
    excess_ms: float
    of_excess_pct: float
    rank: int
    what: str


LatencyState = Literal[
    "slower",
    "faster",
    "same",
    "noisy",
    "too_few",
    "mix_unknown",
    "other_shape",
    "only_after",
    "only_before",
    "rank_not_stored",
]
"""`noisy`: it differs, but so do stored runs among themselves. `mix_unknown`: without shapes a change of the mix of
calls is as likely. `other_shape`: the stored runs have it with other shapes only."""


class LatencyRow(Model):
    """A single call of an operator or kernel on a rank, without operators that it calls: percentiles in the stored runs
    and now. `change_pct`: the middle change with its 99 % bounds; `q_value`: the false discovery rate at which it
    counts. `peers_us`: the median of the other ranks in this run, and the rank's difference from them. `since`: the
    first slow stored run, or the step of this run.
    """

    state: LatencyState
    rank: int
    kind: str
    name: str
    shape: str
    count_before: int = 0
    count_after: int = 0
    before_us: float | None = None
    after_us: float | None = None
    p90_before_us: float | None = None
    p90_after_us: float | None = None
    p99_before_us: float | None = None
    p99_after_us: float | None = None
    change_pct: float | None = None
    low_pct: float | None = None
    high_pct: float | None = None
    q_value: float | None = None
    cost_pct: float | None = None
    peers_us: float | None = None
    peers_change_pct: float | None = None
    peers_low_pct: float | None = None
    peers_high_pct: float | None = None
    peers_q_value: float | None = None
    peers_slower: bool = False
    since: str = ""


class CompareData(Model):
    """`step_*`: means, `median_*`: medians. `low_ms` to `high_ms`: 99 % interval of the change of the mean. `superior`:
    the probability that a later step takes longer than an earlier one. `set_aside`: outliers left out.
    `aligned`: names of operators that are compared as one. `latencies`: with a stored baseline, whose runs
    `stored_runs` counts; `tested` of the `listed` operators, shapes and ranks have enough calls in both."""

    verdict: Verdict = "cannot_tell"
    reasons: list[str] = Field(default_factory=list)
    shape: Shape = ""
    began_step: int | None = None
    steps_before: int = 0
    steps_after: int = 0
    set_aside: int = 0
    stored_runs: int = 0
    listed: int = 0
    tested: int = 0
    step_before_ms: float | None = None
    step_after_ms: float | None = None
    median_before_ms: float | None = None
    median_after_ms: float | None = None
    change_ms: float | None = None
    change_pct: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    p_value: float | None = None
    superior: float | None = None
    checks: list[CheckRow] = Field(default_factory=list)
    parts: list[PartRow] = Field(default_factory=list)
    ranks: list[RankChange] = Field(default_factory=list)
    operators: list[OperatorRow] = Field(default_factory=list)
    collectives: list[CollectiveRow] = Field(default_factory=list)
    slow_steps: list[SlowStep] = Field(default_factory=list)
    aligned: list[AlignedRow] = Field(default_factory=list)
    latencies: list[LatencyRow] = Field(default_factory=list)
