"""Collectives that the host carries out: gloo's and MPI's, in a Kineto trace.

Such a library runs them on threads of its own (gloo: two per process group) as ranges ``gloo:all_reduce``, shortly
after the operator that asked (``c10d::allreduce_``), and a send or receive on the asking thread. Neither says which
group it is for (torch 2.13).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from whystall.tools.timeline.collectives import POINT_TO_POINT, canonical_op
from whystall.tools.timeline.kineto.event_args import Part, bytes_of
from whystall.tools.timeline.kineto.groups import Groups
from whystall.tools.timeline.profile_reading.groups import Group

_RANGE = re.compile(r"(gloo|mpi|ucc):\w")
_THREADS = 2  # of a gloo group, unless the program asks for more
_GROUPS = 64

Row = tuple[int, int, str, str, int, str, int, int, int]
"""start, end, op, group, bytes, dtype, peer, launch, lane."""


def is_host_range(name: str) -> bool:
    """Return whether a range is a collective carried out by the host."""
    return _RANGE.match(name) is not None


def host_rows(ranges: Sequence[Part], asks: Sequence[Part], groups: Groups) -> tuple[list[Row], str]:
    """Return a row for each range; and from what their groups were inferred, empty when that needed no inference."""
    ranges = sorted(ranges, key=lambda part: part.place.start_ns)
    linked = list(_linked(ranges, sorted(asks, key=lambda part: part.place.start_ns)))
    mine = [group for group in groups.configured if "gloo" in group.backend]
    workers = {(part.place.pid, part.place.tid) for part, ask, own in linked if not own and part.name[:5] == "gloo:"}
    # A process numbers its threads upwards from its own number, until the numbers begin again.
    order = [tid for _, tid in sorted(workers, key=lambda one: (one[1] < one[0], one[1]))]
    group_of = _groups_of(order, mine)
    guessed = f"threads {', '.join(map(str, order))}" if group_of and len(mine) > 1 else ""
    return [_row(part, ask, own, mine, group_of, groups.rank) for part, ask, own in linked], guessed


def _row(part: Part, ask: Part | None, own: bool, mine: Sequence[Group], group_of: dict[int, Group], rank: int) -> Row:
    op, place = canonical_op(part.name) if ask is None else _asked(ask), part.place
    group = group_of.get(place.tid) if not own else mine[0] if len(mine) == 1 else None
    elements = max(part.elements, -1 if ask is None else ask.elements)
    if op == "all_gather" and elements == part.elements > 0:  # of a list of results no size is told
        elements = elements * group.size if group is not None and group.size > 0 else -1
    peer = -1
    if op in POINT_TO_POINT and ask is not None:
        peer = _peer(ask.peer, mine, rank)
    start, end, launch = place.start_ns, place.end_ns, 0 if ask is None else ask.place.start_ns
    if own and ask is not None:
        # The asking thread does the work: before the range begins, and in the operator after it ended.
        start, end = min(start, launch), max(end, ask.place.end_ns)
    payload = 0 if op == "barrier" else bytes_of(elements, part.dtype)
    return start, end, op, "" if group is None else group.key, payload, part.dtype, peer, launch, place.tid


def _peer(index: int, mine: Sequence[Group], rank: int) -> int:
    """Return the global rank of the member `index`: the same in all groups that may be meant, else -1 (not known).

    Not meant is a group without such a member, and one in which it would be the `rank` itself.
    """
    if not all(group.ranks for group in mine):
        return -1
    peers = {group.ranks[index] for group in mine if 0 <= index < len(group.ranks)} - {rank}
    return peers.pop() if len(peers) == 1 else -1


def _linked(ranges: Iterable[Part], asks: Sequence[Part]) -> Iterator[tuple[Part, Part | None, bool]]:
    """Yield each range with the operator that asked for it, and whether the asking thread did it itself.

    Groups serve what they are asked for in order; several groups with the same operation at the same time may be taken
    for each other, which only changes which of them was asked first.
    """
    own: dict[int, list[Part]] = {}
    waiting: dict[tuple[str, int], deque[Part]] = {}
    for ask in asks:
        own.setdefault(ask.place.tid, []).append(ask)
    queue = deque(asks)
    places = dict.fromkeys(own, 0)
    for part in ranges:
        at, tid = part.place.start_ns, part.place.tid
        while queue and queue[0].place.start_ns <= at:
            ask = queue.popleft()
            waiting.setdefault(_key(ask), deque()).append(ask)
        mine = own.get(tid, [])
        while places.get(tid, 0) < len(mine) and mine[places[tid]].place.start_ns <= at:
            places[tid] += 1
        last = mine[places[tid] - 1] if mine and places[tid] else None
        if last is not None and at <= last.place.end_ns and _key(last)[0] == _key(part)[0]:
            yield part, last, True
            continue
        candidates = waiting.get(_key(part))
        yield part, candidates.popleft() if candidates else None, canonical_op(part.name) in POINT_TO_POINT


def _key(part: Part) -> tuple[str, int]:
    """Return what a range and its operator agree in: the operation and, where in and out are the same tensors, their
    size.

    gloo makes a reduce_scatter of an all_reduce of all there is to reduce.
    """
    op = canonical_op(part.name)
    op = "all_reduce" if op == "reduce_scatter" else op
    return op, part.elements if op in ("all_reduce", "broadcast") else -1


def _asked(ask: Part) -> str:
    """Return the operation an operator asked for. With sizes of its own for each rank, an all_to_all is one of them."""
    op = canonical_op(ask.name)
    return "all_to_all_v" if op == "all_to_all" and (ask.split or ask.name == "c10d::alltoall_") else op


def _groups_of(workers: list[int], mine: Sequence[Group]) -> dict[int, Group]:
    """Return the group of each worker thread, nothing unless one way to assign them is left.

    Threads are numbered as they are made, group by group, those of one group at once. Between two groups another
    thread is made (gloo's own), so that neighbouring numbers mean one group; other processes take numbers in between,
    so that the reverse does not hold. An idle thread, or all of an unused group, are not seen.
    """
    if len(mine) == 1:
        return dict.fromkeys(workers, mine[0])
    if len(mine) > _GROUPS or len(workers) > _THREADS * len(mine):
        return {}
    # By thread: the ways to give all before it to the groups up to one, as the sizes of those; two are enough to know.
    ways: list[list[list[int]]] = [[[]], *([] for _ in workers)]
    for _ in mine:
        following: list[list[list[int]]] = [[] for _ in range(len(workers) + 1)]
        for at, found in enumerate(ways):
            for size in range(_THREADS + 1):
                end = at + size
                if 0 < end < len(workers) and workers[end] - workers[end - 1] == 1:
                    continue  # neighbours are of one group
                if end <= len(workers):
                    following[end] = (following[end] + [[*sizes, size] for sizes in found])[:2]
        ways = following
    if len(ways[-1]) != 1:
        return {}
    numbers = iter(workers)
    return {next(numbers): group for group, size in zip(mine, ways[-1][0], strict=True) for _ in range(size)}
