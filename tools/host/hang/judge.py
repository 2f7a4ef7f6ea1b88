"""Find the ranks that the others of a job wait for, from how many operations each has begun. Pure.

A rank that has begun fewer operations of a group than those who wait in it holds them back, unless it waits itself in
another group for a rank that is late there: waits are followed to their end. All of it counts only if nothing moved
within the window: at any instant of a healthy job some rank is late by one.

gloo also counts sends and receives, of which ranks of a pipeline make different numbers. There, ranks that wait in one
operation have begun different numbers; the numbers of such a group are not compared, and nobody is accused by them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from whystall.tools.host.hang.failures import Failure, Failures
from whystall.tools.host.hang.ranks import DEFAULT_GROUP, GroupKey, RankState
from whystall.tools.timeline.rank_data.wait_graph import roots_and_cycles

MOVING = "moving"
"""Collectives were begun, or ranks moved, within the window: slow perhaps, not hung."""
LATE = "late"
"""Nothing moved, and some ranks that do not run have not begun what others wait in."""
COMPUTING = "computing"
"""The same of ranks that run: a long step of a healthy job looks alike."""
CYCLE = "cycle"
"""Ranks wait for each other in groups that they entered in different orders."""
MISMATCH = "mismatch"
"""Ranks that began equally many collectives of a group are in different ones."""
ALL_INSIDE = "all_inside"
"""All members began the same collective and wait in it: the transfer, or a device."""
OUTSIDE = "outside"
"""No rank waits in a collective."""
UNCLEAR = "unclear"
"""Some ranks wait in collectives and others are elsewhere, but the numbers do not show who is late."""
SEVERAL_JOBS = "several_jobs"
"""A group has two members of one number: the processes belong to several jobs."""
SPINNING = "spinning"
"""As `LATE`, but those that are ahead run: they may wait for their devices, or compute."""
FIRST_FAILURE = "first_failure"
"""Nothing moved, and ranks wait in a collective although one of the job has failed, or has left it."""
ENDING = "ending"
"""Ranks ended within the window, with nothing that shows a failure: the job may be ending."""
# Functions of torch.distributed in which all members of a group take part, by their beginning.
_COLLECTIVES = ("all_", "reduce", "broadcast", "gather", "scatter", "barrier")
# Those in which two take part.
_PAIRS = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
UNSEEN = "unseen"
"""The ranks read wait for members that are on other hosts, or were not read."""
NOT_COMPARED = "not_compared"
"""No rank was read at the start of the window: whether the job moved is not known."""
_Process = tuple[str, int]


@dataclass(frozen=True)
class LateRank:
    """A rank that others wait for. `group`: where most do; `number`: of the first operation that it has not begun there
    and others have, counted from 1; `waiting`: those who wait for it."""

    state: RankState
    group: GroupKey
    number: int
    waiting: tuple[RankState, ...]


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
    """`verdict`: one of the constants above; `absent`: members of each group that were not read; `failed`: ranks that
    have failed, the first one first."""

    verdict: str
    late: list[LateRank] = field(default_factory=list)
    mismatched: list[Mismatched] = field(default_factory=list)
    absent: Mapping[GroupKey, tuple[int, ...]] = field(default_factory=dict)
    failed: list[Failure] = field(default_factory=list)


def hang_of(ranks: Sequence[RankState], failures: Failures) -> Hang:
    """Return what holds the job of `ranks` back. `failures`: of ranks of the same job."""
    found = _living(ranks)
    if found.verdict in (OUTSIDE, UNCLEAR) and any(one.may_spin for one in ranks):
        spinning = _living([replace(one, spins=one.may_spin) for one in ranks])
        if spinning.late:
            found = replace(spinning, verdict=SPINNING)
    if found.verdict == SEVERAL_JOBS or not (failures.failed or failures.just_left):
        return found
    sure = [one for one in failures.failed if one.sure]
    idle = found.verdict == OUTSIDE and not any(one.may_spin for one in ranks)
    if found.verdict in (MOVING, NOT_COMPARED) or idle:
        return replace(found, failed=sure)
    if failures.just_left and not sure:
        return replace(found, verdict=ENDING, late=[], mismatched=[])
    if _explains(found, failures.failed, ranks):
        gone = {one.process for one in failures.failed}
        late = [one for one in found.late if one.state.process not in gone]
        return replace(found, verdict=FIRST_FAILURE, late=late, mismatched=[], failed=failures.failed)
    return replace(found, failed=failures.failed)


def _explains(found: Hang, failed: Sequence[Failure], ranks: Sequence[RankState]) -> bool:
    """Return whether the ranks that have failed or left are why the others wait."""
    absent = {rank for key, gone in found.absent.items() if key.name == DEFAULT_GROUP for rank in gone}
    if all(one.consequence for one in failed) and absent - {one.rank for one in failed}:
        return False  # they ended because another rank did, which may be one that is not on this host
    if any(one.sure for one in failed):
        return True
    # a rank may leave a job that goes on without it: another one may be late, or a device may be at work
    late = {one.state.process for one in found.late}
    return late <= {one.process for one in failed} and any(one.in_collective for one in ranks)


def _living(ranks: Sequence[RankState]) -> Hang:
    """Return what holds the job back, by what the ranks do that live."""
    groups = _members(ranks)
    if any(len({one.groups[key].rank for one in members}) < len(members) for key, members in groups.items()):
        return Hang(SEVERAL_JOBS)
    absent = {key: gone for key, members in groups.items() if (gone := _absent(key, members))}
    if not any(_seen_before(one) for one in ranks):
        return Hang(NOT_COMPARED, absent=absent)
    if _moved(ranks):
        return Hang(MOVING, absent=absent)
    waiting = [one for one in ranks if one.waits_for_ranks]
    if not waiting:
        return Hang(OUTSIDE, absent=absent)
    ahead = _ahead(groups)
    late = [f for key, members in groups.items() if _comparable(key, members, ahead) for f in _late(key, members)]
    edges: dict[_Process, set[_Process]] = {}
    for one in late:
        for other in one.waiting:
            edges.setdefault(other.process, set()).add(one.state.process)
    roots, circles = roots_and_cycles(edges, {one.state.process for one in late})
    accused = [
        _of_all_groups([o for o in late if o.state.process == process], edges, ranks) for process in sorted(roots)
    ]
    # One that waits in a collective without being ahead in any waits with all others, who have begun more meanwhile.
    accused = [one for one in accused if one.waiting and not one.state.waits_for_ranks]
    if accused:
        return Hang(COMPUTING if all(one.state.running for one in accused) else LATE, accused, absent=absent)
    if circles:
        inside = set[_Process]().union(*circles)
        firsts = {one.state.process: one for one in late if one.state.process in inside}
        return Hang(CYCLE, sorted(firsts.values(), key=lambda one: one.state.rank), absent=absent)
    if len(waiting) < len(ranks):
        return Hang(UNCLEAR, absent=absent)
    if mismatched := [found for key, members in groups.items() if (found := _mismatch(key, members)) is not None]:
        return Hang(MISMATCH, mismatched=mismatched, absent=absent)
    return Hang(UNSEEN if absent else ALL_INSIDE, absent=absent)


def _moved(ranks: Sequence[RankState]) -> bool:
    """Return whether the job made progress: a rank began a collective, or all ranks are somewhere else than before."""
    began = any(m.before is not None and m.before != m.started for one in ranks for m in one.groups.values())
    return began or not any(one.still for one in ranks if _seen_before(one))


def _seen_before(one: RankState) -> bool:
    return any(member.before is not None for member in one.groups.values())


def _members(ranks: Sequence[RankState]) -> dict[GroupKey, list[RankState]]:
    found: dict[GroupKey, list[RankState]] = {}
    for one in ranks:
        for key in one.groups:
            found.setdefault(key, []).append(one)
    return found


def _absent(key: GroupKey, members: Sequence[RankState]) -> tuple[int, ...]:
    return tuple(sorted(set(range(key.size)) - {one.groups[key].rank for one in members}))


def _comparable(key: GroupKey, members: Sequence[RankState], ahead: Mapping[_Process, set[GroupKey]]) -> bool:
    """Return whether the numbers of a group can be compared: all who wait in it have begun equally many operations.

    One that is ahead of others in another group may wait there instead. A rank may also leave a broadcast before those
    to which it does not send, and so be ahead by one for each step of the tree in which data is passed on (binomial, in
    gloo and MPI): those who wait may differ by that, if all others are behind them.
    """
    waiting = [one for one in members if one.waits_for_ranks and not ahead.get(one.process, set()) - {key}]
    inside = {one.groups[key].started for one in waiting}
    if not inside or inside == {max(one.groups[key].started for one in members)}:
        return True
    outside = [one.groups[key].started for one in members if not one.waits_for_ranks]
    in_tree = max(inside) - min(inside) <= math.ceil(math.log2(key.size)) + 1
    return in_tree and max(outside, default=0) < min(inside) and not any(one.collective in _PAIRS for one in waiting)


def _ahead(groups: Mapping[GroupKey, Sequence[RankState]]) -> dict[_Process, set[GroupKey]]:
    """Return the groups in which each rank has begun more than another member."""
    found: dict[_Process, set[GroupKey]] = {}
    for key, members in groups.items():
        least = min(one.groups[key].started for one in members)
        for one in members:
            if one.groups[key].started > least:
                found.setdefault(one.process, set()).add(key)
    return found


def _late(key: GroupKey, members: Sequence[RankState]) -> list[LateRank]:
    """Return the members that have begun less than others, with those of them who wait."""
    most = max(one.groups[key].started for one in members)
    found = []
    for one in members:
        started = one.groups[key].started
        if started < most:
            waiting = tuple(o for o in members if o.groups[key].started > started and o.waits_for_ranks)
            found.append(LateRank(one, key, started + 1, waiting))
    return found


def _of_all_groups(
    late: Sequence[LateRank], edges: Mapping[_Process, set[_Process]], ranks: Sequence[RankState]
) -> LateRank:
    """Return one entry for a rank that is late in several groups, with all who wait for it, directly or not."""
    most = max(late, key=lambda one: len(one.waiting))
    reached, new = set[_Process](), {most.state.process}
    while new:
        new = {process for process, targets in edges.items() if targets & new} - reached
        reached |= new
    return replace(most, waiting=tuple(one for one in ranks if one.process in reached))


def _mismatch(key: GroupKey, members: Sequence[RankState]) -> Mismatched | None:
    """Return members in different collectives of the same number. With several groups it is not known in which of them
    a rank waits, and a send does not differ from a receive by mistake."""
    started = {one.groups[key].started for one in members}
    functions = {one.rank: one.collective for one in members if one.collective.startswith(_COLLECTIVES)}
    if len(started) != 1 or len(set(functions.values())) < 2 or any(len(one.groups) > 1 for one in members):
        return None
    return Mismatched(key, started.pop(), functions)
