"""Write the critical path as folded stacks, for a flame graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from whystall.tools.contract.registry import ArtifactContent
from whystall.tools.host.critical_path.stacks import PathFrame

_LINES = 5000


def folded_path(stacks: Mapping[tuple[PathFrame, ...], int]) -> ArtifactContent:
    """Return folded stacks, outermost frame first, weights in microseconds. `stacks`: `path_stacks`."""
    weights: Counter[tuple[PathFrame, ...]] = Counter(stacks)
    lines = [
        f"{';'.join(_name(frame).replace(';', ':') for frame in frames)} {weight // 1000}"
        for frames, weight in weights.most_common(_LINES)
        if weight >= 1000
    ]
    return ArtifactContent(
        "critical_path.folded", "Critical path by stack, microseconds", "text/plain", "\n".join(sorted(lines)) + "\n"
    )


def _name(frame: PathFrame) -> str:
    if frame.sort in ("thread", "line"):
        return frame.text
    return f"[{' '.join(filter(None, frame[1:]))}]"
