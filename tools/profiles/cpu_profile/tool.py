"""cpu_profile: which code has the CPUs, by sampling, per frame and per thread."""

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

# Below this many samples a share of a half is known to within 18 points: too little to rank anything by.
_FEW = 30
_FINDINGS, _LINES = 10, 5
# Findings are made of frames that have surely this share themselves, and of Python lines with that share in total.
_LEAST_OWN, _LEAST_LINE = 0.01, 0.05
# Frames without a name are said to hide something where they have such a share.
_UNNAMED = 0.05


class Params(LiveParams):
    """Parameters of cpu_profile."""

    hz: Annotated[
        int,
        Field(ge=1, le=999, description="samples per second and CPU; 99 keeps out of step with timers of 10 ms or 1 s"),
    ] = 99
    event: Annotated[str, Field(max_length=256, description="event of the file, where it has several")] = ""


class FrameRow(Model):
    """A frame: `self` is the frame itself, `total` also what it calls, in per cent of all samples' CPU time, each with
    the bounds in which it lies with 95 % (null, as `samples` is, where weights were measured and not sampled). `code`:
    file and line, or the module. `path`: its callers where it is seen most, the outermost first. `window_pct`: of the
    thread that is in it most, of the window; null when not observed live.
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
    """A thread: `cpu_pct` of one CPU over the window (null when not observed live), `share_pct` of all samples, and the
    frame it was in most.
    """

    pid: int
    tid: int
    comm: str
    cpu_pct: float | None
    share_pct: float
    samples: int | None
    frame: str


class KindRow(Model):
    """In what kind of code the samples were: kernel, native, python, ... `under_pct`: also in what that called."""

    kind: str
    self_pct: float
    under_pct: float


class Data(Model):
    """`verdict`: profiled, few_samples (the bounds are wide), not_on_cpu (nobody had a CPU at any tick: that is
    waiting, or having nothing to do, and says nothing of health), few_ticks (the same, at so few ticks that a busy
    target may have been missed). `cpus`: how many CPUs were kept busy on average
    (null when not observed live). Frames by their own share, the largest first.
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
    """Who had the CPUs in `recording`."""
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
    """What it says that nobody was seen: each CPU had a tick per period, where a window was observed."""
    periods = profile.events.filter((pl.col("unit") == "ns") & (pl.col("period") > 0))["period"].to_list()
    window_ns = recording.manifest.window_ns if recording.manifest.host else 0
    return "few_ticks" if periods and 0 < window_ns < _FEW * min(periods) else "not_on_cpu"


def _frame(found: Ranked, shares: CpuShares, share: Share) -> FrameRow:
    return FrameRow(
        name=share.name,
        code=share.code,
        kind=share.kind,
        self_pct=share.self_pct,
        self_low_pct=share.self_low_pct,
        self_high_pct=share.self_high_pct,
        total_pct=share.total_pct,
        low_pct=share.low_pct,
        high_pct=share.high_pct,
        samples=share.samples,
        window_pct=shares.of_a_thread(found.tree.labels[share.frame]),
        path=list(share.path),
    )


def _findings(recording: Recording, frames: list[FrameRow], lines: list[FrameRow], event: str) -> list[Finding]:
    """What the CPUs are busy with; to be busy is no fault, so it is told and not accused."""
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
        "threads, kinds of code. Also of a file. Flame graph and folded stacks as artifacts."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset({"profile.frame"}),
    cost=2.0,
    reads="stacks",
)
