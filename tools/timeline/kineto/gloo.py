"""Collectives executed on the host, gloo's and MPI's, in a Kineto trace.

Such a library runs them on its own threads (gloo: two per process group) as ranges ``gloo:all_reduce``, shortly after
the operator that requested them (``c10d::allreduce_``), and a send or receive on the requesting thread. Neither names
the group (torch 2.13).
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
_THREADS = 2  # per gloo group, unless the program asks for more
_GROUPS = 64

Row = tuple[int, int, str, str, int, str, int, int, int]
"""start, end, op, group, bytes, dtype, peer, launch, lane."""


def is_host_range(name: str) -> bool:
    """Return whether a range is a collective executed by the host."""
    return _RANGE.match(name) is not None


def host_rows(ranges: Sequence[Part], asks: Sequence[Part], groups: Groups) -> tuple[list[Row], str]:
    """Return a row for each range; and from what their groups were inferred, empty when no inference was needed."""
    ranges = sorted(ranges, key=lambda part: part.place.start_ns)
    linked = list(_linked(ranges, sorted(asks, key=lambda part: part.place.start_ns)))
    own_groups = [group for group in groups.configured if "gloo" in group.backend]
    workers = {(part.place.pid, part.place.tid) for part, ask, own in linked if not own and part.name[:5] == "gloo:"}
    # A process numbers its threads upwards from its own id, until ids wrap around.
    order = [tid for _, tid in sorted(workers, key=lambda one: (one[1] < one[0], one[1]))]
    group_of = _groups_of(order, own_groups)
    inferred = f"threads {', '.join(map(str, order))}" if group_of and len(own_groups) > 1 else ""
    return [_row(part, ask, own, own_groups, group_of, groups.rank) for part, ask, own in linked], inferred


def _row(
    part: Part, ask: Part | None, own: bool, own_groups: Sequence[Group], group_of: dict[int, Group], rank: int
) -> Row:
    op, place = canonical_op(part.name) if ask is None else _asked(ask), part.place
    group = group_of.get(place.tid) if not own else own_groups[0] if len(own_groups) == 1 else None
    elements = max(part.elements, -1 if ask is None else ask.elements)
    if op == "all_gather" and elements == part.elements > 0:  # a list of results has no recorded size
        elements = elements * group.size if group is not None and group.size > 0 else -1
    peer = -1
    if op in POINT_TO_POINT and ask is not None:
        peer = _peer(ask.peer, own_groups, rank)
    start, end, launch = place.start_ns, place.end_ns, 0 if ask is None else ask.place.start_ns
    if own and ask is not None:
        # The requesting thread does the work: before the range begins, and in the operator after it ended.
        start, end = min(start, launch), max(end, ask.place.end_ns)
    payload = 0 if op == "barrier" else bytes_of(elements, part.dtype)
    return start, end, op, "" if group is None else group.key, payload, part.dtype, peer, launch, place.tid


def _peer(index: int, own_groups: Sequence[Group], rank: int) -> int:
    """Return the global rank of the member `index`: the same in all possible groups, else -1 (not known).

    Impossible is a group without such a member, and one in which it would be the `rank` itself.
    """
    if not all(group.ranks for group in own_groups):
        return -1
    peers = {group.ranks[index] for group in own_groups if 0 <= index < len(group.ranks)} - {rank}
    return peers.pop() if len(peers) == 1 else -1


def _linked(ranges: Iterable[Part], asks: Sequence[Part]) -> Iterator[tuple[Part, Part | None, bool]]:
    """Yield each range with the operator that requested it, and whether the requesting thread executed it itself.

    Groups execute requests in order; several groups with the same operation at the same time may be confused, which
    only changes the order of their requests.
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
        own_groups = own.get(tid, [])
        while places.get(tid, 0) < len(own_groups) and own_groups[places[tid]].place.start_ns <= at:
            places[tid] += 1
        last = own_groups[places[tid] - 1] if own_groups and places[tid] else None
        if last is not None and at <= last.place.end_ns and _key(last)[0] == _key(part)[0]:
            yield part, last, True
            continue
        candidates = waiting.get(_key(part))
        yield part, candidates.popleft() if candidates else None, canonical_op(part.name) in POINT_TO_POINT


def _key(part: Part) -> tuple[str, int]:
    """Return what a range and its operator share: the operation and, where input and output are the same tensors, their
    size.

    gloo makes a reduce_scatter of an all_reduce of everything.
    """
    op = canonical_op(part.name)
    op = "all_reduce" if op == "reduce_scatter" else op
    return op, part.elements if op in ("all_reduce", "broadcast") else -1


def _asked(ask: Part) -> str:
    """Return the operation that an operator requests; an all_to_all with a size per rank is a variant of its own."""
    op = canonical_op(ask.name)
    return "all_to_all_v" if op == "all_to_all" and (ask.split or ask.name == "c10d::alltoall_") else op


def _groups_of(workers: list[int], own_groups: Sequence[Group]) -> dict[int, Group]:
    """Return the group of each worker thread, nothing unless exactly one assignment is possible.

    Threads are numbered in order of creation, group by group, those of one group together. Between two groups another
    thread is created (gloo's own), so neighbouring numbers belong to one group; other processes take numbers in
    between, so the reverse does not hold. An idle thread, or all of an unused group, have no events.
    """
    if len(own_groups) == 1:
        return dict.fromkeys(workers, own_groups[0])
    if len(own_groups) > _GROUPS or len(workers) > _THREADS * len(own_groups):
        return {}
    # By thread: the possible assignments of all threads before it, as sizes of the groups so far; two are enough to
    # know that it is ambiguous.
    ways: list[list[list[int]]] = [[[]], *([] for _ in workers)]
    for _ in own_groups:
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
    return {next(numbers): group for group, size in zip(own_groups, ways[-1][0], strict=True) for _ in range(size)}
