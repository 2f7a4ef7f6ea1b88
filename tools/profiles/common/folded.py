"""A tree as folded stacks, which every tool that draws flame graphs reads."""

from __future__ import annotations

import numpy as np

from whystall.tools.contract.registry import ArtifactContent
from whystall.tools.stacks.tree import CallTree

_STACKS = 100_000
_TEXT = 16 << 20


def folded(tree: CallTree, name: str, unit: str, one: float = 1.0) -> ArtifactContent:
    """The stacks of a tree as the file `name`, ``outermost;...;innermost weight`` a line, weights with their fractions,
    in multiples of `one`: the heaviest, at most 100,000 and 16 MiB of them; the title tells when those are not all.
    """
    own = tree.own[0]
    weighing = np.flatnonzero(own)
    heaviest = weighing[np.argsort(-own[weighing], kind="stable")[:_STACKS]]
    labels = [label.replace(";", ":") for label in tree.labels]
    lines: list[str] = []
    size = 0
    for node in heaviest.tolist():
        frames = ";".join([labels[int(tree.frame[above])] for above in tree.path(node)])
        line = f"{frames} {own[node] / one:.15g}\n"
        size += len(line)
        if size > _TEXT:
            break
        lines.append(line)
    left = f", the heaviest {len(lines)} of {len(weighing)}" if len(lines) < len(weighing) else ""
    return ArtifactContent(name, f"Folded stacks, {unit}{left}", "text/plain", "".join(sorted(lines)))
