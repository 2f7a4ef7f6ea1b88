"""Group slow calls into what a caller suffers: episodes on one file, and their recurrence."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Calls on one file belong together when the pause between them is short, or short beside the calls themselves. Short
# leaves room for a fast call or two that are not listed, and no more: a loop that computes for 40 ms between its reads
# does not read all the time.
_PAUSE_NS = 20_000_000
_PAUSE_RATIO = 0.25
# Fewer repeats than this show no period; spread is the median deviation of the intervals over their median.
_MIN_EPISODES = 3
_MAX_SPREAD = 0.25


@dataclass(frozen=True)
class Call:
    """One slow call: nanoseconds and file path. `final`: what was written is durable now, and the episode over."""

    start_ns: int
    end_ns: int
    path: str
    final: bool = False


@dataclass(frozen=True)
class Episode:
    """A run of calls on one file by one thread, at most up to the call that makes it durable."""

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
    """Episodes of one thread, in order of time. Calls of one thread do not overlap."""
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
    return not last.final and call.path == last.path and pause <= max(_PAUSE_NS, longest * _PAUSE_RATIO)


def period_s(starts_ns: Sequence[int]) -> float | None:
    """Period in seconds of events that start at `starts_ns`, None when there are too few or they are irregular."""
    ordered = sorted(starts_ns)
    if len(ordered) < _MIN_EPISODES:
        return None
    gaps = [b - a for a, b in itertools.pairwise(ordered)]
    median = statistics.median(gaps)
    if median <= 0:
        return None
    spread = statistics.median(abs(g - median) for g in gaps) / median
    return median / 1e9 if spread <= _MAX_SPREAD else None
