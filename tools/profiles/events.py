"""One event of a stack profile: weights of different events, or in different units, do not add up."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.stacks.model import StackProfile

_LISTED = 12


def only_event(profile: StackProfile, event: str = "") -> StackProfile:
    """`profile` with the samples of `event` alone; without a name, of the only one that has samples.

    Raises `ToolError` (bad_argument), naming the events: when several have samples and none was asked for, and when
    `event` is none of them.
    """
    counted = profile.events.filter(pl.col("event").is_in(profile.samples["event"].unique().implode()))
    chosen = counted.filter(pl.col("name") == event) if event else counted
    if chosen.height == 1 or (not event and chosen.is_empty()):
        return _with(profile, chosen)
    there = ", ".join(f"{name} ({unit})" for name, unit in counted.select("name", "unit").head(_LISTED).iter_rows())
    if event and chosen.is_empty():
        message = f"no samples of an event {event!r}"
    else:
        message = f"{chosen.height} events{f' called {event!r}' if event else ''}: their weights do not add up"
    raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"choose one with event: {there or 'there is none'}")


def _with(profile: StackProfile, chosen: pl.DataFrame) -> StackProfile:
    if chosen.height == profile.events.height == 1:
        return profile
    samples = profile.samples.filter(pl.col("event").is_in(chosen["event"].implode()))
    numbered = chosen.with_columns(event=pl.int_range(pl.len(), dtype=pl.Int16))
    samples = samples.with_columns(event=pl.lit(0, pl.Int16))
    return replace(profile, tables={**profile.tables, "samples": samples, "events": numbered})
