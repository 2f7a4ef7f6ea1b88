"""Follow waits between ranks to their end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set


def roots_and_cycles(edges: Mapping[int, Set[int]], lacking: Set[int]) -> tuple[set[int], list[set[int]]]:
    """Return, of the ranks that others wait for (`lacking`), those that wait for no rank, and those in cycles from
    which none waits for a rank outside. `edges`: from each waiting rank to those it waits for."""
    roots: set[int] = set()
    circles: list[set[int]] = []
    for ranks in _components({rank: edges.get(rank, set()) for rank in {*edges, *lacking}}):
        leaves = any(target not in ranks for rank in ranks for target in edges.get(rank, ()))
        if leaves:
            continue
        if len(ranks) > 1:
            circles.append(ranks)
        else:
            roots |= ranks & lacking
    return roots, circles


def _components(edges: Mapping[int, Set[int]]) -> Iterator[set[int]]:
    """Yield the strongly connected parts, single ranks included (Kosaraju, without recursion)."""
    nodes = sorted({*edges, *(target for targets in edges.values() for target in targets)})
    back: dict[int, list[int]] = {node: [] for node in nodes}
    for node, targets in edges.items():
        for target in targets:
            back[target].append(node)
    finished: list[int] = []
    visited: set[int] = set()
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
    taken: set[int] = set()
    for node in reversed(finished):
        if node in taken:
            continue
        part, todo = set[int](), [node]
        taken.add(node)
        while todo:
            current = todo.pop()
            part.add(current)
            fresh_ones = [one for one in back[current] if one not in taken]
            taken.update(fresh_ones)
            todo += fresh_ones
        yield part
