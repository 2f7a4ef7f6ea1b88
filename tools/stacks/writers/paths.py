"""What writers need of a profile: the frames of a stack, and weights summed by stack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import polars as pl

from whystall.tools.stacks.model import NO_STACK, NO_THREAD, StackProfile


class Thread(NamedTuple):
    """A thread as written; -1 and empty if unknown."""

    pid: int = -1
    tid: int = -1
    comm: str = ""

    @property
    def title(self) -> str:
        """``python3 (123)``, as far as known."""
        known = self.tid if self.tid >= 0 else self.pid
        return f"{self.comm} ({known})".strip() if known >= 0 else self.comm


class Stacks:
    """The stacks of a profile."""

    def __init__(self, profile: StackProfile) -> None:
        self._parent = profile.stacks["parent"].to_list()
        self._frame = profile.stacks["frame"].to_list()
        self.threads = {NO_THREAD: Thread()} | {row[0]: Thread(*row[1:]) for row in profile.threads.iter_rows()}

    def frames(self, stack: int) -> list[int]:
        """Return rows of the frames of `stack`, the innermost first."""
        found = []
        while stack != NO_STACK:
            found.append(self._frame[stack])
            stack = self._parent[stack]
        return found


def summed(profile: StackProfile, event: int, *by: str) -> Iterator[tuple[int | float, ...]]:
    """Return (each of `by`, weight) of an event, weights summed."""
    chosen = profile.samples.filter(pl.col("event") == event)
    yield from chosen.group_by(by, maintain_order=True).agg(pl.col("weight").sum()).iter_rows()


def figure(value: float) -> str:
    """Return a weight as text without loss."""
    return str(int(value)) if value.is_integer() and abs(value) < 1 << 63 else repr(value)
