"""Merge the stacks of ranks into one tree whose branches name their ranks.

The form is that of STAT (Arnold et al., "Stack Trace Analysis for Large Scale Debugging", IPDPS 2007): a rank that is
somewhere else stands apart at first sight, however many others there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from whystall.tools.timeline.rank_data.rank_list import rank_list

_MOST_LINES = 2_000


@dataclass
class _Node:
    ranks: list[int] = field(default_factory=list)
    below: dict[str, _Node] = field(default_factory=dict)


def stack_tree(stacks: Iterable[tuple[int, Sequence[str]]]) -> list[str]:
    """Return the lines of a tree of `stacks`: rank, and frames with the innermost first. At most 2,000 lines; frames
    that all ranks of a branch share are on one level."""
    root = _Node()
    for rank, frames in stacks:
        at = root
        at.ranks.append(rank)
        for frame in reversed(frames):
            at = at.below.setdefault(frame, _Node())
            at.ranks.append(rank)
    lines = list(_lines(root, 0))
    return lines if len(lines) <= _MOST_LINES else [*lines[:_MOST_LINES], "..."]


def _lines(node: _Node, depth: int) -> Iterator[str]:
    """Yield the branches below `node`, those of most ranks first."""
    for frame, below in sorted(node.below.items(), key=lambda one: (-len(one[1].ranks), one[0])):
        chain = [frame]
        at = below
        while len(at.below) == 1 and len(next(iter(at.below.values())).ranks) == len(at.ranks):
            ((frame, at),) = at.below.items()
            chain.append(frame)
        yield f"{'  ' * depth}[{rank_list(below.ranks)}] {' > '.join(chain)}"
        yield from _lines(at, depth + 1)
