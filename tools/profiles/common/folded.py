"""Write a call tree as folded stacks, the input format of flame graph tools."""

from __future__ import annotations

import numpy as np

from whystall.tools.contract.registry import ArtifactContent
from whystall.tools.stacks.tree import CallTree

_STACKS = 100_000
_TEXT = 16 << 20


def folded(tree: CallTree, name: str, unit: str, one: float = 1.0) -> ArtifactContent:
    """Return the stacks of a tree as the file `name`, one line ``outermost;...;innermost weight`` each.

    Weights are in multiples of `one`. Only the heaviest 100,000 stacks, in at most 16 MiB, are written; the title
    states when stacks are left out.
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
