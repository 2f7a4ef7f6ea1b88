"""Follow waits from host to host: who is at the other end of a connection, and what it did meanwhile. Pure.

Both ends of a connection are listed by the kernels of their hosts, with the same two addresses. If they are not, as
behind address translation, the other end is not found; it is never guessed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Literal, NamedTuple

from pydantic import Field

from whystall.agent_server.fleet.hostlist import fold
from whystall.tools.contract.result import Model
from whystall.tools.host.critical_path.across import PERMILLE, SLICES, Across, Part
from whystall.tools.host.critical_path.tool import ThreadRow

When = Literal["window", "meanwhile", "whole_window", "later"]
"""Of what time a hop is: the `window` of the first host; `meanwhile`: the time of the wait; `whole_window`: the other
host's window, as the two cannot be aligned; `later`: one that was observed afterwards."""
Outcome = Literal[
    "found",  # the process at the end runs, or waits for something else than another host
    "idle",  # it has no work: it waits for a request
    "mixed",  # it did several things, none of them for long, or what it did is not known
    "cycle",  # processes wait for each other
    "unknown_peer",  # no host that answered lists the other end
    "several_peers",  # on which of several connections it waits is not known
    "disputed",  # several hosts, or processes, list the other end
    "not_observed",  # the process at the other end was not observed
    "too_long",  # more hops than are followed
]
MOST_HOPS = 8
_MOST_PATHS, _MOST_FURTHER = 50, 16
# Least share of its window for which a thread waits for another host, and of the time of a wait for which the process
# at the other end does one thing.
_LEAST_WAIT, _LEAST_DOES = 0.05, 0.25
# Part of the time of a wait that the other host's window has to contain.
_COVERED = 0.5
_MOST_SHIFTS = 100
# What does not show what a process did, or for whom it waited.
_UNKNOWN = frozenset({"unknown", "not_followed", "absent", "rest", ""})
_UNKNOWN |= {"socket", "socket_full", "connect", "collective"}
Process = tuple[str, int]
"""Host and pid."""


class Hop(Model):
    """One process of a path, and what it did: `what` to `object` as in `Part`. `by_pid`, `by_comm`: the process that
    did it, if it was another one of that host, for which it waited. `pct`: share of its window, or of the time of the
    wait before, then at least; `apart_ms`: error of the time between the beginnings of both windows, either way.
    `peer`: the address waited for, if the process there is not known; `peers`: how many it may wait for."""

    host: str
    rank: int | None = None
    pid: int
    comm: str = ""
    when: When
    what: str = ""
    mode: str = ""
    detail: str = ""
    line: str = ""
    object: str = ""
    by_pid: int | None = None
    by_comm: str = ""
    pct: float = 0.0
    apart_ms: float | None = None
    peer: str = ""
    peers: int = 1


class HostPath(Model):
    """A wait that crosses hosts. `hosts`: those whose waits end there (a hostlist); `hops`: of the one that is most
    hops away, or waits longest; `claimed_by`: hosts that list the same end of a connection."""

    hosts: str
    count: int
    outcome: Outcome
    hops: list[Hop] = Field(min_length=1)
    claimed_by: list[str] = Field(default_factory=list)


@dataclass(frozen=True)
class Seen:
    """What a host observed of the process `pid`, and its thread. `starts`: when its window began, at the earliest and
    at the latest, in seconds on the centre's clock; None: not known. `later`: it was observed after the others."""

    host: str
    pid: int
    thread: ThreadRow
    across: Across
    starts: tuple[float, float] | None = None
    later: bool = False

    @property
    def process(self) -> Process:
        """The process."""
        return self.host, self.pid


@dataclass(frozen=True)
class Followed:
    """All paths, those waited for longest first. `unobserved`: processes to observe, to follow the paths further; `by`:
    the path of each host, with the lines at which it waits."""

    paths: list[HostPath] = field(default_factory=list)
    unobserved: list[Process] = field(default_factory=list)
    by: Mapping[str, tuple[HostPath, frozenset[str]]] = field(default_factory=dict)


