"""The manifest of a recording."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from whystall.tools.contract.result import BlindSpot, CollectorCoverage, Coverage
from whystall.tools.contract.text import clean
from whystall.tools.node.containers import Container
from whystall.tools.recording.target import Target

SCHEMA_VERSION = "1"
_IN_PART = frozenset({"sampled", "pages_in_part", "hidden_processes"})
"""Blind spots with which a collector rules nothing out."""
Inert = Annotated[str, AfterValidator(clean)]
"""Text made inert, as a manifest may come from a stranger."""


class CollectorManifest(BaseModel):
    """How one collector was served; `rows`: row count per table; `options`: as requested."""

    model_config = ConfigDict(extra="forbid")

    engine: Inert
    why: Annotated[str, AfterValidator(lambda text: clean(text, 500))] = ""
    options: dict[str, int] = Field(default_factory=dict)
    hooks: list[Inert] = Field(default_factory=list)
    seen: int = Field(default=0, ge=0)
    kept: int = Field(default=0, ge=0)
    lost: int = Field(default=0, ge=0)
    proven: bool = False
    not_seen: list[BlindSpot] = Field(default_factory=list)
    rows: dict[str, int] = Field(default_factory=dict)


class Manifest(BaseModel):
    """``manifest.json``. `started` (RFC 3339) and `start_ns` (on `clock`) are the same instant; spans in ns."""

    model_config = ConfigDict(extra="forbid")

    schema_version: str = SCHEMA_VERSION
    id: Inert
    host: Inert
    kernel: Inert
    machine: Inert
    cpus: int = Field(ge=1)
    target: Target
    started: Inert
    clock: Inert = "CLOCK_MONOTONIC"
    start_ns: int = Field(ge=0)
    window_ns: int = Field(ge=0)
    requested_ns: int = Field(ge=0)
    target_exited: bool = False
    # the process of the target that was killed for lack of memory, and its cgroup; empty for none
    oom_killed: Inert = ""
    # pid of the recording process, which may itself have disturbed others; 0 unknown
    observer: int = Field(default=0, ge=0)
    redacted: bool = False
    # containers of the processes in the tables
    containers: list[Container] = Field(default_factory=list)
    collectors: dict[str, CollectorManifest] = Field(default_factory=dict)
    # optional collectors that were not recorded, and why no engine could serve them
    left_out: dict[str, Inert] = Field(default_factory=dict)

    def saw_everything(self, collector: str) -> bool:
        """Return whether `collector` recorded everything: proven, nothing lost, no partial observation.

        Only then may a tool report "measured and normal", which rules causes out.
        """
        entry = self.collectors[collector]
        return entry.proven and not entry.lost and all(spot.code not in _IN_PART for spot in entry.not_seen)

    def coverage(self, names: list[str], extra: list[BlindSpot]) -> Coverage:
        """Return the coverage of a result that used the collectors `names`; `extra`: blind spots of its tool."""
        used = {name: self.collectors[name] for name in names if name in self.collectors}
        blind = [spot for c in used.values() for spot in c.not_seen] + extra
        lost = sum(c.lost for c in used.values())
        if lost:
            blind.append(BlindSpot(code="events_lost", detail=str(lost)))
        blind += [BlindSpot(code="not_proven", detail=name) for name, c in used.items() if not c.proven]
        blind += [BlindSpot(code="no_engine", detail=f"{n}: {why}") for n, why in self.left_out.items() if n in names]
        if self.oom_killed:
            blind.append(BlindSpot(code="target_oom_killed", detail=self.oom_killed))
        elif self.target_exited:
            blind.append(BlindSpot(code="target_exited", detail=self.target.describe()))
        if self.redacted:
            blind.append(BlindSpot(code="redacted"))
        unique = {(spot.code, spot.detail): spot for spot in blind}
        return Coverage(
            recording=self.id,
            host=self.host,
            kernel=self.kernel,
            start=self.started,
            window_s=round(self.window_ns / 1e9, 3),
            requested_s=round(self.requested_ns / 1e9, 3),
            target=self.target.describe(),
            collectors=[
                CollectorCoverage(name=name, **c.model_dump(include=set(CollectorCoverage.model_fields) - {"name"}))
                for name, c in used.items()
            ],
            not_seen=list(unique.values()),
        )
