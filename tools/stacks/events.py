"""Choose one of the events of a profile."""

from __future__ import annotations

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.stacks.model import StackProfile

_TIME_UNITS = frozenset({"ns", "us", "ms", "s", "nanoseconds", "microseconds", "milliseconds", "seconds"})
_TIME_NAMES = ("cpu-clock", "task-clock", "cpu_clock", "task_clock", "cycles", "ref-cycles", "wall", "cpu", "time")
_LISTED = 12
LOST = "lost"
"""The unit of an event that counts lost samples: nothing to draw."""


def choose_event(profile: StackProfile, name: str = "") -> int:
    """Return the row of the event to draw: the one called `name`; without a name the source's default or the only one,
    else the first that measures time.

    A pprof file has a default (``default_sample_type``, else its last type, as ``pprof`` does), which its reader puts
    first. Events without samples are not chosen. Weights of different events are never added up. Raises `ToolError`:
    bad_argument when there is no such event or none measures time, bad_trace when there are no samples.
    """
    counted = set(profile.samples["event"].unique().to_list())
    counted -= set(profile.events.filter(pl.col("unit") == LOST)["event"].to_list())
    if not counted:
        raise ToolError(
            ErrorCode.BAD_TRACE,
            "the profile is empty: it has no samples",
            "profile for longer, or while the program runs",
        )
    events = profile.events.filter(pl.col("event").is_in(counted)).sort("event")
    if name:
        named = [event for event, one, unit, _ in events.iter_rows() if name in (one, f"{one}/{unit}")]
        if not named:
            message = f"the profile has no event {name}"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"events: {_list(events)}")
        return int(named[0])
    if events.height == 1 or (profile.source == "pprof" and 0 in counted):
        return int(events["event"][0])
    for event, one, unit, _ in events.iter_rows():
        if unit in _TIME_UNITS or one.split(":")[0].strip("/") in _TIME_NAMES:
            return int(event)
    message = "the profile counted several events, and they cannot be added up"
    raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"give --event, one of: {_list(events)}")


def _list(events: pl.DataFrame) -> str:
    texts = [f"{name} ({unit})" for _, name, unit, _ in events.head(_LISTED).iter_rows()]
    return ", ".join(texts) + (f" and {events.height - _LISTED} more" if events.height > _LISTED else "")
