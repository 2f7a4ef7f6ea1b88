"""cpu_profile: which code has the CPUs, by sampling, per frame and per thread."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.contract.params import LiveParams
from whystall.tools.contract.registry import ArtifactContent, Judgement, Tool
from whystall.tools.contract.result import Model
from whystall.tools.profiles.cpu_shares import Shares, shares_of
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.events import choose_event
from whystall.tools.stacks.recorded import NOW, stacks_of
from whystall.tools.stacks.tree import CallTree

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
    the bounds in which it lies with 95 % (null where weights are no counts). `code`: file and line, or the module.
    `path`: its callers where it is seen most, the outermost first. `window_pct`: of the thread that is in it most, of
    the window; null when not observed live.
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
    samples: int
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
    samples: int
    frame: str


class KindRow(Model):
    """In what kind of code the samples were: kernel, native, python, ... `under_pct`: also in what that called."""

    kind: str
    self_pct: float
    under_pct: float


class Data(Model):
    """`verdict`: profiled, few_samples (the bounds are wide), not_on_cpu (nobody had a CPU at any tick: that is
    waiting, or having nothing to do, and says nothing of health). `cpus`: how many CPUs were kept busy on average
    (null when not observed live). Frames by their own share, the largest first.
    """

    verdict: Literal["profiled", "few_samples", "not_on_cpu"] = "not_on_cpu"
    event: str = ""
    unit: str = ""
    hz: float | None = None
    samples: int = 0
    cpus: float | None = None
    frames: list[FrameRow] = Field(default_factory=list)
    threads: list[ThreadRow] = Field(default_factory=list)
    kinds: list[KindRow] = Field(default_factory=list)


def _needs(params: Params) -> list[Need]:
    return [Need(NOW, {"period_ns": 1_000_000_000 // params.hz, "python": 1})]


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Who had the CPUs in `recording`."""
    profile = stacks_of(recording)
    if profile.samples.is_empty():
        return Judgement(findings=[], data=Data(), seen=0)
    event = choose_event(profile, params.event)
    window_ns = recording.manifest.window_ns if recording.manifest.host else 0
    shares = shares_of(profile, event, window_ns)
    ranked = shares.by_own
    frames = [_frame(shares, number, window_ns) for number in ranked[: max(params.top, _FINDINGS)]]
    lines = [_frame(shares, number, window_ns) for number in shares.python_by_total[:_LINES]]
    threads = [ThreadRow(**thread._asdict()) for thread in shares.threads]
    name, unit, period = profile.events.filter(event=event).select("name", "unit", "period").row(0)
    unnamed = shares.unnamed
    return Judgement(
        findings=_findings(recording, frames[:_FINDINGS], lines, name),
        data=Data(
            verdict="profiled" if shares.samples >= _FEW else "few_samples",
            event=name,
            unit=unit,
            hz=1e9 / period if unit == "ns" and period else None,
            samples=shares.samples,
            cpus=shares.weight / window_ns if window_ns and unit == "ns" else None,
            frames=frames[: params.top],
            threads=threads[: params.top],
            kinds=[KindRow(**kind._asdict()) for kind in shares.kinds],
        ),
        seen=shares.samples,
        totals={"frames": len(ranked), "threads": len(threads)},
        artifacts=[_folded(shares.tree, period if unit == "ns" else 0.0)],
        not_seen=[("user_symbols", f"{100 * unnamed:.0f} %")] if unnamed >= _UNNAMED else [],
        basis=shares.tree,
    )


def _frame(shares: Shares, number: int, window_ns: int) -> FrameRow:
    row = shares.tree.frames.row(number, named=True)
    file = row["file"].rpartition("/")[2]
    own, own_low, own_high = shares.bounded(shares.tree.frame_own[0][number])
    total, low, high = shares.bounded(shares.tree.frame_total[0][number])
    return FrameRow(
        name=row["name"],
        code=f"{file}:{row['line']}" if row["line"] else file,
        kind=row["kind"],
        self_pct=own,
        self_low_pct=own_low,
        self_high_pct=own_high,
        total_pct=total,
        low_pct=low,
        high_pct=high,
        samples=shares.count(shares.tree.frame_total[0][number]),
        window_pct=min(100.0, 100 * shares.most_of_a_thread(number) / window_ns) if window_ns else None,
        path=shares.callers(number),
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
        attributes["path"] = " < ".join([frame.name, *reversed(frame.path)][:5])
    return Finding(
        kind="profile.frame",
        subject=Subject(type="profile", pid=target.sole_pid, comm=target.comm, cgroup=target.cgroup),
        interval=Interval(start_ns=0, end_ns=recording.manifest.window_ns),
        metrics={name: value for name, value in metrics.items() if value is not None},
        attributes=attributes,
        severity=Severity.INFO,
        polarity=Polarity.NORMAL,
    )


def _folded(tree: CallTree, period: float) -> ArtifactContent:
    """Folded stacks, the process first and the innermost frame last; weights are samples, or what the event counts."""
    scale = 1.0 / period if period else 1.0
    labels = [label.replace(";", ":") for label in tree.labels]
    lines = []
    for node in tree.own[0].nonzero()[0]:
        frames = ";".join(labels[int(tree.frame[above])] for above in tree.path(int(node)))
        lines.append(f"{frames} {tree.own[0][node] * scale:.10g}\n")
    return ArtifactContent("cpu.folded", "CPU samples by stack", "text/plain", "".join(sorted(lines)))


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
