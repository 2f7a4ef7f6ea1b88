"""Follow a wait to the threads that ended it, and what they did meanwhile. Pure.

The method is that of Perfetto's critical path of ``thread_executing_span`` and of BCC's ``offwaketime``: the time for
which a thread waits is the time of the thread that wakes it, and so on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from whystall.tools.host.common.held import ENDED, HELD_WAITS
from whystall.tools.host.common.objects import Objects
from whystall.tools.host.common.path_codes import RUNNING
from whystall.tools.host.common.timelines import Timeline, Wait
from whystall.tools.host.common.wait_kinds import POLLS, Kind, overslept, running_kind, spinning_wait, wait_kind
from whystall.tools.host.common.wait_syscalls import RECEIVES, SENDS
from whystall.tools.host.critical_path.brief import brief_waits
from whystall.tools.host.critical_path.ranks import STORE, Ranks

_DEPTH = 12
_INIT, _KTHREADD = 1, 2
ON_CPU = (RUNNING, "cpu")
_OF_KERNEL = (*ON_CPU, "unknown")
# Most waits that are followed for one table; further ones count as not followed.
_BUDGET = 400_000
# A thread that waits again in the same place this soon after a time-out is in the same wait.
_SAME_WAIT_NS = 2_000_000
# A thread that runs for less than this share of the window holds the interpreter lock for no noticeable time.
_RUNS_SHARE = 0.005
# If all other threads run for less than this share of a wait for the interpreter lock, its holder waits itself.
_MOSTLY = 0.5
# A thread without quota left waits for the rest of a period, which is 100 ms by default; one that competes waits for a
# slice, of 3 ms by default (kernel/sched/fair.c, sysctl_sched_base_slice).
THROTTLED_NS = 4_000_000
# Waits that another thread ends, where the context of the wake-up was not recorded.
_BY_THREADS = frozenset(
    {
        "lock",
        "interpreter_lock",
        "queue",
        "queue_full",
        "barrier",
        "join",
        "pipe",
        "pipe_full",
        "socket",
        "child",
        "collective",
    }
)
_ON_SOCKETS = frozenset({"socket", "events", "collective", "queue"})
# Waits of which neither the call nor a lock names another process, although one may be what it is for.
_UNNAMED = frozenset({"collective", "queue", "queue_full", "join", "barrier", "events"})
NOT_FOLLOWED = "not_followed"
MUTUAL = "mutual"
"""Detail of a wait that has not ended, or that timed out, for a thread that waits for this one."""


class Step(NamedTuple):
    """What a thread of a chain did: `code` is a wait's, or `RUNNING` with its mode in `mode`."""

    tid: int
    code: str
    mode: str
    detail: str
    line: str
    object: str


