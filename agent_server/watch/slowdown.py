"""Find a step time that rises and stays, or drifts. Pure.

Intervals are summed up in blocks. Medians of blocks are compared, so that single long steps have no effect.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Literal

from whystall.agent_server.watch.rhythm import NS

_BLOCK_VISITS, _BLOCK_NS = 16, 15 * NS
_REFERENCE, _RECENT = 4, 3
_SLOWER = 1.25
_DRIFT, _DRIFT_BLOCKS, _DRIFT_Z = 1.2, 32, 4.0
_KEPT = 64


@dataclass(frozen=True)
class Slower:
    """Steps have become slower: since when, and the usual and the present step time, ns."""

    kind: Literal["slowdown", "drift"]
    since_ns: int
    usual_ns: int
    now_ns: int


class StepTimes:
    """Step times of one place. After a report the new step time is the usual one."""

    def __init__(self, reference: list[int] | None = None) -> None:
        """`reference`: of an earlier one, if it is complete."""
        self._block: list[int] = []
        self._start_ns = 0
        self._reference: list[int] = list(reference or [])
        self._blocks: deque[tuple[int, int]] = deque(maxlen=_KEPT)  # when it began, its median

    @property
    def reference(self) -> list[int]:
        """The step times that new ones are compared with, ns; empty: not known yet."""
        return list(self._reference) if len(self._reference) == _REFERENCE else []

    @property
    def usual_ns(self) -> int:
        """The usual step time, ns; 0: not known yet."""
        return int(median(self._reference)) if len(self._reference) == _REFERENCE else 0

    def add(self, end_ns: int, interval_ns: int) -> Slower | None:
        """Record a step that took `interval_ns` and ended at `end_ns`. Return what follows from a full block."""
        if not self._block:
            self._start_ns = end_ns - interval_ns
        self._block.append(interval_ns)
        if len(self._block) < _BLOCK_VISITS or end_ns - self._start_ns < _BLOCK_NS:
            return None
        middle = int(median(self._block))
        self._block.clear()
        if len(self._reference) < _REFERENCE:
            self._reference.append(middle)
            return None
        self._blocks.append((self._start_ns, middle))
        found = self._slowdown() or self._drift()
        if found is not None:
            self._reference = [value for _, value in list(self._blocks)[-_RECENT:]] + [found.now_ns]
            self._blocks.clear()
        return found

    def _slowdown(self) -> Slower | None:
        recent = list(self._blocks)[-_RECENT:]
        if len(recent) < _RECENT:
            return None
        lowest = min(value for _, value in recent)
        if lowest < _SLOWER * self.usual_ns or lowest <= max(self._reference):
            return None
        return Slower("slowdown", recent[0][0], self.usual_ns, int(median(value for _, value in recent)))

    def _drift(self) -> Slower | None:
        """Mann-Kendall: a rise of 20 % over at least 32 blocks, of which no three make up half."""
        values = [value for _, value in self._blocks]
        if len(values) < _DRIFT_BLOCKS:
            return None
        first, last = median(values[:4]), median(values[-4:])
        if last < _DRIFT * first:
            return None
        if max(median(values[i + 2 : i + 5]) - median(values[i : i + 3]) for i in range(len(values) - 5)) > (
            0.5 * (last - first)
        ):
            return None
        score = sum((b > a) - (b < a) for i, a in enumerate(values) for b in values[i + 1 :])
        n = len(values)
        if score < _DRIFT_Z * (n * (n - 1) * (2 * n + 5) / 18) ** 0.5:
            return None
        return Slower("drift", self._blocks[0][0], int(first), int(last))
