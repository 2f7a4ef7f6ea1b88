"""Find the ranks that the others of a job wait for, from how many collectives each has begun. Pure.

A rank that has begun fewer collectives of a group than another one holds the others of that group back, unless it waits
itself in another group for a rank that is late there: waits are followed to their end. All of it counts only if nothing
moved within the window: at any instant of a healthy job some rank is late by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from whystall.tools.host.hang.ranks import GroupKey, RankState
from whystall.tools.timeline.rank_data.wait_graph import roots_and_cycles

MOVING = "moving"
"""Collectives were begun, or ranks moved, within the window: slow perhaps, not hung."""
LATE = "late"
"""Nothing moved, and some ranks have not begun what others wait in."""
CYCLE = "cycle"
"""Ranks wait for each other in groups that they entered in different orders."""
MISMATCH = "mismatch"
"""Ranks that began equally many collectives of a group are in different ones."""
ALL_INSIDE = "all_inside"
"""All members began the same collective and wait in it: the transfer, or a device."""
OUTSIDE = "outside"
"""No rank waits in a collective."""
UNSEEN = "unseen"
"""The ranks here wait for members that are not on this host, or were not read."""


@dataclass(frozen=True)
class LateRank:
    """A rank that others wait for. `group`: where most do; `behind`: collectives that it has not begun there and others
    have; `next_started`: number of the first of these, counted from 1; `waiting`: ranks that wait for it in any group,
    also through others."""

    state: RankState
    group: GroupKey
    behind: int
    next_started: int
    waiting: tuple[int, ...]


@dataclass(frozen=True)
class Mismatched:
    """Ranks of a group in different collectives, all the `number`-th one of the group: functions by rank."""

    group: GroupKey
    number: int
    functions: Mapping[int, str]

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks of the rarest function; empty if no function is the rarest."""
        counts: dict[str, list[int]] = {}
        for rank, function in self.functions.items():
            counts.setdefault(function, []).append(rank)
        fewest = sorted(counts.values(), key=len)
        return tuple(sorted(fewest[0])) if len(fewest[0]) < len(fewest[1]) else ()


@dataclass(frozen=True)
class Hang:
    """`verdict`: one of the constants above; `absent`: members of each group that were not read."""

    verdict: str
    late: list[LateRank] = field(default_factory=list)
    circle: tuple[int, ...] = ()
    mismatched: list[Mismatched] = field(default_factory=list)
    absent: Mapping[GroupKey, tuple[int, ...]] = field(default_factory=dict)


def hang_of(ranks: Sequence[RankState]) -> Hang:
    """Return what holds the job of `ranks` back."""
    groups = _members(ranks)
    absent = {key: gone for key, members in groups.items() if (gone := _absent(key, members))}
    if _moved(ranks):
        return Hang(MOVING, absent=absent)
    late = [found for key, members in groups.items() for found in _late(key, members)]
    pids = {one.state.pid for one in late}
    edges: dict[int, set[int]] = {}
    for one in late:
        for other in groups[one.group]:
            if other.waits_for_ranks and other.groups[one.group].started > one.state.groups[one.group].started:
                edges.setdefault(other.pid, set()).add(one.state.pid)
    roots, circles = roots_and_cycles(edges, pids)
    # One that waits in a collective without being ahead in any waits with all others, who have begun more meanwhile.
    roots = {pid for pid in roots if not next(one.state for one in late if one.state.pid == pid).waits_for_ranks}
    mismatched = [found for key, members in groups.items() if (found := _mismatch(key, members)) is not None]
    names = {one.pid: one.rank for one in ranks}
    if roots:
        accused = [_of_all_groups([one for one in late if one.state.pid == pid], edges, names) for pid in sorted(roots)]
        return Hang(LATE, accused, mismatched=mismatched, absent=absent)
    if circles:
        circle = tuple(sorted(names[pid] for part in circles for pid in part))
        accused = sorted((one for one in late if names[one.state.pid] in circle), key=lambda one: one.state.rank)
        return Hang(CYCLE, accused, circle, mismatched, absent)
    if mismatched:
        return Hang(MISMATCH, mismatched=mismatched, absent=absent)
    if not any(one.waits_for_ranks for one in ranks):
        return Hang(OUTSIDE, absent=absent)
    return Hang(UNSEEN if absent else ALL_INSIDE, absent=absent)


def _moved(ranks: Sequence[RankState]) -> bool:
    """Return whether the job made progress: a rank began a collective, or all ranks are somewhere else than before."""
    began = any(m.before is not None and m.before != m.started for one in ranks for m in one.groups.values())
    return began or not any(one.still for one in ranks)


def _members(ranks: Sequence[RankState]) -> dict[GroupKey, list[RankState]]:
    found: dict[GroupKey, list[RankState]] = {}
    for one in ranks:
        for key in one.groups:
            found.setdefault(key, []).append(one)
    return found


def _absent(key: GroupKey, members: Sequence[RankState]) -> tuple[int, ...]:
    return tuple(sorted(set(range(key.size)) - {one.groups[key].rank for one in members}))


def _late(key: GroupKey, members: Sequence[RankState]) -> list[LateRank]:
    most = max(one.groups[key].started for one in members)
    waiting = tuple(sorted(one.rank for one in members if one.groups[key].started == most))
    return [
        LateRank(one, key, most - started, started + 1, waiting)
        for one in members
        if (started := one.groups[key].started) < most
    ]


def _of_all_groups(late: Sequence[LateRank], edges: Mapping[int, set[int]], names: Mapping[int, int]) -> LateRank:
    """Return one entry for a rank that is late in several groups, with all who wait for it, directly or not."""
    most = max(late, key=lambda one: len(one.waiting))
    reached, new = set[int](), {most.state.pid}
    while new:
        new = {pid for pid, targets in edges.items() if targets & new} - reached
        reached |= new
    return replace(most, waiting=tuple(sorted(names[pid] for pid in reached)))


def _mismatch(key: GroupKey, members: Sequence[RankState]) -> Mismatched | None:
    """Return members in different collectives of the same number; those whose function is unknown do not count."""
    started = {one.groups[key].started for one in members}
    functions = {one.rank: one.collective for one in members if one.collective}
    if len(started) != 1 or len(set(functions.values())) < 2 or any(len(one.groups) > 1 for one in members):
        return None  # with several groups it is not known in which of them a rank waits
    return Mismatched(key, started.pop(), functions)
