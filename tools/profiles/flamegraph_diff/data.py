"""Parameters and result of flamegraph_diff. Shares are percent of a profile's weight, changes are points."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from whystall.tools.contract.params import Params as Base
from whystall.tools.contract.result import Model
from whystall.tools.stacks.alignment import AlignedRow

Verdict = Literal["differs", "alike", "cannot_tell"]
"""`alike`: no difference beyond chance, and a change of `bound_pct` would have been detected."""

What = Literal["own", "total", "calls"]
"""What changed: the function's own code, the function with its callees, or its calls of `callee`."""

Direction = Literal["grew", "shrank", "appeared", "vanished", "moved", "renamed"]
"""`moved`: work of `counterpart` is done here now, at the same cost."""

Role = Literal["proven", "possible", "effect"]
"""`possible`: large enough, but may be chance; `effect`: the share changed because others changed."""

Effect = Literal["same", "said", "limited"]

REASONS = (
    "few_samples",  # chance could hide a change of many points, even if samples were independent
    "few_steps",  # enough samples, but of so few steps that chance could hide one
    "uneven",  # enough samples, but shares vary so much within a run that chance could hide one
    "not_samples",  # weights without times: the number of independent samples is unknown
    "few_functions",  # samples without times, and too few functions to estimate how far they depend on each other
    "bursts_estimated",  # without times: the length of bursts is estimated from what did not change
    "no_common_scale",  # too much changed to find an unchanged part: a decrease may be the effect of an increase
    "little_in_common",  # most of one profile is not in the other
    "nothing_there",  # no samples
)
"""Codes of `DiffData.reasons`; their sentences are in prompts/."""

CHECKS = (
    "other_source",  # the profiles are of different formats or profilers
    "other_event",  # events have different names
    "other_period",  # sampled at different rates
    "other_kinds",  # Python frames, operators or device work are in one of them only
    "other_weight",  # total weights differ
    "other_interrupts",  # interrupts, which are excluded, had different shares
)
"""Codes of `CheckRow.code`."""


_Source = Annotated[str | None, Field(min_length=1, max_length=4096)]
_Rank = Annotated[int | None, Field(ge=0, le=1_000_000)]


class Params(Base):
    """Parameters of flamegraph_diff."""

    before: Annotated[_Source, Field(description="path of the normal or earlier profile")] = None
    after: Annotated[_Source, Field(description="path of the abnormal or later profile")] = None
    before_rank: Annotated[_Rank, Field(description="rank, where `before` holds several")] = None
    after_rank: Annotated[_Rank, Field(description="rank, where `after` holds several")] = None
    step: Annotated[int | None, Field(ge=0, le=2**31 - 1, description="only the profiler step of this number")] = None
    event: Annotated[str, Field(max_length=200, description="of several events, this: cpu-clock")] = ""
    min_pct: Annotated[float, Field(ge=0.01, le=50, description="a smaller change of a share is none, points")] = 1.0
    top: Annotated[int, Field(ge=1, le=200, description="rows per table")] = 10


class ChangeRow(Model):
    """A function that explains part of the difference.

    `code`: ``train.py:212``; `path`: callers on the heaviest path, outermost first. `low_pct` to `high_pct`: bounds of
    `change_pct`, 99 % for all rows together. `cost_pct`: increase (decrease) in percent of the whole earlier profile,
    relative to the unchanged part. `ratio`: of the shares; `relative`: of the shares relative to the unchanged part;
    None if the function was not there.
    """

    name: str
    what: What
    callee: str = ""
    counterpart: str = ""
    direction: Direction
    role: Role
    code: str = ""
    frame_kind: str = ""
    path: list[str] = Field(default_factory=list)
    before_pct: float
    after_pct: float
    change_pct: float
    low_pct: float
    high_pct: float
    cost_pct: float
    ratio: float | None
    relative: float | None
    p_value: float | None


class CheckRow(Model):
    """A compared condition of the profiles. `what`: source, event, period, kinds, weight, interrupts. `code`: one of
    `CHECKS`, empty if equal."""

    what: str
    before: str
    after: str
    effect: Effect
    code: str = ""


class PathCall(Model):
    """The call of another tool that compares what the threads waited for in the same recordings."""

    tool: Literal["critical_path"] = "critical_path"
    arguments: dict[str, str]


class DiffData(Model):
    """`total_before`, `total`: in `unit`; `span_*`: seconds from the first sample to the end, None without times.
    `unchanged_pct`: the unchanged part of the earlier profile (None if not found), whose share is `scale` times as
    large later. `blocks`: how dependent samples were grouped: steps, time or counts. `burst_factor`: variance of counts
    without times relative to independent samples, estimated from `burst_functions` functions (0: assumed, the worst
    usual), None with times. `common_pct`: share of the functions that both profiles have. `next`: of two recordings.
    """

    verdict: Verdict = "cannot_tell"
    reasons: list[str] = Field(default_factory=list)
    event: str = ""
    unit: str = ""
    samples_before: int = 0
    samples: int = 0
    total_before: float = 0.0
    total: float = 0.0
    span_before_s: float | None = None
    span_s: float | None = None
    blocks: str = ""
    burst_factor: float | None = None
    burst_functions: int = 0
    bound_pct: float | None = None
    scale: float = 1.0
    unchanged_pct: float | None = None
    common_pct: float = 0.0
    rows: list[ChangeRow] = Field(default_factory=list)
    checks: list[CheckRow] = Field(default_factory=list)
    aligned: list[AlignedRow] = Field(default_factory=list)
    next: list[PathCall] = Field(default_factory=list)
