"""Result of `flame_graph`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from whystall.tools.contract.result import Model

Verdict = Literal["concentrated", "spread", "idle", "no_samples"]
"""`concentrated`: the lower bound of one frame's own share is at least half; `idle`: gaps take half of the time."""
REASONS = frozenset({"few_samples", "launch_unknown", "no_stacks"})
"""Limits of the result: fewer than 100 samples; over 5 % of the device's work without a launch in the profile; over
half of the samples without a stack."""


class FrameRow(Model):
    """A frame. `self_pct` without, `total_pct` with callees, of the event; 95 % bounds where weights are samples.

    `path`: the callers on the heaviest path, outermost first. `weight`: with callees, in the unit.
    """

    name: str
    code: str
    kind: str
    self_pct: float
    total_pct: float
    low_pct: float | None
    high_pct: float | None
    self_low_pct: float | None
    self_high_pct: float | None
    samples: int | None
    weight: float
    path: list[str]


class KindRow(Model):
    """The own share of all frames of a kind, in percent of the event."""

    kind: str
    self_pct: float


class LaunchRow(Model):
    """A launcher of device work: the nearest operator and the nearest program line; `pct` of that work."""

    operator: str
    code: str
    pct: float


class DeviceRow(Model):
    """Device work of one name. `pct` of the event, `weight` in its unit, `count` of runs (None if the source has only
    sums), `launched_by` largest first.
    """

    name: str
    pct: float
    weight: float
    count: int | None
    launched_by: list[LaunchRow]


class Data(Model):
    """`weight`: total, in `unit`. `frames`: by own share; `inclusive`: by total. `idle_pct`: gaps of the device (None
    unless requested). `devices`: only for device work.
    """

    verdict: Verdict
    reasons: list[str] = Field(default_factory=list)
    event: str = ""
    unit: str = ""
    weight: float = 0.0
    samples: int | None = None
    stacks: int = 0
    frames: list[FrameRow] = Field(default_factory=list)
    inclusive: list[FrameRow] = Field(default_factory=list)
    kinds: list[KindRow] = Field(default_factory=list)
    devices: list[DeviceRow] = Field(default_factory=list)
    idle_pct: float | None = None
