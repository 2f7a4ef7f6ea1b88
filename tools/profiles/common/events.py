"""Choose one event of a stack profile: weights of different events do not add up."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from whystall.tools.stacks.events import choose_event
from whystall.tools.stacks.model import StackProfile

LOST = "lost"
"""The unit of the event that marks lost samples; it has no stacks and is kept with any event."""


def only_event(profile: StackProfile, event: str = "") -> StackProfile:
    """Return `profile` with only the samples of `event` (empty: as `choose_event` chooses) and the lost ones.

    Raises what `choose_event` raises.
    """
    lost = profile.events.filter(pl.col("unit") == LOST)["event"]
    sound = replace(
        profile, tables={**profile.tables, "samples": profile.samples.filter(~pl.col("event").is_in(lost.implode()))}
    )
    keep = [choose_event(sound, event), *lost.to_list()]
    if profile.events.height == len(keep):
        return profile
    number = pl.col("event").replace_strict(keep, list(range(len(keep))), return_dtype=pl.Int16)
    kept = pl.col("event").is_in(keep)
    tables = {
        "samples": profile.samples.filter(kept).with_columns(number),
        "events": profile.events.filter(kept).with_columns(number).sort("event"),
    }
    return replace(profile, tables={**profile.tables, **tables})