Chains = Counter[tuple[Step, ...]]
"""Time by chain: the steps from the first waker to the thread at the end."""


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
    _kinds: dict[tuple[object, ...], Kind] = field(default_factory=dict)
    _ends: dict[int, list[Wait]] = field(default_factory=dict)
    _busiest: dict[int, Timeline | None] = field(default_factory=dict)
    _running: dict[int, list[Timeline]] = field(default_factory=dict)
    _held: dict[tuple[int, str], int | None] = field(default_factory=dict)
    presumed: set[tuple[int, int]] = field(default_factory=set)
    """(tid, pid): a thread that is taken to wait for a process that cannot run, since no object names what it waits
    for."""
    names: dict[int, str] = field(default_factory=dict)
    """Names of threads that ended waits and were not observed themselves, by tid."""
    throttled: frozenset[int] = frozenset()
    """Processes whose long waits for a CPU are due to a quota, by its own counter."""
    _pids: dict[int, int] = field(default_factory=dict)
    resident: frozenset[int] = frozenset()
    """Processes that were seen at the start or at the end of the window; empty: not known."""
    used_ns: Mapping[int, int] = field(default_factory=dict)
    """CPU time of processes since they started; empty: not known."""
    _brief: dict[int, tuple[Wait, str] | None] = field(default_factory=dict)
    spent: int = 0

    @property
    def exhausted(self) -> bool:
        """Whether so many waits were followed that further ones are not."""
        return self.spent > _BUDGET

    @cached_property
    def ranks(self) -> Ranks:
        """The processes of a distributed job."""
        return Ranks(self.lines, self.objects, self.children, self.target)

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
                if self.objects.awaits_clients(wait.object):
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
        """Return whether a poll of a pipe is that of a loop which only its own process wakes, as servers have one for
        signals. Queues of multiprocessing are pipes with both ends too."""
        queue = any(module.startswith("multiprocessing/") for _, module in wait.place.library)
        return wait.syscall in POLLS and not queue and self.objects.wakes_itself(wait.object, line.pid)

    def ends(self, line: Timeline) -> list[Wait]:
        """Return, for each wait of a thread, the last wait of the same series: waits in the same place that follow
        time-outs."""
        if line.tid not in self._ends:
            ends = list(line.waits)
            for at in range(len(ends) - 2, -1, -1):
                wait, after = line.waits[at], line.waits[at + 1]
                again = after.start_ns - wait.end_ns < _SAME_WAIT_NS and _same(wait, after)
                if wait.context == "timer" and again and self.kind(line, wait).code != "sleep":
                    ends[at] = ends[at + 1]
            self._ends[line.tid] = ends
        return self._ends[line.tid]

    def end_of(self, line: Timeline, wait: Wait) -> Wait:
        """Return the last wait of the series of `wait`; see `ends`."""
        ends = self.ends(line)
        number = line.number_of(wait)
        return ends[number] if number is not None else wait

    def waker(self, line: Timeline, wait: Wait, code: str) -> Timeline | None:
        """Return the thread that ended `wait`, or that could: None if no thread does, or it is not known."""
        if code == "interpreter_lock":
            return self._runs_meanwhile(line, wait) or self._holder(line, wait, code)
        end = self.end_of(line, wait)
        if end.open or end.waker_tid <= 0 or end.waker_tid == line.tid:
            return self._holder(line, end, code)
        other = self.lines.get(end.waker_tid)
        if code in ("socket", "events") and end.context == "task" and not self._may_send(line, end, code):
            return self._holder(line, end, code)  # it only forwards packets, such as the owner of a TUN device
        if end.context in ("task", "signal") or (not end.context and code in _BY_THREADS):
            return other or self._unobserved(end)
        # the reader's acknowledgement arrives while it is still in its call
        reads = end.context == "network" and end.waker_syscall in RECEIVES and end.waker_pid != line.pid
        if code == "socket_full" and reads and self.objects.connected(line.pid, end.waker_pid):
            return other or self._unobserved(end)
        if end.context in ("network", "interrupt") and code in _ON_SOCKETS:
            peer = self.objects.peer(end.object)
            local = peer is not None and peer["pid"] == end.waker_pid
            sends = end.waker_syscall in SENDS
            if local or (sends and end.waker_pid != line.pid and self.objects.connected(line.pid, end.waker_pid)):
                return other or self._unobserved(end)
            return self._holder(line, end, code)
        if not end.context:
            return self._holder(line, end, code)
        return None

    def _unobserved(self, end: Wait) -> Timeline:
        """Return the thread that ended a wait, of which no more is known."""
        self.names[end.waker_tid] = end.waker_comm
        self._pids[end.waker_tid] = end.waker_pid
        return Timeline(end.waker_pid, end.waker_tid, end.waker_comm)

    def comm(self, tid: int) -> str:
        """Return the name of a thread; empty if unknown."""
        line = self.lines.get(tid)
        return line.comm if line is not None else self.names.get(tid, "")

    def pid_of(self, tid: int) -> int:
        """Return the process of a thread; 0 if unknown."""
        line = self.lines.get(tid)
        return line.pid if line is not None else self._pids.get(tid, 0)

    def is_brief(self, tid: int) -> bool:
        """Return whether a thread is in a process that started and ended within the window."""
        pid = self.pid_of(tid)
        return pid > 0 and bool(self.resident) and pid not in self.resident

    def _may_send(self, line: Timeline, end: Wait, code: str) -> bool:
        """Return whether the waker may have sent what a thread received on a socket, or on one of several descriptors
        (`code` events)."""
        if end.waker_pid == line.pid or end.waker_syscall not in ("write", "writev"):
            return True
        if code == "events" and (
            not self.objects.has_network(line.pid) or self.objects.shares(line.pid, end.waker_pid)
        ):
            return True
        peer = self.objects.peer(end.object)
        return (peer is not None and peer["pid"] == end.waker_pid) or self.objects.connected(line.pid, end.waker_pid)

    def _runs_meanwhile(self, line: Timeline, wait: Wait) -> Timeline | None:
        """Return the thread of the same process that ran most while another waited for the interpreter lock.

        A waiter of CPython times out, sets a request to release the lock, and is seldom woken by the holder
        (ceval_gil.c, take_gil), so the wake-up does not show who held it. If all others hardly ran, the holder
        waited itself while it kept the lock, as an extension may: then who ended the wait released it.
        """
        if line.pid not in self._running:
            least = _RUNS_SHARE * self.window_ns
            self._running[line.pid] = [
                one for one in self.lines.values() if one.pid == line.pid and one.running_ns > least
            ]
        best, most, total = None, 0, 0
        for other in self._running[line.pid]:
            if other.tid == line.tid:
                continue
            off = sum(
                min(one.awake_ns, wait.awake_ns) - max(one.start_ns, wait.start_ns)
                for one in other.waits_within(wait.start_ns, wait.awake_ns)
                if one.awake_ns > wait.start_ns
            )
            ran = wait.awake_ns - wait.start_ns - off
            total += max(ran, 0)
            if ran > most:
                best, most = other, ran
        if total < _MOSTLY * (wait.awake_ns - wait.start_ns):
            return self._released_by(line, wait) or best
        return best

    def _released_by(self, line: Timeline, wait: Wait) -> Timeline | None:
        """Return the other thread of the process that ended a wait for the interpreter lock."""
        end = self.end_of(line, wait)
        if end.context != "task" or end.waker_pid != line.pid or end.waker_tid == line.tid:
            return None
        return self.lines.get(end.waker_tid)

    def awaits_server(self, line: Timeline, wait: Wait) -> bool:
        """Return whether a wait for events was ended by the response of a server to which the process is a client."""
        end = self.end_of(line, wait)
        if end.open and self._held_process(line.pid, "events") is not None:
            return True
        if end.context != "network" and not (end.context == "task" and end.waker_syscall in SENDS):
            return False
        if self.objects.is_client_of(line.pid, end.waker_pid):
            return True
        # remote: a process that listens may have been woken by a client
        remote = not self.objects.connected(line.pid, end.waker_pid)
        return remote and end.waker_pid != line.pid and self.objects.has_remote(line.pid)

    def serves(self, pid: int) -> bool:
        """Return whether a process is a server: it listens for clients, or its parent does for it, or one connected."""
        parents = {parent for parent, children in self.children.items() if pid in children}
        return self.objects.serves({pid, *parents - {_INIT}})

    def object_at_end(self, line: Timeline, wait: Wait) -> str:
        """Return the object of a wait that has not ended, as read at the end of the window: also of one that began
        before it, and the path of a FIFO that is being opened. Empty if it is not known."""
        row = self.objects.threads.get(line.tid) if wait.open else None
        return str(row["object"]) if row is not None else ""

    def _holder(self, line: Timeline, wait: Wait, code: str) -> Timeline | None:
        """Return the thread that holds what `wait` is for, by its owner, peer or other end.

        Of several processes that could end a wait that has not ended, one that cannot run is taken.
        """
        row = self.objects.threads.get(line.tid)
        if wait.open and row is not None and row["owner_tid"] > 0 and row["owner_tid"] != line.tid:
            return self.lines.get(row["owner_tid"]) or Timeline(line.pid, row["owner_tid"], "")
        by_store = code == "collective" and self.ranks.in_store(wait)
        if code in _ON_SOCKETS and not by_store and (peer := self.objects.peer(wait.object)) is not None:
            return self._of_process(peer["pid"], peer["comm"], line)
        if code == "pipe" and (pids := self.objects.writers(wait.object, line.pid)):
            return self._one_of(pids, line, wait)
        if code == "pipe_full" and (pids := self.objects.readers(wait.object, line.pid)):
            return self._one_of(pids, line, wait)
        if wait.open and code == "pipe" and (ended := self._ended_child(line.pid)) is not None:
            self.presumed.add((line.tid, ended.pid))
            return ended  # nobody else could write
        if wait.open and code in ("file", "page_fault"):
            # the process that serves the file system (FUSE); a file that is still being opened has no descriptor
            for path in (wait.path, row["object"] if row is not None else ""):
                if path and (pids := self.objects.readers(path, line.pid)):
                    return self._one_of(pids, line, wait)
        if wait.open and code == "join" and (joined := self._joined(line, wait)) is not None:
            return joined
        if code == "file_lock" and (pid := self.objects.lock_holder(line.pid)):
            return self._of_process(pid, "", line)
        if code == "child" and (pids := self.children.get(line.pid, [])):
            return self._one_of(pids[::-1], line, wait)
        if code == "interpreter_lock" and (tid := self._gil_holder(line.pid)) not in (None, line.tid):
            return self.lines.get(tid) if tid is not None else None
        if wait.open and code in _UNNAMED and (held := self._held_process(line.pid, code)) is not None:
            self.presumed.add((line.tid, held))
            return self._of_process(held, "", line)
        if wait.open and code == "collective" and (rank := self.ranks.late(line, self._in_collective)) is not None:
            self.presumed.add((line.tid, rank))
            return self._of_process(rank, line.comm, line)
        return None

    def _ended_child(self, pid: int) -> Timeline | None:
        """Return a child process that has ended before the window without its parent having taken note; the latest."""
        found = (self.lines[child] for child in self.children.get(pid, ()) if child in self.lines)
        ended = [one for one in found if one.waits and one.waits[0].state == ENDED]
        return ended[-1] if ended else None

    def _joined(self, line: Timeline, wait: Wait) -> Timeline | None:
        """Return the thread whose end a thread awaits: the only other one of its process, or the least idle one; in a
        function of Python's `threading`, one that runs Python."""
        others = [
            one
            for one in self.lines.values()
            if one.pid == line.pid and one.tid != line.tid and one.tid in self.objects.threads
        ]
        if wait.place.python:  # threads of libraries do not count
            others = [one for one in others if any(w.place.python for w in one.waits) or one.samples] or others
        if len(others) > 1:
            self.presumed.add((line.tid, line.pid))
        return max(others, key=self._activity, default=None)

    def _in_collective(self, pid: int) -> bool:
        main = self.lines.get(pid)
        return main is not None and any(wait.open and self.kind(main, wait).code == "collective" for wait in main.waits)

    def _one_of(self, pids: Sequence[int], line: Timeline, wait: Wait) -> Timeline | None:
        """Return the thread that most likely answers of processes any of which could."""
        held = [pid for pid in pids if pid in self.objects.held] if wait.open else []
        if held and len(pids) > 1:
            self.presumed.add((line.tid, held[0]))
        return self._of_process((held or pids)[0], "", line)

    def _held_process(self, pid: int, code: str) -> int | None:
        """Return a process that cannot run and for which threads of process `pid` wait, as far as the objects between
        both tell: a server with unread requests; to which a thread listens; for a collective, any that it has a
        connection to."""
        if (pid, code) not in self._held:
            found = (other for other in self.objects.held if self._waits_for(pid, other, code))
            self._held[pid, code] = next(found, None)
        return self._held[pid, code]

    def _waits_for(self, pid: int, other: int, code: str) -> bool:
        if other == pid:
            return False
        if self.objects.asked(pid, other):
            return True
        if code == "events":
            return False
        return self.objects.listens_to(pid, other) or (code == "collective" and self.objects.connected(pid, other))

    def _gil_holder(self, pid: int) -> int | None:
        holders = (r["tid"] for r in self.objects.threads.values() if r["pid"] == pid and r["holds_gil"])
        return next(holders, None)

    def _of_process(self, pid: int, comm: str, but: Timeline) -> Timeline | None:
        """Return the least idle thread of another process, as the one that most likely responds."""
        if pid not in self._busiest:
            threads = [line for line in self.lines.values() if line.pid == pid and line.tid != but.tid]
            self._busiest[pid] = max(threads, key=self._activity, default=None)
        if self._busiest[pid] is None and pid > 0:
            self.names.setdefault(pid, comm)
            self._pids[pid] = pid
            return Timeline(pid, pid, comm)
        return self._busiest[pid]

    def _activity(self, line: Timeline) -> tuple[int, int]:
        idle = sum(w.end_ns - w.start_ns for w in line.waits if self.kind(line, w).code in ("events", "queue"))
        return (line.alive[1] - line.alive[0] - idle, -abs(line.tid - line.pid))

    def chains(
        self, line: Timeline, start: int, end: int, path: tuple[int, ...] = ()
    ) -> Iterator[tuple[tuple[Step, ...], int]]:
        """Yield what thread `line` did in [start, end), as chains with their times; they sum to `end - start`."""
        at = start
        for wait in line.waits_within(start, end):
            begin, stop = max(wait.start_ns, start), min(wait.end_ns, end)
            if begin > at:
                yield from self._ran(line, at, begin, path)
            awake = min(max(wait.awake_ns, begin), stop)
            if awake > begin:
                yield from self._waited(line, wait, begin, awake, path)
            if stop > awake:
                text = wait.place.line or line.line_near(awake)
                held = line.pid in self.throttled and wait.end_ns - wait.awake_ns >= THROTTLED_NS
                yield (Step(line.tid, "quota" if held else "cpu", "", "", text, ""),), stop - awake
            at = stop
        if end > at:
            yield from self._ran(line, at, end, path)

    def _waited(
        self, line: Timeline, wait: Wait, start: int, end: int, path: tuple[int, ...]
    ) -> Iterator[tuple[tuple[Step, ...], int]]:
        kind = self.kind(line, wait)
        own = Step(
            line.tid,
            kind.code,
            "",
            kind.detail,
            wait.place.line,
            wait.path or wait.object or self.object_at_end(line, wait),
        )
        self.spent += 1
        if self.exhausted or len(path) >= _DEPTH:
            yield (own, Step(0, NOT_FOLLOWED, "", "", "", "")), end - start
            return
        other = self.waker(line, wait, kind.code)
        if kind.code in HELD_WAITS:
            # who let it run again did nothing for it meanwhile, and is likely who stopped it
            yield (own._replace(object=label(other) if other is not None else ""),), end - start
            return
        if other is None or other.tid in path:
            mutual = other is not None and (wait.open or wait.context == "timer") and not kind.detail
            yield (own._replace(detail=MUTUAL) if mutual else own,), end - start
            return
        if own.code == "events" and self.awaits_server(line, wait):
            own = own._replace(code="socket")
        for chain, took in self.answers(other, start, end, (*path, line.tid)):
            yield (own, *chain), took

    def answers(
        self, line: Timeline, start: int, end: int, path: tuple[int, ...]
    ) -> Iterator[tuple[tuple[Step, ...], int]]:
        """Yield what thread `line`, for which another waits, did in [start, end), as `chains` does.

        A worker of the kernel that runs, or was not observed, does what the other thread asked for, so that its chain
        is empty: the operation itself is the end.
        """
        kernel = self.is_kernel(line)
        for chain, took in self.chains(line, start, end, path):
            yield () if kernel and chain[0].code in _OF_KERNEL else chain, took

    def _ran(
        self, line: Timeline, start: int, end: int, path: tuple[int, ...]
    ) -> Iterator[tuple[tuple[Step, ...], int]]:
        """Yield where a thread ran, by its samples; without any in the interval, by the line at which it next waits, or
        the nearest sample. A thread that was mostly in waits too short to be recorded singly did not run."""
        begin, stop = line.alive
        if line.tid not in self.lines or end <= begin or start >= stop:  # its time was not recorded
            yield (Step(line.tid, "unknown", "", "", "", ""),), end - start
            return
        samples = line.samples_within(start, end)
        if line.tid not in self._brief:
            self._brief[line.tid] = brief_waits(self, line)
        if not samples and (brief := self._brief[line.tid]) is not None:
            yield from self._waited_briefly(line, *brief, start, end, path)
            return
        if not samples:
            after = line.next_wait(end)
            place = after.place.line if after is not None and after.start_ns - end < _SAME_WAIT_NS else ""
            yield (Step(line.tid, RUNNING, "user", "", place or line.line_near(start), ""),), end - start
            return
        steps: Counter[Step] = Counter()
        for sample in samples:
            code, kind = spinning_wait(sample.place), running_kind(sample.place, sample.kernel)
            mode, detail = ("", "") if code else (kind.code, kind.detail)
            steps[Step(line.tid, code or RUNNING, mode, detail, sample.place.line, "")] += 1
        for step, count in steps.items():
            yield (step,), (end - start) * count // len(samples)

    def _waited_briefly(
        self, line: Timeline, brief: Wait, code: str, start: int, end: int, path: tuple[int, ...]
    ) -> Iterator[tuple[tuple[Step, ...], int]]:
        """Yield an interval that a thread spent in short waits like `brief`; those for the interpreter lock are
        followed to the thread that ran."""
        own = Step(line.tid, code, "", "", brief.place.line, brief.path or brief.object)
        wait = brief._replace(start_ns=start, awake_ns=end, end_ns=end)
        other = self._runs_meanwhile(line, wait) if code == "interpreter_lock" and len(path) < _DEPTH else None
        if other is None or other.tid in path:
            yield (own,), end - start
            return
        for chain, took in self.answers(other, start, end, (*path, line.tid)):
            yield (own, *chain), took


def label(line: Timeline) -> str:
    """Return a thread as text: ``python3 (812)``; of a process with several, with its pid: ``worker (815 of 812)``."""
    return f"{line.comm} ({line.tid})" if line.pid == line.tid else f"{line.comm} ({line.tid} of {line.pid})"


def _same(one: Wait, other: Wait) -> bool:
    return (one.syscall, one.lock, one.object, one.place) == (other.syscall, other.lock, other.object, other.place)
