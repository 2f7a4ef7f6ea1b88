"""cpu_profile: which code uses the CPUs, by sampling, per frame and per thread."""

from __future__ import annotations

from typing import Annotated, Literal

import polars as pl
from pydantic import Field

from whystall.tools.collect.options import SampleOptions
from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.contract.params import LiveParams
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.contract.result import Model
from whystall.tools.profiles.common.events import LOST
from whystall.tools.profiles.common.ranked_frames import Ranked, Share, ranked
from whystall.tools.profiles.cpu_profile.shares import CpuShares
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.recorded import NOW, stacks_of

# With fewer samples a share of one half has bounds of 18 points or more: too wide to rank frames.
_FEW = 30
_FINDINGS, _LINES = 10, 5
# Lower bounds of the share of a frame itself and of a Python line in total that make a finding.
_LEAST_OWN, _LEAST_LINE = 0.01, 0.05
# From this share on, frames without a symbol are reported as not seen.
_UNNAMED = 0.05


class Params(LiveParams):
    """Parameters of cpu_profile."""

    hz: Annotated[
        int,
        Field(ge=1, le=999, description="samples per second and CPU; 99 keeps out of step with timers of 10 ms or 1 s"),
    ] = 99
    event: Annotated[str, Field(max_length=256, description="event of the file, where it has several")] = ""


class FrameRow(Model):
    """A frame: `self` without, `total` with its callees, in per cent of all CPU time, with 95 % bounds.

    Bounds and `samples` are null where weights were measured, not sampled. `code`: file and line, or the module.
    `path`: the callers on the heaviest path, outermost first. `window_pct`: share of the window in the thread that
    spent most time in it; null when not observed live.
    """

    name: str
    code: str
    kind: str
    self_pct: float
    self_low_pct: float | None
    self_high_pct: float | None
    total_pct: float
    low_pct: float | None
    high_pct: float | None
    samples: int | None
    window_pct: float | None
    path: list[str]


class ThreadRow(Model):
    """A thread: `cpu_pct` of one CPU (null when not observed live), `share_pct` of all samples, most frequent frame."""

    pid: int
    tid: int
    comm: str
    cpu_pct: float | None
    share_pct: float
    samples: int | None
    frame: str


class KindRow(Model):
    """A kind of code: kernel, native, python, ... `under_pct`: with the code that it called."""

    kind: str
    self_pct: float
    under_pct: float


class Data(Model):
    """Result of cpu_profile; frames by own share, largest first.

    `verdict`: profiled; few_samples (wide bounds); not_on_cpu (no thread ran at any tick: waiting or idle, neither good
    nor bad); few_ticks (likewise, with too few ticks to exclude a busy target). `cpus`: average number of busy CPUs
    (null when not observed live).
    """

    verdict: Literal["profiled", "few_samples", "not_on_cpu", "few_ticks"] = "not_on_cpu"
    event: str = ""
    unit: str = ""
    hz: float | None = None
    samples: int = 0
    cpus: float | None = None
    frames: list[FrameRow] = Field(default_factory=list)
    threads: list[ThreadRow] = Field(default_factory=list)
    kinds: list[KindRow] = Field(default_factory=list)


