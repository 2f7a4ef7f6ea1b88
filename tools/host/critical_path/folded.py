"""The critical path as folded stacks, for a flame graph: a thread's frames, its wait, the threads it waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from whystall.tools.contract.registry import ArtifactContent
from whystall.tools.host.common.path_codes import RUNNING
from whystall.tools.host.common.places import text
from whystall.tools.host.common.timelines import Timeline
from whystall.tools.host.critical_path.findings import who
from whystall.tools.host.critical_path.rows import Row
from whystall.tools.host.critical_path.walk import World

_LINES = 5000


def folded_path(world: World, line: Timeline, rows: Sequence[Row]) -> ArtifactContent:
    """Return folded stacks, outermost frame first, weights in microseconds."""
    weights: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        frames = [f"{line.comm} ({line.tid})", *(text(frame) for frame in reversed(row.place.python))]
        what = row.mode if row.code == RUNNING else row.code
        frames.append(f"[{' '.join(filter(None, (what, row.detail, row.object)))}]")
        followed = 0
        for chain, took in row.chains.items():
            steps = [part for step in chain for part in _frames(world, step.tid, step.line, step.code, step.mode)]
            weights[tuple(frames + _without_repeats(steps))] += took
            followed += took
        if row.total_ns > followed:
            weights[tuple(frames)] += row.total_ns - followed
    lines = [
        f"{';'.join(frame.replace(';', ':') for frame in frames)} {weight // 1000}"
        for frames, weight in weights.most_common(_LINES)
        if weight >= 1000
    ]
    return ArtifactContent(
        "critical_path.folded", "Critical path by stack, microseconds", "text/plain", "\n".join(sorted(lines)) + "\n"
    )


def _frames(world: World, tid: int, line: str, code: str, mode: str) -> list[str]:
    does = mode if code == RUNNING else code
    return [part for part in (who(world, tid), line, f"[{does}]") if part]


def _without_repeats(frames: Sequence[str]) -> list[str]:
    kept: list[str] = []
    for frame in frames:
        if not kept or kept[-1] != frame:
            kept.append(frame)
    return kept
