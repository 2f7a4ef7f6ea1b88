"""flame_graph: the share of each frame of a profile; of device work also the code that launched it."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import Field

from whystall.tools.contract.findings import Finding, Interval, Polarity, Subject
from whystall.tools.contract.params import Params as BaseParams
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.profiles.common.device_frames import UNKNOWN_LAUNCH
from whystall.tools.profiles.common.ranked_frames import Ranked, Share, ranked
from whystall.tools.profiles.flame_graph.data import Data, DeviceRow, FrameRow, KindRow, LaunchRow, Verdict
from whystall.tools.profiles.flame_graph.launchers import launchers
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.recorded import NOW, stacks_of

_HALF_PCT = 50.0
_UNKNOWN_PCT = 5.0
# With fewer samples the bounds of a share of one half are wider than 10 points to either side.
_FEW_SAMPLES = 100
_FINDINGS = 10
_LAUNCHERS = 3
_PATH = 5
# The label that `whystall.tools.stacks.tree` gives to samples without a stack.
NO_STACK_LABEL = "[no stack]"


class Params(BaseParams):
    """Parameters of flame_graph."""

    rank: Annotated[int | None, Field(ge=0, le=999_999, description="rank, of a directory of traces")] = None
    step: Annotated[int | None, Field(ge=0, le=999_999_999, description="only the profiler step of this number")] = None
    event: Annotated[
        str, Field(max_length=256, description="of several events, this: device, host, off-cpu, accelerator-time")
    ] = ""
    idle: Annotated[bool, Field(description="the device's gaps as frames too")] = False
    top: Annotated[int, Field(ge=1, le=200, description="rows per table")] = 10


def _needs(params: Params) -> list[Need]:
    return [Need(NOW)]


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Rank the frames of an event in `recording`. Raises `ToolError` (bad_argument): ambiguous or unknown event."""
    profile = stacks_of(recording)
    if profile.samples.is_empty():
        return Judgement(findings=[], data=Data(verdict="no_samples"), seen=0)
    found = ranked(profile, params.event)
    itself = found.itself(max(params.top, _FINDINGS))
    kinds, tree = dict(found.kinds), found.tree
    idle = kinds.get("idle", 0.0)
    data = Data(
        verdict=_verdict(itself, idle),
        reasons=_reasons(found),
        event=found.event,
        unit=found.unit,
        weight=found.weight,
        samples=found.samples,
        stacks=len(tree),
        frames=[FrameRow(**share.fields(FrameRow)) for share in itself[: params.top]],
        inclusive=[FrameRow(**share.fields(FrameRow)) for share in found.with_calls(params.top)],
        kinds=[KindRow(kind=kind, self_pct=pct) for kind, pct in found.kinds],
        devices=_devices(found, params.top),
        idle_pct=idle if "idle" in kinds else None,
    )
    return Judgement(
        findings=[_finding(share, found, recording) for share in itself[:_FINDINGS]],
        data=data,
        seen=found.profile.samples.height,
        totals={"frames": int((tree.frame_own[0] > 0).sum()), "devices": int(_is_device(found).sum())},
        artifacts=[found.folded("stacks.folded")],
        basis=tree,
    )


def _verdict(itself: list[Share], idle: float) -> Verdict:
    if idle >= _HALF_PCT:
        return "idle"
    if not itself:  # samples that weigh nothing
        return "no_samples"
    least = itself[0].self_pct if itself[0].self_low_pct is None else itself[0].self_low_pct
    return "concentrated" if least >= _HALF_PCT else "spread"


def _reasons(found: Ranked) -> list[str]:
    share = dict(
        zip(found.tree.labels, (100 * found.tree.frame_total[0] / (found.weight or 1.0)).tolist(), strict=True)
    )
    doubts = {
        "few_samples": found.samples is not None and found.samples < _FEW_SAMPLES,
        "launch_unknown": share.get(UNKNOWN_LAUNCH, 0.0) > _UNKNOWN_PCT,
        "no_stacks": share.get(NO_STACK_LABEL, 0.0) > _HALF_PCT,
    }
    return [reason for reason, true in doubts.items() if true]


def _is_device(found: Ranked) -> NDArray[np.bool_]:
    """Mark the frames of device work in the tree."""
    kinds: NDArray[np.bool_] = (found.tree.frames["kind"] == "device").to_numpy()
    worked: NDArray[np.bool_] = found.tree.frame_total[0] > 0
    return kinds & worked


def _devices(found: Ranked, top: int) -> list[DeviceRow]:
    total = found.tree.frame_total[0]
    frames = np.flatnonzero(_is_device(found))
    frames = frames[np.argsort(-total[frames], kind="stable")][:top]
    by = launchers(found.tree, frames.tolist(), _LAUNCHERS)
    counts = _counts(found)
    return [
        DeviceRow(
            name=found.tree.labels[frame],
            pct=100 * total[frame] / found.weight,
            weight=float(total[frame]),
            count=counts.get(found.tree.labels[frame]),
            launched_by=[LaunchRow(operator=one.operator, code=one.code, pct=one.pct) for one in by[frame]],
        )
        for frame in frames.tolist()
    ]


def _counts(found: Ranked) -> dict[str, int]:
    """Count the runs of each device frame: samples with a duration that have it innermost."""
    profile = found.profile
    runs = profile.samples.filter(pl.col("span_ns") > 0)
    named = runs.join(profile.stacks, on="stack").join(profile.frames.filter(pl.col("kind") == "device"), on="frame")
    return dict(named.group_by("name").len().iter_rows())


def _finding(share: Share, found: Ranked, recording: Recording) -> Finding:
    """Return a normal finding: only a comparison shows whether a share is too large."""
    metrics = {
        "self_pct": share.self_pct,
        "total_pct": share.total_pct,
        "low_pct": share.low_pct,
        "high_pct": share.high_pct,
        "samples": share.samples,
    }
    texts = {
        "name": share.name,
        "code": share.code,
        "path": " < ".join(reversed(share.path[-_PATH:])),
        "event": found.event,
        "frame_kind": share.kind,
    }
    return Finding(
        kind="profile.frame",
        subject=Subject(type="profile"),
        interval=Interval(start_ns=0, end_ns=recording.manifest.window_ns),
        metrics={name: value for name, value in metrics.items() if value is not None},
        attributes={name: text for name, text in texts.items() if text},
        polarity=Polarity.NORMAL,
    )


TOOL = Tool(
    name="flame_graph",
    title="Flame graph",
    description=(
        "Which frames of a profile take how much. Of an accelerator's (Kineto, Ascend, Nsight): kernels beneath the "
        "Python and operators that launched them. Also of recordings, folded stacks, perf script, pprof, "
        "speedscope, Chrome traces, py-spy. Flame graph and folded stacks as artifacts."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset({"profile.frame"}),
    cost=1.0,
    reads="stacks",
)
