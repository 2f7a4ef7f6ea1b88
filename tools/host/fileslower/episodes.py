"""Group slow calls into episodes on one file, and find the period of recurring episodes."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Calls on one file belong together if the pause between them is short, absolutely or relative to the calls. The limit
# allows for one or two unlisted fast calls: a loop that computes for 40 ms between reads is not one episode.
_PAUSE_NS = 20_000_000
_PAUSE_RATIO = 0.25
# With fewer episodes there is no period. `_SPREAD`: median deviation of the intervals, relative to their median.
_MIN_EPISODES = 3
_MAX_SPREAD = 0.25


@dataclass(frozen=True)
class Call:
    """One slow call: times in ns, and path. `final`: written data is now durable, which ends the episode. `renames`: it
    removes or renames a file, as programs do with an older file once the new one is durable."""

    start_ns: int
    end_ns: int
    path: str
    final: bool = False
    renames: bool = False


@dataclass(frozen=True)
class Episode:
    """Consecutive calls on one file by one thread, at most up to the call that makes the data durable, and to the
    removal of older files after it."""

    calls: tuple[Call, ...]

    @property
    def start_ns(self) -> int:
        """Start of the first call."""
        return self.calls[0].start_ns

    @property
    def end_ns(self) -> int:
        """End of the last call."""
        return max(c.end_ns for c in self.calls)

    @property
    def duration_ns(self) -> int:
        """From the first start to the last end."""
        return self.end_ns - self.start_ns


def episodes(calls: Iterable[Call]) -> list[Episode]:
    """Return the episodes of one thread in order of time; calls of one thread do not overlap."""
    runs: list[list[Call]] = []
    for call in sorted(calls, key=lambda c: c.start_ns):
        if runs and _continues(runs[-1], call):
            runs[-1].append(call)
        else:
            runs.append([call])
    return [Episode(tuple(run)) for run in runs]


def _continues(run: Sequence[Call], call: Call) -> bool:
    last = run[-1]
    longest = max(last.end_ns - last.start_ns, call.end_ns - call.start_ns)
    pause = call.start_ns - last.end_ns
    if call.renames and any(one.final for one in run):
        return pause <= _PAUSE_NS
    return not last.final and call.path == last.path and pause <= max(_PAUSE_NS, longest * _PAUSE_RATIO)


def period_s(starts_ns: Sequence[int]) -> float | None:
    """Return the period in seconds of events that start at `starts_ns`; None if too few or irregular."""
    ordered = sorted(starts_ns)
    if len(ordered) < _MIN_EPISODES:
        return None
    gaps = [b - a for a, b in itertools.pairwise(ordered)]
    median = statistics.median(gaps)
    if median <= 0:
        return None
    spread = statistics.median(abs(g - median) for g in gaps) / median
    return median / 1e9 if spread <= _MAX_SPREAD else None