def _needs(params: Params) -> list[Need]:
    return [Need(NOW, SampleOptions(1_000_000_000 // params.hz, python=True))]


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Rank the code that used the CPUs in `recording`."""
    profile = stacks_of(recording)
    lost = profile.events.filter(unit=LOST)["event"]
    if profile.samples.filter(~pl.col("event").is_in(lost.implode())).is_empty():
        return Judgement(findings=[], data=Data(verdict=_unseen(recording, profile)), seen=0)
    found = ranked(profile, params.event)
    window_ns = recording.manifest.window_ns if recording.manifest.host and found.unit == "ns" else 0
    shares = CpuShares(found, window_ns)
    frames = [_frame(found, shares, share) for share in found.itself(max(params.top, _FINDINGS))]
    lines = [_frame(found, shares, share) for share in shares.lines(_LINES)]
    threads = shares.threads()
    period = float(found.profile.events["period"][0])
    few = found.samples is not None and found.samples < _FEW
    return Judgement(
        findings=_findings(recording, frames[:_FINDINGS], lines, found.event),
        data=Data(
            verdict="few_samples" if few else "profiled",
            event=found.event,
            unit=found.unit,
            hz=1e9 / period if found.unit == "ns" and period else None,
            samples=found.profile.samples.height if found.samples is None else found.samples,
            cpus=found.weight / window_ns if window_ns else None,
            frames=frames[: params.top],
            threads=[ThreadRow(**thread._asdict()) for thread in threads[: params.top]],
            kinds=[KindRow(**kind._asdict()) for kind in shares.kinds()],
        ),
        seen=found.profile.samples.height,
        totals={"frames": int((found.tree.frame_own[0] > 0).sum()), "threads": len(threads)},
        artifacts=[found.folded("cpu.folded")],
        not_seen=[("user_symbols", f"{100 * shares.unnamed:.0f} %")] if shares.unnamed >= _UNNAMED else [],
        basis=found.tree,
    )


def _unseen(recording: Recording, profile: StackProfile) -> Literal["not_on_cpu", "few_ticks"]:
    """Return the verdict without samples; in an observed window each CPU had one tick per period."""
    periods = profile.events.filter((pl.col("unit") == "ns") & (pl.col("period") > 0))["period"].to_list()
    window_ns = recording.manifest.window_ns if recording.manifest.host else 0
    return "few_ticks" if periods and 0 < window_ns < _FEW * min(periods) else "not_on_cpu"


def _frame(found: Ranked, shares: CpuShares, share: Share) -> FrameRow:
    return FrameRow(window_pct=shares.of_a_thread(found.tree.labels[share.frame]), **share.fields(FrameRow))


def _findings(recording: Recording, frames: list[FrameRow], lines: list[FrameRow], event: str) -> list[Finding]:
    """Return findings of the busiest code; polarity normal, since use of a CPU is no fault."""
    chosen = [f for f in frames if (f.self_pct if f.self_low_pct is None else f.self_low_pct) >= 100 * _LEAST_OWN]
    for line in lines:
        surely = line.total_pct if line.low_pct is None else line.low_pct
        if surely >= 100 * _LEAST_LINE and line not in chosen:
            chosen.append(line)
    return [_finding(recording, frame, event) for frame in chosen]


def _finding(recording: Recording, frame: FrameRow, event: str) -> Finding:
    target = recording.manifest.target
    metrics = {
        "self_pct": frame.self_pct,
        "total_pct": frame.total_pct,
        "low_pct": frame.low_pct,
        "high_pct": frame.high_pct,
        "samples": frame.samples,
        "window_pct": frame.window_pct,
    }
    attributes = {"name": frame.name, "event": event, "frame_kind": frame.kind}
    if frame.code:
        attributes["code"] = frame.code
    if frame.path:
        attributes["path"] = " < ".join(frame.path[::-1][:5])
    return Finding(
        kind="profile.frame",
        subject=Subject(type="profile", pid=target.sole_pid, comm=target.comm, cgroup=target.cgroup),
        interval=Interval(start_ns=0, end_ns=recording.manifest.window_ns),
        metrics={name: value for name, value in metrics.items() if value is not None},
        attributes=attributes,
        severity=Severity.INFO,
        polarity=Polarity.NORMAL,
    )


TOOL = Tool(
    name="cpu_profile",
    title="CPU profile",
    description=(
        "Which code has the CPUs, by samples of kernel, native and Python frames: frames ranked with 95 % bounds, "
        "threads, kinds of code. Also of a file."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset({"profile.frame"}),
    cost=2.0,
    reads="stacks",
)
