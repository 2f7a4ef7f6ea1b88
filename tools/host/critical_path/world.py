"""The threads of a recording, and what is known of the objects and processes between them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from whystall.tools.host.common.objects import Objects
from whystall.tools.host.common.timelines import Timeline, Wait
from whystall.tools.host.common.wait_kinds import POLLS, Kind, overslept, wait_kind
from whystall.tools.host.critical_path.enders import Enders
from whystall.tools.host.critical_path.ranks import STORE, Ranks
from whystall.tools.host.critical_path.walk import SAME_WAIT_NS, Walk

_INIT, _KTHREADD = 1, 2


@dataclass
class World:
    """All threads of a recording, and what is known of the objects between them."""

    lines: Mapping[int, Timeline]
    objects: Objects
    window_ns: int
    target: frozenset[int]
    lock_words: Mapping[int, set[int]] = field(default_factory=dict)
    children: Mapping[int, list[int]] = field(default_factory=dict)
    """Child processes by their parent, in order of pid."""
    presumed: set[tuple[int, int]] = field(default_factory=set)
    """(tid, pid): a thread that is taken to wait for a process that cannot run, since no object names what it waits
    for."""
    names: dict[int, str] = field(default_factory=dict)
    """Names of threads that ended waits and were not observed themselves, by tid."""
    pids: dict[int, int] = field(default_factory=dict)
    """Their processes."""
    throttled: frozenset[int] = frozenset()
    """Processes whose long waits for a CPU are due to a quota, by its own counter."""
    resident: frozenset[int] = frozenset()
    """Processes that were seen at the start or at the end of the window; empty: not known."""
    used_ns: Mapping[int, int] = field(default_factory=dict)
    """CPU time of processes since they started; empty: not known."""
    _kinds: dict[tuple[object, ...], Kind] = field(default_factory=dict)
    _ends: dict[int, list[Wait]] = field(default_factory=dict)

    def is_kernel(self, line: Timeline) -> bool:
        """Return whether a thread belongs to the kernel: a child of kthreadd, or an idle thread."""
        return self.is_kernel_process(line.pid)

    def is_kernel_process(self, pid: int) -> bool:
        """As `is_kernel`, of process `pid`."""
        return pid <= 0 or pid == _KTHREADD or pid in self.children.get(_KTHREADD, ())

    def kind(self, line: Timeline, wait: Wait) -> Kind:
        """Return what a wait is for."""
        key = (
            line.pid,
            wait.state,
            wait.syscall,
            wait.path,
            wait.object,
            wait.lock,
            wait.asked_ns < 0,
            min(wait.fd, 0),
        )
        known = (*key, id(wait.kernel), id(wait.place))  # each stack is one object
        if known not in self._kinds:
            gil, locks = self.objects.gil_words.get(line.pid, set()), self.lock_words.get(line.pid, set())
            kind = wait_kind(wait, gil, locks)
            socket = self.objects.socket(wait.object)
            if kind.code == "socket" and socket is not None:
                if self.objects.awaits_clients(wait.object) or self._wakes_itself(line, wait):
                    kind = Kind("events")  # no client connects, or sends a request
                elif socket["remote"].endswith(":53"):
                    kind = Kind("dns", kind.detail)
            elif kind.code == "pipe" and self._wakes_itself(line, wait):
                kind = Kind("events")
            self._kinds[known] = kind
        kind = self._kinds[known]
        if kind.code == "queue" and self.ranks.awaited(line, wait):
            return Kind("collective")
        if kind.code == "socket" and self.ranks.in_store(wait):
            return Kind("collective", STORE)
        if kind.code == "sleep" and overslept(wait):
            return Kind("frozen")
        return kind

    def _wakes_itself(self, line: Timeline, wait: Wait) -> bool:
        """Return whether a poll of a pipe or socket is that of a loop which only its own process wakes, as servers have
        one for signals. Queues of multiprocessing are pipes with both ends too."""
        queue = any(module.startswith("multiprocessing/") for _, module in wait.place.library)
        return wait.syscall in POLLS and not queue and self.objects.wakes_itself(wait.object, line.pid)

    def ends(self, line: Timeline) -> list[Wait]:
        """Return, for each wait of a thread, the last wait of the same series: waits in the same place that follow
        time-outs."""
        if line.tid not in self._ends:
            ends = list(line.waits)
            for at in range(len(ends) - 2, -1, -1):
                wait, after = line.waits[at], line.waits[at + 1]
                again = after.start_ns - wait.end_ns < SAME_WAIT_NS and _same(wait, after)
                if wait.context == "timer" and again and self.kind(line, wait).code != "sleep":
                    ends[at] = ends[at + 1]
            self._ends[line.tid] = ends
        return self._ends[line.tid]

    def end_of(self, line: Timeline, wait: Wait) -> Wait:
        """Return the last wait of the series of `wait`; see `ends`."""
        ends = self.ends(line)
        number = line.number_of(wait)
        return ends[number] if number is not None else wait

    def comm(self, tid: int) -> str:
        """Return the name of a thread; empty if unknown."""
        line = self.lines.get(tid)
        return line.comm if line is not None else self.names.get(tid, "")

    def pid_of(self, tid: int) -> int:
        """Return the process of a thread; 0 if unknown."""
        line = self.lines.get(tid)
        return line.pid if line is not None else self.pids.get(tid, 0)

    def is_brief(self, tid: int) -> bool:
        """Return whether a thread is in a process that started and ended within the window."""
        pid = self.pid_of(tid)
        return pid > 0 and bool(self.resident) and pid not in self.resident

    def serves(self, pid: int) -> bool:
        """Return whether a process is a server: it listens for clients, or its parent does for it, or one connected."""
        parents = {parent for parent, children in self.children.items() if pid in children}
        return self.objects.serves({pid, *parents - {_INIT}})

    def object_at_end(self, line: Timeline, wait: Wait) -> str:
        """Return the object of a wait that has not ended, as read at the end of the window: also of one that began
        before it, and the path of a FIFO that is being opened. Empty if it is not known."""
        row = self.objects.threads.get(line.tid) if wait.open else None
        return str(row["object"]) if row is not None else ""

    @cached_property
    def ranks(self) -> Ranks:
        """The processes of a distributed job."""
        return Ranks(self.lines, self.objects, self.children, self.target)

    @cached_property
    def enders(self) -> Enders:
        """Who ended waits, or could."""
        return Enders(self)

    @cached_property
    def walk(self) -> Walk:
        """What threads did, with what those did that they waited for."""
        return Walk(self)


def _same(one: Wait, other: Wait) -> bool:
    return (one.syscall, one.lock, one.object, one.place) == (other.syscall, other.lock, other.object, other.place)
