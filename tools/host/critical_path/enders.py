"""Find the thread that ended a wait, or that holds what is waited for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from whystall.tools.host.common.held import ENDED
from whystall.tools.host.common.timelines import Timeline, Wait
from whystall.tools.host.common.wait_kinds import awaits_import, imports_module
from whystall.tools.host.common.wait_syscalls import RECEIVES, SENDS

if TYPE_CHECKING:
    from whystall.tools.host.critical_path.world import World

# A thread that runs for less than this share of the window holds the interpreter lock for no noticeable time.
_RUNS_SHARE = 0.005
# If all other threads run for less than this share of a wait for the interpreter lock, its holder waits itself.
_MOSTLY = 0.5
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


class Enders:
    """Who ended the waits of the threads of `world`, or could."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._objects = world.objects
        self._busiest: dict[int, Timeline | None] = {}
        self._running: dict[int, list[Timeline]] = {}
        self._held: dict[tuple[int, str], int | None] = {}

    def waker(self, line: Timeline, wait: Wait, code: str) -> Timeline | None:
        """Return the thread that ended `wait`, or that could: None if no thread does, or it is not known."""
        if code == "interpreter_lock":
            return self.runs_meanwhile(line, wait) or self._holder(line, wait, code)
        end = self._world.end_of(line, wait)
        if end.open or end.waker_tid <= 0 or end.waker_tid == line.tid:
            return self._holder(line, end, code)
        other = self._world.lines.get(end.waker_tid)
        if code in ("socket", "events") and end.context == "task" and not self._may_send(line, end, code):
            return self._holder(line, end, code)  # it only forwards packets, such as the owner of a TUN device
        if end.context in ("task", "signal") or (not end.context and code in _BY_THREADS):
            return other or self._unobserved(end)
        # the reader's acknowledgement arrives while it is still in its call
        reads = end.context == "network" and end.waker_syscall in RECEIVES and end.waker_pid != line.pid
        if code == "socket_full" and reads and self._objects.connected(line.pid, end.waker_pid):
            return other or self._unobserved(end)
        if end.context in ("network", "interrupt") and code in _ON_SOCKETS:
            peer = self._objects.peer(end.object)
            local = peer is not None and peer["pid"] == end.waker_pid
            sends = end.waker_syscall in SENDS
            if local or (sends and end.waker_pid != line.pid and self._objects.connected(line.pid, end.waker_pid)):
                return other or self._unobserved(end)
            return self._holder(line, end, code)
        if not end.context:
            return self._holder(line, end, code)
        return None

    def _unobserved(self, end: Wait) -> Timeline:
        """Return the thread that ended a wait, of which no more is known."""
        self._world.names[end.waker_tid] = end.waker_comm
        self._world.pids[end.waker_tid] = end.waker_pid
        return Timeline(end.waker_pid, end.waker_tid, end.waker_comm)

    def awaits_server(self, line: Timeline, wait: Wait) -> bool:
        """Return whether a wait for events was ended by the response of a server to which the process is a client."""
        end = self._world.end_of(line, wait)
        if end.open and self._held_process(line.pid, "events") is not None:
            return True
        if end.context != "network" and not (end.context == "task" and end.waker_syscall in SENDS):
            return False
        if self._objects.is_client_of(line.pid, end.waker_pid):
            return True
        # remote: a process that listens may have been woken by a client
        remote = not self._objects.connected(line.pid, end.waker_pid)
        return remote and end.waker_pid != line.pid and self._objects.has_remote(line.pid)

    def _may_send(self, line: Timeline, end: Wait, code: str) -> bool:
        """Return whether the waker may have sent what a thread received on a socket, or on one of several descriptors
        (`code` events)."""
        if end.waker_pid == line.pid or end.waker_syscall not in ("write", "writev"):
            return True
        if code == "events" and (
            not self._objects.has_network(line.pid) or self._objects.shares(line.pid, end.waker_pid)
        ):
            return True
        peer = self._objects.peer(end.object)
        return (peer is not None and peer["pid"] == end.waker_pid) or self._objects.connected(line.pid, end.waker_pid)

    def runs_meanwhile(self, line: Timeline, wait: Wait) -> Timeline | None:
        """Return the thread of the same process that ran most while another waited for the interpreter lock.

        A waiter of CPython times out, sets a request to release the lock, and is seldom woken by the holder
        (ceval_gil.c, take_gil), so the wake-up does not show who held it. If all others hardly ran, the holder
        waited itself while it kept the lock, as an extension may: then who ended the wait released it.
        """
        if line.pid not in self._running:
            least = _RUNS_SHARE * self._world.window_ns
            self._running[line.pid] = [
                one for one in self._world.lines.values() if one.pid == line.pid and one.running_ns > least
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
        end = self._world.end_of(line, wait)
        if end.context != "task" or end.waker_pid != line.pid or end.waker_tid == line.tid:
            return None
        return self._world.lines.get(end.waker_tid)

    def _holder(self, line: Timeline, wait: Wait, code: str) -> Timeline | None:
        """Return the thread that holds what `wait` is for, by its owner, peer or other end.

        Of several processes that could end a wait that has not ended, one that cannot run is taken.
        """
        row = self._objects.threads.get(line.tid)
        if wait.open and row is not None and row["owner_tid"] > 0 and row["owner_tid"] != line.tid:
            return self._world.lines.get(row["owner_tid"]) or Timeline(line.pid, row["owner_tid"], "")
        if wait.open and code == "lock" and (holder := self._unnamed_owner(line, wait)) is not None:
            self._world.presumed.add((line.tid, line.pid))
            return holder
        by_store = code == "collective" and self._world.ranks.in_store(wait)
        if code in _ON_SOCKETS and not by_store and (peer := self._objects.peer(wait.object)) is not None:
            return self._of_process(peer["pid"], peer["comm"], line)
        if code == "pipe" and (pids := self._objects.writers(wait.object, line.pid)):
            return self._one_of(pids, line, wait)
        if code == "pipe_full" and (pids := self._objects.readers(wait.object, line.pid)):
            return self._one_of(pids, line, wait)
        if wait.open and code == "pipe" and (ended := self._ended_child(line.pid)) is not None:
            self._world.presumed.add((line.tid, ended.pid))
            return ended  # nobody else could write
        if wait.open and code in ("file", "page_fault"):
            # the process that serves the file system (FUSE); a file that is still being opened has no descriptor
            for path in (wait.path, row["object"] if row is not None else ""):
                if path and (pids := self._objects.readers(path, line.pid)):
                    return self._one_of(pids, line, wait)
        if wait.open and code == "join" and (joined := self._joined(line, wait)) is not None:
            return joined
        if code == "file_lock" and (pid := self._objects.lock_holder(line.pid)):
            return self._of_process(pid, "", line)
        if code == "child" and (pids := self._world.children.get(line.pid, [])):
            return self._one_of(pids[::-1], line, wait)
        if code == "interpreter_lock" and (tid := self._gil_holder(line.pid)) not in (None, line.tid):
            return self._world.lines.get(tid) if tid is not None else None
        if wait.open and code in _UNNAMED and (held := self._held_process(line.pid, code)) is not None:
            self._world.presumed.add((line.tid, held))
            return self._of_process(held, "", line)
        if (
            wait.open
            and code == "collective"
            and (rank := self._world.ranks.late(line, self._in_collective)) is not None
        ):
            self._world.presumed.add((line.tid, rank))
            return self._of_process(rank, line.comm, line)
        return None

    def _unnamed_owner(self, line: Timeline, wait: Wait) -> Timeline | None:
        """Return the thread that has a lock which stores no owner, if no other one of the process can have it: the only
        one that imports a module; one of the readers of a read-write lock, if all other threads read."""
        others = [one for one in self._world.lines.values() if one.pid == line.pid and one.tid != line.tid]
        if awaits_import(wait.place):
            importing = [one for one in others if imports_module(one.last_place)]
            return importing[0] if len(importing) == 1 else None
        readers = self._objects.lock_readers(line.tid)
        return max((one for one in others if one.tid in readers), key=self._activity, default=None)

    def _ended_child(self, pid: int) -> Timeline | None:
        """Return a child process that has ended before the window without its parent having taken note; the latest."""
        found = (self._world.lines[child] for child in self._world.children.get(pid, ()) if child in self._world.lines)
        ended = [one for one in found if one.waits and one.waits[0].state == ENDED]
        return ended[-1] if ended else None

    def _joined(self, line: Timeline, wait: Wait) -> Timeline | None:
        """Return the thread whose end a thread awaits: the only other one of its process, or the least idle one; in a
        function of Python's `threading`, one that runs Python."""
        others = [
            one
            for one in self._world.lines.values()
            if one.pid == line.pid and one.tid != line.tid and one.tid in self._objects.threads
        ]
        if wait.place.python:  # threads of libraries do not count
            others = [one for one in others if any(w.place.python for w in one.waits) or one.samples] or others
        if len(others) > 1:
            self._world.presumed.add((line.tid, line.pid))
        return max(others, key=self._activity, default=None)

    def _in_collective(self, pid: int) -> bool:
        main = self._world.lines.get(pid)
        return main is not None and any(
            wait.open and self._world.kind(main, wait).code == "collective" for wait in main.waits
        )

    def _one_of(self, pids: Sequence[int], line: Timeline, wait: Wait) -> Timeline | None:
        """Return the thread that most likely answers of processes any of which could."""
        held = [pid for pid in pids if pid in self._objects.held] if wait.open else []
        if held and len(pids) > 1:
            self._world.presumed.add((line.tid, held[0]))
        return self._of_process((held or pids)[0], "", line)

    def _held_process(self, pid: int, code: str) -> int | None:
        """Return a process that cannot run and for which threads of process `pid` wait, as far as the objects between
        both tell: a server with unread requests; to which a thread listens; for a collective, any that it has a
        connection to."""
        if (pid, code) not in self._held:
            found = (other for other in self._objects.held if self._waits_for(pid, other, code))
            self._held[pid, code] = next(found, None)
        return self._held[pid, code]

    def _waits_for(self, pid: int, other: int, code: str) -> bool:
        if other == pid:
            return False
        if self._objects.asked(pid, other):
            return True
        if code == "events":
            return False
        return self._objects.listens_to(pid, other) or (code == "collective" and self._objects.connected(pid, other))

    def _gil_holder(self, pid: int) -> int | None:
        holders = (r["tid"] for r in self._objects.threads.values() if r["pid"] == pid and r["holds_gil"])
        return next(holders, None)

    def _of_process(self, pid: int, comm: str, but: Timeline) -> Timeline | None:
        """Return the least idle thread of another process, as the one that most likely responds."""
        if pid not in self._busiest:
            threads = [line for line in self._world.lines.values() if line.pid == pid and line.tid != but.tid]
            self._busiest[pid] = max(threads, key=self._activity, default=None)
        if self._busiest[pid] is None and pid > 0:
            self._world.names.setdefault(pid, comm)
            self._world.pids[pid] = pid
            return Timeline(pid, pid, comm)
        return self._busiest[pid]

    def _activity(self, line: Timeline) -> tuple[int, int]:
        idle = sum(w.end_ns - w.start_ns for w in line.waits if self._world.kind(line, w).code in ("events", "queue"))
        return (line.alive[1] - line.alive[0] - idle, -abs(line.tid - line.pid))
