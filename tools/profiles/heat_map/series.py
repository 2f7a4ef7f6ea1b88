"""What a profile says about when something was busy: one event of it as spells, by thread."""

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
"""Unit of the event whose samples say where others were lost."""
_DEFAULT_INTERVAL = 10_101_010
# Distances between samples are put together that differ by less than this share.
_ALIKE = 0.05
Holes = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Series:
    """One event of `profile`.

    `samples`: those with an instant. `who`, `presence`: when each thread (row of the profile's) was busy. `points`:
    they are samples at instants, `interval` ns apart while something runs, and not spans. `untimed`: samples without
    an instant. `holes`: when samples were lost.
    """

    profile: StackProfile
    event: int
    samples: pl.DataFrame
    who: Instants
    presence: Presence
    points: bool
    interval: int
    untimed: int
    holes: Holes

    @property
    def name(self) -> str:
        """The event's."""
        return str(self.profile.events["name"][self.event]) if self.profile.events.height else ""

    @property
    def unit(self) -> str:
        """Of the weights."""
        return str(self.profile.events["unit"][self.event]) if self.profile.events.height else ""

    def busiest(self, most: int, least_share: float) -> list[int]:
        """Threads with at least so much of all presence, the busiest first."""
        import numpy as np

        if not len(self.who):
            return []
        numbers, place = np.unique(self.who, return_inverse=True)
        total = np.bincount(place, (self.presence.ends - self.presence.starts).astype(np.float64))
        order = np.argsort(-total, kind="stable")[:most]
        return [int(numbers[at]) for at in order if total[at] >= least_share * total.sum()]

    def activity(self, first: int, last: int, thread: int | None = None) -> Activity:
        """Quiet spells of all, or of one `thread`, between `first` and `last`."""
        import numpy as np

        chosen = slice(None) if thread is None else self.who == thread
        starts, ends = self.presence.starts[chosen], self.presence.ends[chosen]
        if self.points:
            middle = (starts + ends) // 2
            return activity_of(middle, np.zeros_like(middle), first, last, interval=self.interval, holes=self.holes)
        return activity_of(starts, ends - starts, first, last, interval=self.interval, holes=self.holes)


def series_of(profile: StackProfile, event: str, period_ns: int) -> Series:
    """The event called `event` (see `choose_event`) of `profile`. `period_ns`: between samples as they were asked for;
    0 where that is not known.

    Raises `ToolError`: bad_argument when there is no such event, bad_trace when its samples have no instants.
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
    mine = rest.filter(pl.col("event") == chosen)
    timed = mine.filter(pl.col("at_ns") != NO_TIME)
    if timed.is_empty():
        message = f"the profile ({profile.source}) does not say when its samples were taken"
        raise ToolError(ErrorCode.BAD_TRACE, message, "give the output of perf script, a trace, or observe live")
    working = _working(profile, timed)
    at, span = working["at_ns"].to_numpy(), working["span_ns"].to_numpy()
    thread = working["thread"].to_numpy().astype(np.int64)
    points = not bool((span > 0).any())
    if points:
        interval = period_ns or _interval(profile, chosen, thread, at)
        begin = np.maximum(at - interval // 2, at.min())  # nothing is known of what was before the first
        presence, who = Presence(begin, at - interval // 2 + interval), thread
    else:
        interval = 1000
        who, presence = merged(thread, at, at + np.maximum(span, 1))
    holes = tuple((at, at + max(length, 1)) for at, length in lost.select("at_ns", "span_ns").iter_rows())
    return Series(profile, chosen, timed, who, presence, points, interval, mine.height - timed.height, holes)


def _working(profile: StackProfile, samples: pl.DataFrame) -> pl.DataFrame:
    """Without those whose innermost frame says that nothing was done."""
    idle = profile.frames.filter(pl.col("kind") == "idle")
    if idle.is_empty():
        return samples
    resting = profile.stacks.filter(pl.col("frame").is_in(idle["frame"].implode()))
    return samples.filter(~pl.col("stack").is_in(resting["stack"].implode()))


def _interval(profile: StackProfile, event: int, thread: Instants, at: Instants) -> int:
    """Between samples of something that runs, ns: told by the event, else the most frequent distance of two samples of
    a thread."""
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
