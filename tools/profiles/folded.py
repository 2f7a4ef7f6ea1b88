"""A tree as folded stacks, which every tool that draws flame graphs reads."""

from __future__ import annotations

from whystall.tools.stacks.tree import CallTree


def folded_text(tree: CallTree) -> str:
    """A line per stack, ``outermost;...;innermost weight``; weights keep their fractions."""
    labels = [label.replace(";", ":") for label in tree.labels]
    lines = []
    for node in tree.own[0].nonzero()[0]:
        frames = ";".join(labels[int(tree.frame[above])] for above in tree.path(int(node)))
        lines.append(f"{frames} {tree.own[0][node]:.15g}\n")
    return "".join(sorted(lines))