class _End(NamedTuple):
    """The other end of what a part waits for; `process` if it is known."""

    outcome: Outcome
    process: Process | None = None
    peer: str = ""
    peers: int = 1
    claims: tuple[str, ...] = ()


_Group = tuple[str, _End | int]
"""Parts that count as one: waits for one end, or the number of a part."""


class _Does(NamedTuple):
    group: _Group
    share: float
    when: When
    apart_ms: float | None = None


def follow(seen: Sequence[Seen], later: Sequence[Seen] = (), ranks: Mapping[Process, int] | None = None) -> Followed:
    """Return the paths of the waits of all `seen`, which were observed at about the same time. `later`: processes at
    other ends that were observed afterwards. `ranks`: of the job, by process."""
    return _Follower(seen, later, ranks or {}).follow()


class _Follower:
    def __init__(self, seen: Sequence[Seen], later: Sequence[Seen], ranks: Mapping[Process, int]) -> None:
        self._seen: dict[Process, Seen] = {}
        for one in [*seen, *later]:
            self._seen.setdefault(one.process, one)
        self._ranks = ranks
        self._holders: dict[tuple[str, str], set[Process]] = defaultdict(set)
        for one in seen:
            for each in one.across.connections:
                self._holders[each.local, each.remote].add((one.host, each.pid))

    def follow(self) -> Followed:
        tried = [self._path(one) for one in self._seen.values() if not one.later]
        found = [one for one in tried if one is not None]
        groups: dict[object, list[tuple[HostPath, frozenset[str]]]] = defaultdict(list)
        for one in found:
            groups[_end_of(one[0])].append(one)
        paths: list[HostPath] = []
        by: dict[str, tuple[HostPath, frozenset[str]]] = {}
        for group in groups.values():
            longest = max((path for path, _ in group), key=lambda path: (len(path.hops), path.hops[0].pct))
            hosts = list(dict.fromkeys(path.hops[0].host for path, _ in group))
            joined = longest.model_copy(update={"hosts": fold(hosts), "count": len(hosts)})
            paths.append(joined)
            by |= {path.hops[0].host: (joined, lines) for path, lines in group}
        paths.sort(key=lambda path: (-path.hops[0].pct, path.hosts))
        ends = [path.hops[-1] for path in paths if path.outcome == "not_observed"]
        unobserved = list(dict.fromkeys((hop.host, hop.pid) for hop in ends))
        return Followed(paths[:_MOST_PATHS], unobserved[:_MOST_FURTHER], by)

    def _path(self, first: Seen) -> tuple[HostPath, frozenset[str]] | None:
        """Return the path of the longest wait of `first` for another host, and the lines of it; None without one."""
        shares: dict[_Group, float] = defaultdict(float)
        for number, part in enumerate(first.across.parts):
            if part.what != "events" and part.ends:
                shares[self._group(first, number, part)] += sum(part.slices) / (PERMILLE * SLICES)
        group = max(shares, key=lambda one: shares[one], default=None)
        if group is None or shares[group] < _LEAST_WAIT:
            return None
        hops = [self._hop(first, _Does(group, min(shares[group], 1.0), "window"))]
        outcome, claims = self._further(first, group, hops)
        path = HostPath(hosts=first.host, count=1, outcome=outcome, hops=hops, claimed_by=list(claims))
        return path, frozenset(part.line for _, part in self._parts(first, group))

    def _further(self, at: Seen, group: _Group, hops: list[Hop]) -> tuple[Outcome, tuple[str, ...]]:
        """Add the hops behind the wait `group` of `at`, and return how the path ends."""
        visited = {at.process}
        while isinstance(end := group[1], _End):
            if end.process is None:
                return end.outcome, end.claims
            if len(hops) >= MOST_HOPS:
                return "too_long", ()
            host, pid = end.process
            other = self._seen.get(end.process)
            if other is None:
                hops.append(Hop(host=host, rank=self._ranks.get(end.process), pid=pid, when=hops[-1].when))
                return "not_observed", ()
            does = self._meanwhile(at, group, other)
            hops.append(self._hop(other, does))
            visited.add(other.process)
            if isinstance(does.group[1], _End) and does.group[1].process in visited:
                return "cycle", ()
            if does.group[0] == "events":
                return "idle", ()
            if does.share < _LEAST_DOES or (hops[-1].what in _UNKNOWN and not isinstance(does.group[1], _End)):
                return "mixed", ()
            at, group = other, does.group
        return "found", ()

    def _hop(self, seen: Seen, does: _Does) -> Hop:
        """Return what `seen` did, by its longest part of that kind."""
        _, part = max(self._parts(seen, does.group), key=lambda one: sum(one[1].slices), default=(0, _nothing()))
        end = does.group[1] if isinstance(does.group[1], _End) else None
        other = part.pid not in (0, seen.pid)
        return Hop(
            host=seen.host,
            rank=self._ranks.get(seen.process),
            pid=seen.pid,
            comm=part.comm if part.comm and not other else seen.thread.comm,
            when=does.when,
            **part.model_dump(include={"what", "mode", "detail", "line", "object"}),
            by_pid=part.pid if other else None,
            by_comm=part.comm if other else "",
            pct=100.0 * does.share,
            apart_ms=does.apart_ms,
            peer=end.peer if end is not None else "",
            peers=end.peers if end is not None else 1,
        )

    def _parts(self, seen: Seen, group: _Group) -> list[tuple[int, Part]]:
        return [each for each in enumerate(seen.across.parts) if self._group(seen, *each) == group]

    def _group(self, seen: Seen, number: int, part: Part) -> _Group:
        sort = "events" if part.what == "events" else "does"
        return (sort, self._end(seen, part)) if part.ends else (sort, number)

    def _end(self, seen: Seen, part: Part) -> _End:
        """Return who has the other end of the connections of `part`, if it is one process for all of them."""
        found: dict[Process | None, str] = {}
        for number in part.ends:
            one = seen.across.connections[number]
            claims = self._holders.get((one.remote, one.local), set())
            if len(hosts := {host for host, _ in claims}) > 1:
                return _End("disputed", peer=one.remote, claims=tuple(sorted(hosts)))
            # of processes that share a socket, the one that was observed
            found[min(claims, key=lambda each: (each not in self._seen, each), default=None)] = one.remote
        if len(found) > 1 or (None in found and len(part.ends) > 1):
            return _End("several_peers", peers=len(part.ends))
        ((process, remote),) = found.items()
        return _End("found", process) if process is not None else _End("unknown_peer", peer=remote)

    def _meanwhile(self, waiter: Seen, group: _Group, other: Seen) -> _Does:
        """Return what `other` did most while `waiter` waited for it.

        When their windows began is known within bounds. What it did is taken for `meanwhile` if it is the same wherever
        the windows lie within them; its share is then the smallest.
        """
        parts = [part for _, part in self._parts(waiter, group)]
        waits = [min(1.0, sum(part.slices[n] for part in parts) / PERMILLE) for n in range(SLICES)]
        own = [(self._group(other, *each), each[1].slices) for each in enumerate(other.across.parts)]
        later = waiter.later or other.later
        bounds = None if later else _apart(waiter, other)
        if bounds is not None:
            found = [_most(own, waits, waiter, other, shift) for shift in _shifts(*bounds, other.across.window_ms)]
            if found and None not in found and len({one[0] for one in found if one}) == 1:
                group_, share = min((one for one in found if one), key=lambda one: one[1])
                return _Does(group_, share, "meanwhile", 1000.0 * (bounds[1] - bounds[0]) / 2)
        whole = [(of, [sum(slices) / SLICES]) for of, slices in own]
        apart = 1000.0 * (bounds[1] - bounds[0]) / 2 if bounds is not None else None
        shares = _shares(whole, [(sum(waits) / SLICES, 0)], waiter.process)
        best = max(shares, key=lambda one: shares[one], default=("does", -1))
        return _Does(best, shares.get(best, 0.0), "later" if later else "whole_window", apart)


