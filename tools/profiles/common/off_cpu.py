"""Where threads waited, as stacks: the switches of a recording in the one model of stack samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import NO_TIME, StackProfile
from whystall.tools.stacks.waits import wait_stack

OFF_CPU = "off-cpu"
"""The event."""

_PLACE = ("pid", "tid", "comm", "state", "syscall", "file", "kstack", "ustack")


def stacks_of_waits(recording: Recording) -> StackProfile:
    """The event ``off-cpu`` in ns: what threads waited, also those that still did when the window ended.

    Waits that were recorded one by one have their instants; the sum of the shorter ones is one sample per place,
    without any. Raises `ToolError`: missing_collector without switches, bad_trace when nobody waited.
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
    """What is in the totals beside the segments, which are only those above a length."""
    told = segments.group_by(_PLACE).agg(told=(pl.col("end_ns") - pl.col("start_ns")).sum())
    rest = totals.join(told, on=_PLACE, how="left")
    rest = rest.with_columns(total_ns=pl.col("total_ns") - pl.col("told").fill_null(0))
    return rest.filter(pl.col("total_ns") > 0)


class _Stacks:
    """Samples as they come; a stack of the recording is built once."""

    def __init__(self, recording: Recording) -> None:
        self.builder = Builder()
        self._event = self.builder.event(OFF_CPU, "ns")
        self._frames = _column(recording, "stacks", "stack", "frames")
        self._paths = _column(recording, "files", "file", "path")
        self._known: dict[tuple[int, str, int, int], int] = {}

    def add(self, row: Mapping[str, Any], length_ns: int, at_ns: int = NO_TIME) -> None:
        """A wait, or several of one place."""
        place = (row["ustack"], row["syscall"], row["file"], row["kstack"])
        stack = self._known.get(place)
        if stack is None:
            stack = self._known[place] = self._stack(*place)
        thread = self.builder.thread(row["pid"], row["tid"], row["comm"])
        span = length_ns if at_ns != NO_TIME else 0
        self.builder.sample(stack, self._event, float(length_ns), at_ns=at_ns, span_ns=span, thread=thread)

    def _stack(self, user: int, syscall: str, file: int, kernel: int) -> int:
        frames = wait_stack(
            self._frames.get(user, []), syscall, self._paths.get(file, ""), self._frames.get(kernel, [])
        )
        return self.builder.stack(self.builder.frame(one.name, one.file, one.line, one.kind) for one in frames)


def _column(recording: Recording, table: str, key: str, value: str) -> dict[int, Any]:
    return dict(recording.table(f"switches.{table}").select(key, value).iter_rows())
