"""Find which process of a job failed first, from failures in logs of several ranks and hosts. Pure.

A failure that ranks report when another one has failed (a closed connection, a time-out in a collective, SIGTERM from
the launcher) is never first. Of the others, one is first if it ended before any other began, in the worst case of what
the clocks of the hosts may differ. Otherwise it is left open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from whystall.tools.crashes.times import Instant

_OPEN = 1 << 62
Reason = Literal["only_one", "earliest", "order_unknown", "time_unknown", "clocks", "reactions_only", "none"]


@dataclass(frozen=True)
class Happened:
    """A failure of the process `who` (one per rank, else per log and pid) on `host` (empty: unknown).

    `at`: when; None: not stated. `exact`: at that time; else after it, and before `until` (None: unknown). `index`:
    for the caller.
    """

    index: int
    who: str
    host: str
    at: Instant | None
    exact: bool
    of_other: bool
    until: Instant | None = None


@dataclass(frozen=True)
class First:
    """The verdict: `index` of the first failure, -1 if it is left open; `candidates`: those that may be."""

    index: int
    reason: Reason
    candidates: tuple[int, ...]
    lead_ns: int = 0


@dataclass(frozen=True)
class _Process:
    """When a process first failed: between `earliest` (None: not stated) and `latest`, by the clock of `host`."""

    index: int
    host: str
    earliest: int | None
    latest: int


def first_failure(happened: Sequence[Happened], skew_ns: int) -> First:
    """Return which of `happened` was first.

    Args:
        skew_ns: by how much the clocks of different hosts may differ.
    """
    if not happened:
        return First(-1, "none", ())
    by_process: dict[str, list[Happened]] = {}
    for one in happened:
        if not one.of_other:
            by_process.setdefault(one.who, []).append(one)
    causes = [_process(ones) for ones in by_process.values()]
    if not causes:
        return First(-1, "reactions_only", tuple(one.index for one in happened))
    indices = tuple(one.index for one in causes)
    if len(causes) == 1:
        return First(indices[0], "only_one", indices)
    if any(one.earliest is None for one in causes):
        return First(-1, "time_unknown", indices)
    stated = [time for ones in by_process.values() for one in ones for time in (one.at, one.until) if time is not None]
    if len({time.zoned for time in stated}) > 1:
        return First(-1, "clocks", indices)
    causes.sort(key=lambda one: one.latest)
    first = causes[0]
    leads = [_lead(first, other, skew_ns) for other in causes[1:]]
    if min(leads) > 0:
        return First(first.index, "earliest", indices, min(leads))
    near = [first.index, *(one.index for one, lead in zip(causes[1:], leads, strict=True) if lead <= 0)]
    return First(-1, "order_unknown", tuple(near))


def _process(ones: Sequence[Happened]) -> _Process:
    """Return when a process first failed; what it reported and its launcher noticed later bounds that."""
    starts = [(one.at.at_ns, one.index) for one in ones if one.at is not None]
    ends = [one.at.at_ns + one.at.width_ns for one in ones if one.at is not None and one.exact]
    ends += [one.until.at_ns + one.until.width_ns for one in ones if one.until is not None]
    earliest, index = min(starts, default=(None, ones[0].index))
    host = next((one.host for one in ones if one.host), "")
    return _Process(index, host, earliest, min(ends, default=_OPEN))


def _lead(one: _Process, other: _Process, skew_ns: int) -> int:
    """Return by how much `one` surely precedes `other`, ns; 0 or less: not surely."""
    apart = 0 if one.host and one.host == other.host else skew_ns
    return (other.earliest or 0) - one.latest - apart
