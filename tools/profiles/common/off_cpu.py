"""Convert the switches of a recording to stack samples of the waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import NO_TIME, StackProfile
from whystall.tools.stacks.waits import Places, wait_stack

OFF_CPU = "off-cpu"
"""Name of the event."""

_PLACE = ("pid", "tid", "comm", "state", "syscall", "file", "kstack", "ustack")


def stacks_of_waits(recording: Recording) -> StackProfile:
    """Return the event ``off-cpu`` in ns: the time threads waited, open waits at the end of the window included.

    Waits recorded singly have their start times; the shorter ones are one sample per place without a time. Raises
    `ToolError`: missing_collector without switches, bad_trace if no thread waited.
    """
    segments, totals = recording.table("switches.segments"), recording.table("switches.totals")
    entry = recording.manifest.collectors["switches"]
    made = _Stacks(recording)
    for row in segments.iter_rows(named=True):
        made.add(row, row["end_ns"] - row["start_ns"], row["start_ns"])
    for row in _shorter(totals, segments).iter_rows(named=True):
        made.add(row, row["total_ns"])
    notes = tuple((spot.code, spot.detail) for spot in entry.not_seen)
    profile = made.builder.profile(entry.engine, notes=notes)
    if profile.samples.is_empty():
        raise ToolError(ErrorCode.BAD_TRACE, "no thread waited in this recording", "record while the program waits")
    return profile


def _shorter(totals: pl.DataFrame, segments: pl.DataFrame) -> pl.DataFrame:
    """Return the totals minus the segments, which are only the waits above a threshold."""
    listed = segments.group_by(_PLACE).agg(listed=(pl.col("end_ns") - pl.col("start_ns")).sum())
    rest = totals.join(listed, on=_PLACE, how="left")
    rest = rest.with_columns(total_ns=pl.col("total_ns") - pl.col("listed").fill_null(0))
    return rest.filter(pl.col("total_ns") > 0)


class _Stacks:
    """Collects samples; each stack of the recording is built once."""

    def __init__(self, recording: Recording) -> None:
        self.builder = Builder()
        self._event = self.builder.event(OFF_CPU, "ns")
        self._places = Places(recording)
        self._known: dict[tuple[int, str, int, int], int] = {}

    def add(self, row: Mapping[str, Any], length_ns: int, at_ns: int = NO_TIME) -> None:
        """Add a wait, or the sum of several in one place."""
        place = (row["ustack"], row["syscall"], row["file"], row["kstack"])
        stack = self._known.get(place)
        if stack is None:
            stack = self._known[place] = self._stack(*place)
        thread = self.builder.thread(row["pid"], row["tid"], row["comm"])
        span = length_ns if at_ns != NO_TIME else 0
        self.builder.sample(stack, self._event, float(length_ns), at_ns=at_ns, span_ns=span, thread=thread)

    def _stack(self, user: int, syscall: str, file: int, kernel: int) -> int:
        places = self._places
        frames = wait_stack(places.stack(user), syscall, places.path(file), places.stack(kernel))
        return self.builder.stack(self.builder.frame(one.name, one.file, one.line, one.kind) for one in frames)
