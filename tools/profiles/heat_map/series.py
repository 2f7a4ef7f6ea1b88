"""Convert one event of a profile to busy intervals per thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.profiles.heat_map.activity import Activity, activity_of
from whystall.tools.profiles.heat_map.cells import Presence, merged
from whystall.tools.stacks.events import choose_event
from whystall.tools.stacks.model import NO_TIME, StackProfile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Instants = NDArray[np.int64]

LOST = "lost"
"""Unit of the event that marks lost samples."""
_DEFAULT_INTERVAL = 10_101_010
# Distances between samples that differ by less than this share are equal.
_ALIKE = 0.05
Holes = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Series:
    """One event of `profile`.

    `samples`: those with a time. `owner`, `presence`: threads (rows of the profile's table) and their busy intervals.
    `points`: samples, `interval` ns apart while a thread runs, not spans. `untimed`: number of samples without a time.
    `holes`: when samples were lost.
    """

    profile: StackProfile
    event: int
    samples: pl.DataFrame
    owner: Instants
    presence: Presence
    points: bool
    interval: int
    untimed: int
    holes: Holes

    @property
    def name(self) -> str:
        """Return the event's name."""
        return str(self.profile.events["name"][self.event]) if self.profile.events.height else ""

    @property
    def unit(self) -> str:
        """Return the unit of the weights."""
        return str(self.profile.events["unit"][self.event]) if self.profile.events.height else ""

    def busiest(self, most: int, least_share: float) -> list[int]:
        """Return at most `most` threads with at least `least_share` of all busy time, busiest first."""
        import numpy as np

        if not len(self.owner):
            return []
        numbers, place = np.unique(self.owner, return_inverse=True)
        total = np.bincount(place, (self.presence.ends - self.presence.starts).astype(np.float64))
        order = np.argsort(-total, kind="stable")[:most]
        return [int(numbers[at]) for at in order if total[at] >= least_share * total.sum()]

    def activity(self, first: int, last: int, thread: int | None = None) -> Activity:
        """Return the activity of all threads, or of one, between `first` and `last`."""
        import numpy as np

        chosen = slice(None) if thread is None else self.owner == thread
        starts, ends = self.presence.starts[chosen], self.presence.ends[chosen]
        if self.points:
            middle = (starts + ends) // 2
            return activity_of(middle, np.zeros_like(middle), first, last, interval=self.interval, holes=self.holes)
        return activity_of(starts, ends - starts, first, last, interval=self.interval, holes=self.holes)


def series_of(profile: StackProfile, event: str, period_ns: int) -> Series:
    """Return the series of `event` (see `choose_event`). `period_ns`: the requested sampling period, 0 if unknown.

    Raises `ToolError`: bad_argument without that event, bad_trace if its samples have no times.
    """
    import numpy as np

    counted = profile.samples.join(profile.events.filter(pl.col("unit") == LOST), on="event", how="semi")
    lost = counted.filter(pl.col("at_ns") != NO_TIME).sort("at_ns")
    rest = profile.samples.join(profile.events.filter(pl.col("unit") == LOST), on="event", how="anti")
    if rest.is_empty() and not event:
        nothing = np.zeros(0, dtype=np.int64)
        return Series(
            profile, 0, rest, nothing, Presence(nothing, nothing), True, period_ns or _DEFAULT_INTERVAL, 0, ()
        )
    chosen = choose_event(StackProfile({**profile.tables, "samples": rest}, profile.source), event)
    chosen_samples = rest.filter(pl.col("event") == chosen)
    timed = chosen_samples.filter(pl.col("at_ns") != NO_TIME)
    if timed.is_empty():
        message = f"the profile ({profile.source}) has no times of its samples"
        raise ToolError(ErrorCode.BAD_TRACE, message, "give the output of perf script, a trace, or observe live")
    working = _working(profile, timed)
    at, span = working["at_ns"].to_numpy(), working["span_ns"].to_numpy()
    thread = working["thread"].to_numpy().astype(np.int64)
    points = not bool((span > 0).any())
    if points:
        interval = period_ns or _interval(profile, chosen, thread, at)
        begin = np.maximum(at - interval // 2, at.min())  # nothing is known before the first sample
        presence, owner = Presence(begin, at - interval // 2 + interval), thread
    else:
        interval = 1000
        owner, presence = merged(thread, at, at + np.maximum(span, 1))
    holes = tuple((at, at + max(length, 1)) for at, length in lost.select("at_ns", "span_ns").iter_rows())
    return Series(
        profile, chosen, timed, owner, presence, points, interval, chosen_samples.height - timed.height, holes
    )


def _working(profile: StackProfile, samples: pl.DataFrame) -> pl.DataFrame:
    """Return `samples` without those whose innermost frame is idle."""
    idle = profile.frames.filter(pl.col("kind") == "idle")
    if idle.is_empty():
        return samples
    resting = profile.stacks.filter(pl.col("frame").is_in(idle["frame"].implode()))
    return samples.filter(~pl.col("stack").is_in(resting["stack"].implode()))


def _interval(profile: StackProfile, event: int, thread: Instants, at: Instants) -> int:
    """Return the ns between samples of a running thread: the event's period, else the most frequent distance."""
    import numpy as np

    _, _, unit, period = profile.events.row(event)
    if unit == "ns" and period > 0:
        return max(int(period), 1)
    order = np.lexsort((at, thread))
    apart = np.diff(at[order])[np.diff(thread[order]) == 0]
    apart = apart[apart > 0]
    if len(apart) < 2:
        return _DEFAULT_INTERVAL
    kinds, counts = np.unique(np.floor(np.log(apart) / np.log1p(_ALIKE)).astype(np.int64), return_counts=True)
    # the two bins around the most frequent distance
    together = counts + np.where(np.diff(kinds, append=kinds[-1] + 2) == 1, np.append(counts[1:], 0), 0)
    best = int(kinds[np.argmax(together)])
    near = apart[(apart >= (1 + _ALIKE) ** best) & (apart < (1 + _ALIKE) ** (best + 2))]
    return max(int(np.median(near)), 1)
