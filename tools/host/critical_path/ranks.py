"""The ranks of a distributed job among the processes of a recording, and the waits that are for them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from whystall.tools.host.common.objects import Objects
from whystall.tools.host.common.timelines import Timeline, Wait
from whystall.tools.host.common.wait_kinds import keeps_store, runs_collectives

STORE = "store"
"""Detail of a wait for other ranks: for a key in their store."""
_AUTOGRAD = "torch/autograd/"


class Ranks:
    """See the module. `children`: child processes by their parent; `target`: the processes that were asked for."""

    def __init__(
        self,
        lines: Mapping[int, Timeline],
        objects: Objects,
        children: Mapping[int, Sequence[int]],
        target: frozenset[int],
    ) -> None:
        self._lines = lines
        self._objects = objects
        self._children = children
        self._target = target
        self._ranks = {line.pid for line in lines.values() if runs_collectives(line.comm)}
        self._stores = {line.pid for line in lines.values() if keeps_store(line.comm)}
        self._jobs: dict[int, frozenset[int]] = {}

    def job(self, pid: int) -> frozenset[int]:
        """Return the processes of the job of process `pid`: the target, and, if it is a rank, those to which it has
        connections, with their descendants."""
        if pid not in self._jobs:
            others = self._objects.connected_processes(pid) if pid in self._ranks else {}
            found = {other for other in others if other in self._ranks}
            new = found
            while new:
                new = {child for one in new for child in self._children.get(one, ())} - found
                found = found | new
            self._jobs[pid] = self._target | {pid} | found
        return self._jobs[pid]

    def rank_of(self, pid: int) -> int | None:
        """Return the rank that process `pid` is, or works for as its child; None if there is none."""
        if pid in self._ranks:
            return pid
        return next((rank for rank in self._ranks if pid in self._children.get(rank, ())), None)

    def awaited(self, line: Timeline, wait: Wait) -> bool:
        """Return whether a thread waits for one of its process that runs collectives.

        Its stack need not show that: the autograd engine waits for the gradients of all ranks in a hook of the module.
        A wait in it that no thread has ended is for them if the process has such threads.
        """
        if runs_collectives(line.comm):
            return False
        if not wait.open:
            return wait.waker_pid == line.pid and runs_collectives(wait.waker_comm)
        in_engine = any(module.startswith(_AUTOGRAD) for _, module in wait.place.library)
        return in_engine and line.pid in self._ranks

    def in_store(self, wait: Wait) -> bool:
        """Return whether a thread waits for a key in the store of the ranks, which another rank has to set."""
        peer = self._objects.peer(wait.object)
        return peer is not None and peer["pid"] in self._stores

    def late(self, line: Timeline, in_collective: Callable[[int], bool]) -> int | None:
        """Return the process that has not come to the collective in which thread `line` stays; None if several could be
        it.

        Of the processes of the same command to which this one has connections, one that waits in no collective. Not
        its launcher, and none if further ranks may be on other hosts.
        """
        if self._objects.reaches_others(line.pid):
            return None
        comm = next((one.comm for one in self._lines.values() if one.tid == line.pid), line.comm)
        ranks = [pid for pid, name in self._objects.connected_processes(line.pid).items() if name == comm]
        ranks = [pid for pid in ranks if line.pid not in self._children.get(pid, ())]
        found = [pid for pid in ranks if not in_collective(pid)] or ranks
        return found[0] if len(found) == 1 else None
