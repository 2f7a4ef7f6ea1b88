"""Build the stacks of host threads from spans: a span within another was called by it.

Profilers write spans, not stacks. Spans of a thread nest, except for errors of clocks and rounding, and for ranges that
begin in one function and end in another.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from whystall.tools.stacks.model import NO_STACK

Ints = NDArray[np.int64]

_JITTER_NS = 2_000
"""Ends may overlap by this much and still nest: profilers round to a microsecond, twice a span, and time calls into the
device's runtime by another clock."""
_PIECES = 4
"""A span that ends after its parent continues below the rest of the stack, at most this often."""
_LEAF, _LOOSE = 1, 2


class Stacks:
    """A growing tree of stacks: nodes by (parent, frame), parents before children."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.frame: list[int] = []
        self._nodes: dict[tuple[int, int], int] = {}

    def call(self, parent: int, frame: int) -> int:
        """Return the node of `frame` called by node `parent` (`NO_STACK`: outermost), adding it if new."""
        node = self._nodes.get((parent, frame))
        if node is None:
            node = self._nodes[parent, frame] = len(self.parent)
            self.parent.append(parent)
            self.frame.append(frame)
        return node


@dataclass(frozen=True)
class Calls:
    """Spans of host threads, in any order.

    `leaf`: a call into the device's runtime, which never calls the program. `loose`: a range that may begin in one
    function and end in another, overlapping both. `outer`: of equal spans the one with the smaller value is the caller.
    """

    thread: Ints
    start: Ints
    end: Ints
    frame: Ints
    leaf: NDArray[np.bool_]
    loose: NDArray[np.bool_]
    outer: Ints


@dataclass
class Nested:
    """The stacks of calls.

    `node`: the node of each call where its span began. `spans`: columns thread, start, end, node of the innermost call,
    by thread and time, without times outside any call. `odd`: the number of calls, ranges excepted, that overlap others
    without nesting.
    """

    node: Ints
    spans: tuple[Ints, Ints, Ints, Ints]
    odd: int = 0


@dataclass
class _Walk:
    """Processes threads one by one. `starts`, `stops`, `inner`: when each node was innermost."""

    stacks: Stacks
    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    inner: list[int] = field(default_factory=list)
    odd: int = 0

    def walk(self, calls: Sequence[tuple[int, int, int, int]], found: list[int]) -> None:
        """Process one thread's ordered (start, end, frame, what); append the node of each to `found`."""
        call = self.stacks.call
        ends: list[int] = []
        nodes: list[int] = []
        whats: list[int] = []
        # (start, end, turn, pieces, frame, what): spans that continue after the end of their parent
        later: list[tuple[int, int, int, int, int, int]] = []
        clock, at, count = 0, 0, len(calls)
        while at < count or later:
            if later and (at >= count or later[0][0] <= calls[at][0]):
                start, end, _, pieces, frame, what = heapq.heappop(later)
                first = False
            else:
                start, end, frame, what = calls[at]
                pieces, first = 0, True
                at += 1
            while ends and (ends[-1] <= start or (whats[-1] == _LEAF != what and end > ends[-1])):
                stop = min(ends.pop(), start)
                whats.pop()
                node = nodes.pop()
                if stop > clock:
                    self._add(clock, stop, node)
                    clock = stop
            if ends and end > ends[-1]:
                if end - ends[-1] > _JITTER_NS:
                    self.odd += first and _LOOSE not in (what, whats[-1])
                    if pieces < _PIECES:
                        heapq.heappush(later, (ends[-1], end, len(later), pieces + 1, frame, what))
                end = ends[-1]
            if nodes and start > clock:
                self._add(clock, start, nodes[-1])
            clock = max(clock, start) if nodes else start
            node = call(nodes[-1] if nodes else NO_STACK, frame)
            if first:
                found.append(node)
            ends.append(end)
            nodes.append(node)
            whats.append(what)
        while ends:
            stop, node = ends.pop(), nodes.pop()
            if stop > clock:
                self._add(clock, stop, node)
                clock = stop

    def _add(self, start: int, stop: int, node: int) -> None:
        self.starts.append(start)
        self.stops.append(stop)
        self.inner.append(node)


def nested(calls: Calls, stacks: Stacks) -> Nested:
    """Add `calls` to `stacks`; return their nodes and the innermost node over time."""
    order = np.lexsort((calls.outer, -calls.end, calls.start, calls.thread))
    thread = calls.thread[order]
    edges = [0, *(np.flatnonzero(np.diff(thread)) + 1).tolist(), len(thread)] if len(thread) else [0]
    what = np.where(calls.leaf, _LEAF, np.where(calls.loose, _LOOSE, 0))
    columns = (calls.start, calls.end, calls.frame, what)
    rows = list(zip(*(column[order].tolist() for column in columns), strict=True))
    walk = _Walk(stacks)
    found: list[int] = []
    threads: list[tuple[int, int]] = []
    for first, last in pairwise(edges):
        walk.walk(rows[first:last], found)
        threads.append((int(thread[first]), len(walk.starts)))
    node = np.empty(len(order), np.int64)
    node[order] = found
    lengths = np.diff([0, *(until for _, until in threads)])
    of_thread = np.repeat(np.array([number for number, _ in threads], np.int64), lengths)
    starts, stops, inner = (np.array(one, np.int64) for one in (walk.starts, walk.stops, walk.inner))
    return Nested(node, (of_thread, starts, stops, inner), walk.odd)