def _nothing() -> Part:
    return Part(pid=0, comm="", what="unknown", slices=[0] * SLICES)


def _end_of(path: HostPath) -> object:
    """Return what is equal for paths that end at the same place."""
    last = path.hops[-1]
    if path.outcome == "cycle":
        return frozenset((hop.host, hop.pid) for hop in path.hops)
    if path.outcome in ("unknown_peer", "several_peers", "disputed"):
        return path.outcome, last.host, last.pid, last.peer
    return path.outcome, last.host, last.pid, last.by_pid, last.what, last.line


def _apart(one: Seen, other: Seen) -> tuple[float, float] | None:
    """Return by how many seconds the window of `one` began after that of `other`, at least and at most."""
    if one.starts is None or other.starts is None:
        return None
    return one.starts[0] - other.starts[1], one.starts[1] - other.starts[0]


def _shifts(low: float, high: float, window_ms: float) -> list[float]:
    """Return instants from `low` to `high`, at most a slice of the window apart; none if that were too many."""
    count = ceil((high - low) / (window_ms / 1000 / SLICES))
    if count > _MOST_SHIFTS:
        return []
    return [low + (high - low) * number / count for number in range(count + 1)] if count else [low]


def _most(
    own: Sequence[tuple[_Group, Sequence[float]]], waits: Sequence[float], waiter: Seen, other: Seen, shift: float
) -> tuple[_Group, float] | None:
    """Return what `other` did most in the `waits` of `waiter` (share of each slice), and its share of them, if the
    window of `waiter` began `shift` seconds after its own; None if its window does not contain most of them."""
    waiter_ms, other_ms = waiter.across.window_ms / SLICES, other.across.window_ms / SLICES  # of a slice
    starts_ms = [1000 * shift + (n + 0.5) * waiter_ms for n in range(len(waits))]
    placed = [(wait, int(at // other_ms)) for wait, at in zip(waits, starts_ms, strict=True) if wait > 0]
    within = [(wait, at) for wait, at in placed if 0 <= at < SLICES]
    if sum(wait for wait, _ in within) < _COVERED * sum(waits) or not within:
        return None
    shares = _shares(own, within, waiter.process)
    best = max(shares, key=lambda one: shares[one], default=None)
    return (best, shares[best]) if best is not None else None


def _shares(
    own: Sequence[tuple[_Group, Sequence[float]]], waits: Iterable[tuple[float, int]], waiter: Process
) -> dict[_Group, float]:
    """Return which share of `waits` (share of a slice, its number) a process spent in each of its `own` groups (with
    permille of each slice).

    Where in a slice it did what is not known. That it waits for `waiter`, or for any request, is taken for the same
    time only if the slice has no room for both: processes that answer each other wait by turns.
    """
    found: dict[_Group, float] = defaultdict(float)
    total = 0.0
    for wait, at in waits:
        total += wait
        scale = max(float(PERMILLE), sum(slices[at] for _, slices in own))
        back = {of for of, _ in own if of[0] == "events" or (isinstance(of[1], _End) and of[1].process == waiter)}
        turn = sum(slices[at] for of, slices in own if of in back) / scale
        both = max(0.0, wait + turn - 1.0)
        for of, slices in own:
            share = slices[at] / scale
            if of in back:
                found[of] += both * share / turn if turn else 0.0
            elif turn < 1.0:
                found[of] += (wait - both) * share / (1.0 - turn)
    return {of: took / total for of, took in found.items()} if total else {}
