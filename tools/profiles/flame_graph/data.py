"""What `flame_graph` answers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from whystall.tools.contract.result import Model

Verdict = Literal["concentrated", "spread", "idle", "no_samples"]
"""`concentrated`: one frame itself takes at least half, also by its lower bound; `idle`: the device's gaps do."""
REASONS = frozenset({"few_samples", "launch_unknown", "no_stacks"})
"""Why a reader should be careful: fewer than 100 samples; more than 5 % of the device's work has no launch in the
profile; more than half has no stack."""


class FrameRow(Model):
    """A frame. Percents of the event: itself, and with all it calls; bounds of 95 % where weights are samples.
    `path`: its callers where it takes most, outermost first. `weight`: with all it calls, in the unit.
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
    """Percent of the event that frames of a kind take themselves."""

    kind: str
    self_pct: float


class LaunchRow(Model):
    """Who launches device work: the nearest operator and the nearest line of the program; `pct` of that work."""

    operator: str
    code: str
    pct: float


class DeviceRow(Model):
    """Device work of one name. `pct` of the event; `weight` in its unit; `count`: how often it ran, None where the
    source has only sums; `launched_by`: largest first.
    """

    name: str
    pct: float
    weight: float
    count: int | None
    launched_by: list[LaunchRow]


class Data(Model):
    """`weight`: of all, in `unit`. `frames`: by what they take themselves; `inclusive`: with all they call. `idle_pct`:
    of the device's time, None unless its gaps were asked for. `devices`: only for work of a device.
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
