"""Follow waits between ranks to their end."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Set
from typing import Any, Protocol, TypeVar


class _Sortable(Hashable, Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


Node = TypeVar("Node", bound=_Sortable)
"""A rank, or whatever else stands for one."""


def roots_and_cycles(edges: Mapping[Node, Set[Node]], lacking: Set[Node]) -> tuple[set[Node], list[set[Node]]]:
    """Return, of the ranks that others wait for (`lacking`), those that wait for no rank, and those in cycles from
    which none waits for a rank outside. `edges`: from each waiting rank to those it waits for."""
    roots: set[Node] = set()
    circles: list[set[Node]] = []
    for ranks in _components({rank: edges.get(rank, set()) for rank in {*edges, *lacking}}):
        leaves = any(target not in ranks for rank in ranks for target in edges.get(rank, ()))
        if leaves:
            continue
        if len(ranks) > 1:
            circles.append(ranks)
        else:
            roots |= ranks & lacking
    return roots, circles


def _components(edges: Mapping[Node, Set[Node]]) -> Iterator[set[Node]]:
    """Yield the strongly connected parts, single ranks included (Kosaraju, without recursion)."""
    nodes = sorted({*edges, *(target for targets in edges.values() for target in targets)})
    back: dict[Node, list[Node]] = {node: [] for node in nodes}
    for node, targets in edges.items():
        for target in targets:
            back[target].append(node)
    finished: list[Node] = []
    visited: set[Node] = set()
    for node in nodes:
        stack = [(node, iter(sorted(edges.get(node, ()))))] if node not in visited else []
        visited.add(node)
        while stack:
            current, following = stack[-1]
            fresh = next((target for target in following if target not in visited), None)
            if fresh is None:
                finished.append(current)
                stack.pop()
            else:
                visited.add(fresh)
                stack.append((fresh, iter(sorted(edges.get(fresh, ())))))
    taken: set[Node] = set()
    for node in reversed(finished):
        if node in taken:
            continue
        part, todo = set[Node](), [node]
        taken.add(node)
        while todo:
            current = todo.pop()
            part.add(current)
            fresh_ones = [one for one in back[current] if one not in taken]
            taken.update(fresh_ones)
            todo += fresh_ones
        yield part
