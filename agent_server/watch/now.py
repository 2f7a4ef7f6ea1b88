"""What the processes of jobs wait for now: shares of the last seconds, and the wait in progress, of one thread each."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from whystall.bpf.layout import OFF_R
from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.objects_proc import Proc, waited_descriptors
from whystall.tools.collect.proc_calls import syscall_name
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from whystall.tools.collect.slice_scan import OpenWait, Waits

NS = 1_000_000_000
WINDOW_NS = 5 * NS
_MOST_WAITS = 100_000  # of a process in the window
_MOST_SPOTS = 1 << 16
_BUSY = 0.05  # a thread that ran less than this does not advance the job


@dataclass(frozen=True)
class Spot:
    """Where a thread waits: system call, empty outside of one, and line of the program, empty if unknown."""

    call: str
    line: str


class SpotShare(NamedTuple):
    """The share of the time in which a thread waited in one spot."""

    share: float
    spot: Spot


@dataclass(frozen=True)
class Now:
    """How one thread of a process spent the last seconds, as shares of them.

    `waits`: share and spot of waits of at least the recorder's threshold, the largest first; `longest_s`: of the waits
    in the first of them; `waiting_s`: for how long it is in its present wait, 0 if it runs; `object`: path, ``socket``
    or ``pipe`` that it waits for now, empty if it runs or that is unknown.
    """

    pid: int
    tid: int
    running: float
    without_cpu: float
    waits: list[SpotShare] = field(default_factory=list)
    longest_s: float = 0.0
    waiting_s: float = 0.0
    object: str = ""

    @property
    def waiting(self) -> float:
        """Return the share of all waits."""
        return max(0.0, 1.0 - self.running - self.without_cpu)


class _Wait(NamedTuple):
    tid: int
    start_ns: int
    end_ns: int  # then it was ready to run
    place: int


class _Use(NamedTuple):
    """Instant, time on a CPU, and time without one of a thread, ns."""

    at_ns: int
    ran_ns: int
    without_ns: int


class RecentWaits:
    """The waits of processes in the last seconds."""

    def __init__(self, described: Callable[[int], tuple[int, str]], proc: Proc | None = None) -> None:
        """`described`: returns number of the system call and line of a place."""
        self._described = described
        self._proc = proc or Proc()
        self._waits: dict[int, deque[_Wait]] = {}
        self._spots: dict[int, Spot] = {}
        self._uses: dict[tuple[int, int], deque[_Use]] = {}

    def follow(self, pids: Iterable[int]) -> None:
        """Keep only the processes `pids`, and begin with the new ones."""
        self._waits = {pid: self._waits.get(pid) or deque(maxlen=_MOST_WAITS) for pid in pids}
        self._uses = {key: uses for key, uses in self._uses.items() if key[0] in self._waits}

    def feed(self, waits: Waits, now_ns: int) -> None:
        """Add waits that ended, and read the counters of the threads."""
        for index, pid in enumerate(waits.tgid):
            rows = self._waits.get(pid)
            if rows is not None and waits.state[index] != OFF_R:
                ready = waits.end_ns[index] - waits.runnable_ns[index]
                rows.append(_Wait(waits.tid[index], waits.start_ns[index], ready, waits.place[index]))
                self._spot(waits.place[index])  # its stack is known now
        begin = now_ns - WINDOW_NS
        for pid, rows in self._waits.items():
            while rows and rows[0].end_ns < begin:
                rows.popleft()
            tids = self._proc.tids(pid)[:1] or []
            candidates = {*tids, *(row.tid for row in rows)}
            for key in [key for key in self._uses if key[0] == pid and key[1] not in candidates]:
                del self._uses[key]
            for tid in candidates:
                self._count(pid, tid, now_ns)

    def of(self, pid: int, in_progress: Mapping[int, OpenWait], now_ns: int) -> Now | None:
        """Return how the main thread of the process `pid` spent the last seconds, or the busiest one if the main thread
        does nothing; None if the process has ended or is new."""
        shares = {tid: use for (owner, tid), uses in self._uses.items() if owner == pid and (use := _share(uses))}
        if not shares:
            return None
        tid = pid if pid in shares else max(shares)
        if sum(shares[tid]) < _BUSY:
            busiest = max(shares, key=lambda one: sum(shares[one]))
            tid = busiest if sum(shares[busiest]) >= _BUSY else tid
        begin = max(now_ns - WINDOW_NS, self._uses[pid, tid][0].at_ns)
        sums: dict[Spot, tuple[int, int]] = {}
        for row in self._waits[pid]:
            if row.tid == tid:
                _add(
                    sums,
                    self._spot(row.place),
                    max(0, row.end_ns - max(row.start_ns, begin)),
                    row.end_ns - row.start_ns,
                )
        since, thing = self._present(pid, tid, in_progress, sums, begin, now_ns)
        rest = max(1, now_ns - begin)
        rows = sorted(((waited / rest, spot) for spot, (waited, _) in sums.items()), key=lambda row: -row[0])
        return Now(
            pid=pid,
            tid=tid,
            running=shares[tid][0],
            without_cpu=shares[tid][1],
            waits=[SpotShare(min(1.0, share), spot) for share, spot in rows],
            longest_s=sums[rows[0][1]][1] / NS if rows else 0.0,
            waiting_s=(now_ns - since) / NS if since else 0.0,
            object=thing,
        )

    def _present(
        self,
        pid: int,
        tid: int,
        in_progress: Mapping[int, OpenWait],
        sums: dict[Spot, tuple[int, int]],
        begin: int,
        now_ns: int,
    ) -> tuple[int, str]:
        """Add the wait in progress to `sums`; return since when it lasts, 0 if there is none, and its object."""
        call = parse.syscall(self._proc.read(pid, "syscall", tid))
        if call is None:
            return 0, ""
        name = syscall_name(call.nr) if call.nr >= 0 else ""
        thing = self._object(pid, call, name)
        open_wait = in_progress.get(tid)
        last = max((row.end_ns for row in self._waits[pid] if row.tid == tid), default=0)
        if open_wait is None or open_wait.start_ns < last:
            return 0, thing
        spot = self._spot(open_wait.place)
        if spot.call == name:
            _add(sums, spot, now_ns - max(open_wait.start_ns, begin), now_ns - open_wait.start_ns)
            return open_wait.start_ns, thing
        return 0, thing

    def _object(self, pid: int, call: parse.InSyscall, name: str) -> str:
        numbers = waited_descriptors(call, name, None) if name else []
        if len(numbers) != 1:
            return ""
        link = self._proc.link(pid, f"fd/{numbers[0]}")
        kind = next((word for word in ("socket", "pipe") if link.startswith(f"{word}:".encode())), "")
        return kind or clean(os.fsdecode(link))

    def _spot(self, place: int) -> Spot:
        known = self._spots.get(place)
        if known is None or not known.line:
            if len(self._spots) > _MOST_SPOTS:
                self._spots.clear()
            nr, line = self._described(place)
            if known is None or line:
                known = self._spots[place] = Spot(syscall_name(nr) if nr >= 0 else "", line)
        return known

    def _count(self, pid: int, tid: int, now_ns: int) -> None:
        words = self._proc.read(pid, "schedstat", tid).split()
        if len(words) < 2:
            self._uses.pop((pid, tid), None)
            return
        uses = self._uses.setdefault((pid, tid), deque())
        uses.append(_Use(now_ns, int(words[0]), int(words[1])))
        while len(uses) > 2 and uses[1].at_ns <= now_ns - WINDOW_NS:
            uses.popleft()


def _share(uses: deque[_Use]) -> tuple[float, float] | None:
    """Return the shares of the time on a CPU and without one; None before the second reading."""
    first, last = uses[0], uses[-1]
    span = last.at_ns - first.at_ns
    if span <= 0:
        return None
    return min(1.0, (last.ran_ns - first.ran_ns) / span), min(1.0, (last.without_ns - first.without_ns) / span)


def _add(sums: dict[Spot, tuple[int, int]], spot: Spot, waited: int, whole: int) -> None:
    before, longest = sums.get(spot, (0, 0))
    sums[spot] = before + waited, max(longest, whole)
