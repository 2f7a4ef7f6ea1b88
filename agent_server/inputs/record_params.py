"""What to record or to gather, and the summary of a written recording."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from whystall.agent_server.settings.engines import Engine
from whystall.tools.collect.options import (
    PATH_WAIT_NS,
    SAMPLE_NS,
    BlockOptions,
    FtraceOptions,
    SampleOptions,
    SwitchOptions,
    SyscallOptions,
)
from whystall.tools.contract.params import TargetParams
from whystall.tools.ranks.params import RankParams
from whystall.tools.recording.collector import Need

# A recording is judged later with thresholds unknown now: keep what is slower than a millisecond.
_RECORD_NEEDS = [
    Need("proc"),
    Need("syscalls", SyscallOptions(min_ns=1_000_000)),
    Need("switches", SwitchOptions(PATH_WAIT_NS, wakers=True, python=True, follow_wakers=True)),
    Need("objects", optional=True),
    Need("block", BlockOptions()),
    Need("interrupts"),
    Need("run_queue"),
    Need("memory_use"),
    Need("device_log", optional=True),
    Need("hardware", optional=True),
    Need("gpu_state", optional=True),
    Need("card_state", optional=True),
    Need("versions", optional=True),
]
_CACHE_NEEDS = [Need("page_cache"), Need("residency")]
_TRACE_NEED = Need("ftrace", FtraceOptions(frozenset({"irq", "softirq"})))


class RecordParams(TargetParams):
    """What to record."""

    duration: Annotated[float, Field(ge=0.1, le=600, description="seconds to observe")] = 10.0
    past: Annotated[
        float | None,
        Field(ge=0.1, le=86400, description="instead: the last seconds of what the watch has recorded"),
    ] = None
    past_end: Annotated[float, Field(ge=0, le=86400, description="with past: how many seconds ago its span ends")] = 0.0
    trace: Annotated[bool, Field(description="also every event of the scheduler, for host_bound")] = False
    samples: Annotated[bool, Field(description="also stacks of what runs, for cpu_profile and heat_map")] = False
    hz: Annotated[int | None, Field(ge=1, le=999, description="with samples: how often per second")] = None
    cache: Annotated[bool, Field(description="also the page cache, for page_cache and hybrid_io_advise")] = False
    engine: Engine = "auto"

    @model_validator(mode="after")
    def _rate_of_samples(self) -> RecordParams:
        if self.hz is not None and not self.samples:
            raise ValueError("hz needs samples: it is their rate")
        if self.past_end and (self.past is None or self.past_end >= self.past):
            raise ValueError("past_end needs a past that is longer: its span begins so many seconds ago")
        return self

    @property
    def needs(self) -> list[Need]:
        """Return the needs of all tools, and those of the collectors recorded on request."""
        period_ns = 1_000_000_000 // self.hz if self.hz else SAMPLE_NS
        samples = [Need("samples", SampleOptions(period_ns, python=True))] if self.samples else []
        cache = _CACHE_NEEDS if self.cache else []
        return [*_RECORD_NEEDS, *([_TRACE_NEED] if self.trace else []), *samples, *cache]


class GatherParams(RankParams):
    """Which traces to read."""

    traces: Annotated[str, Field(min_length=1, max_length=4096, description="directory with the traces of the ranks")]
    before: Annotated[
        str | None, Field(min_length=1, max_length=4096, description="that of an earlier run, for compare_runs")
    ] = None


class RecordSummary(BaseModel):
    """A written recording: its path, and the row count of each table."""

    model_config = ConfigDict(extra="forbid")

    id: str
    path: str
    window_s: float
    engines: dict[str, str]
    rows: dict[str, int]
    redacted: bool
