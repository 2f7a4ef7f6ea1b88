"""One snapshot of what threads wait for, and who holds it."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterable
from dataclasses import astuple, dataclass, field

from whystall.tools.collect.objects_ends import Holder, Holders
from whystall.tools.collect.objects_file_locks import FileLock, concerning, file_locks, same_lock
from whystall.tools.collect.objects_fuse import FuseMounts, waits_for_server
from whystall.tools.collect.objects_proc import Proc
from whystall.tools.collect.objects_python import Interpreters
from whystall.tools.collect.objects_sockets import Sockets, name_of
from whystall.tools.collect.objects_threads import ThreadInfo, ThreadReader
from whystall.tools.contract.text import clean, clean_path

_MOST_PROCESSES = 256
_MOST_OTHERS = 64
_MOST_THREADS = 4096
_MOST_SOCKETS = 4096
_MOST_FURTHER = 1024  # sockets of processes to which the target has connections
_MOST_LOCKS = 1024
_MOST_MEMBERS = 4096
_SHARED = ("pipe:[", "anon_inode:[eventfd")
_ROUNDS = 4  # depth to which holders of what holders wait for are followed
# CPU time of one snapshot, by part
_OWN_NS = 150_000_000
_OTHERS_NS = 40_000_000
_SCAN_NS = 60_000_000
_LOCKS_NS = 20_000_000
_MAPS_BYTES = 8 << 20
_LOCKS_BYTES = 1 << 20
Row = tuple[object, ...]


@dataclass
class Rows:
    """The rows of both snapshots by table, and the larger number of what either left out, by kind. `failed`:
    sockets that could not be read, with the reason."""

    tables: defaultdict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    left: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    _stacks: dict[tuple[bool, tuple[str, ...]], int] = field(default_factory=dict)

    def keep(self, table: str, row: Row) -> None:
        """Add a row."""
        self.tables[table].append(row)

    def stack(self, frames: tuple[str, ...], *, kernel: bool) -> int:
        """Return the key of a stack; -1 if it is empty."""
        if not frames:
            return -1
        key = self._stacks.get((kernel, frames))
        if key is None:
            key = self._stacks[kernel, frames] = len(self._stacks)
            self.keep("stacks", (key, kernel, list(frames)))
        return key

    def cut(self, what: str, count: int) -> None:
        """Record that a snapshot left out `count`."""
        self.left[what] = max(self.left.get(what, 0), count)


class Snapshot:
    """Read the processes `own`; at the end (`last`) also those that hold what their threads wait for. `everywhere`:
    there is no target, and the sockets of all processes are read."""

    def __init__(self, proc: Proc, interpreters: Interpreters, threads: ThreadReader, rows: Rows, at_ns: int) -> None:
        self._proc = proc
        self._interpreters = interpreters
        self._threads = threads
        self._rows = rows
        self._at = at_ns
        self._holders = Holders(proc, threads)
        self._sockets = Sockets(proc)
        self._mounts = FuseMounts(proc)
        self._locks: list[FileLock] = []
        self._seen: dict[int, None] = {}
        self._waiting: list[ThreadInfo] = []
        self._own = 0

    def run(self, own: list[int], *, last: bool, everywhere: bool) -> None:
        """Add the rows of this snapshot."""
        self._rows.cut("processes", len(own) - _MOST_PROCESSES)
        own = own[:_MOST_PROCESSES]
        self._own = len(own)
        self._read_threads(own, limit(_OWN_NS))
        self._locks = self._file_locks()
        self._sockets.read(own)
        self._rows.failed |= self._sockets.failed
        self._notice_fifos()
        self._holders.scan(own, limit(_SCAN_NS))
        if everywhere or (last and self._held_elsewhere()):
            self._holders.scan(self._proc.pids(), limit(_SCAN_NS))
        if last:
            self._follow()
        self._keep_threads()
        self._keep_sockets(set(own), last=last)
        self._keep_ends()
        self._keep_locks(None if everywhere else self._seen)
        self._rows.cut("processes without their descriptors", self._holders.left)

    def _follow(self) -> None:
        """Read the processes that hold what threads wait for, then those that hold what these wait for."""
        over = limit(_OTHERS_NS)
        new = self._waiting
        for _ in range(_ROUNDS):
            pids = self._others(new)
            if not pids:
                return
            before = len(self._waiting)
            self._read_threads(pids, over)
            new = self._waiting[before:]
            self._notice_fifos()
            self._holders.scan(pids, limit(_SCAN_NS))

    def _read_threads(self, pids: Iterable[int], over: Callable[[], bool]) -> None:
        left = 0
        for pid in pids:
            self._seen[pid] = None
            found = self._threads.read(pid, max(0, _MOST_THREADS - len(self._waiting)), over)
            left += found.left
            self._waiting += found.threads
            version = self._interpreters.version(pid)
            for held in found.locks:
                for word in held.lock.words:
                    self._rows.keep("interpreters", (self._at, pid, version, word, held.holder_tid))
            for group in found.groups:
                self._rows.keep("process_groups", (self._at, pid, *astuple(group)))
        self._rows.cut("threads", left)

    def _notice_fifos(self) -> None:
        self._holders.paths |= {w.object for w in self._waiting if w.object.startswith("/") and "pipe" in w.wchan}

    def _held_elsewhere(self) -> bool:
        """Return whether processes outside of the target may hold what threads wait for, or be peers of sockets."""
        for thread in self._waiting:
            if waits_for_server(thread.wchan, thread.kstack):
                return True
            if any(name.startswith(_SHARED) or name in self._holders.paths for _, name in thread.objects):
                return True
        held = [inode for inode in self._sockets.inodes() if self._holders.of(name_of(inode))]
        peers = (self._sockets.peers.get(inode, 0) for inode in held)
        return any(peer and not self._holders.of(name_of(peer)) for peer in peers)

    def _servers(self, thread: ThreadInfo) -> list[Holder]:
        """Return the servers of the FUSE file system that a thread waits for."""
        if not thread.object.startswith("/") or not waits_for_server(thread.wchan, thread.kstack):
            return []
        connection = self._mounts.connection(thread.pid, thread.object)
        return self._holders.of(connection) if connection else []

    def _others(self, waiting: list[ThreadInfo]) -> list[int]:
        """Return the processes, not read yet, that hold what `waiting` threads wait for, at most as many as allowed."""
        found: dict[int, None] = {}
        own = {thread.pid for thread in waiting}
        for thread in waiting:
            for _, name in thread.objects:
                for other in (name, self._peer(name)):
                    found |= dict.fromkeys(holder.pid for holder in self._holders.of(other))
            found |= dict.fromkeys(holder.pid for holder in self._servers(thread))
            if thread.lock.foreign_owner and (pid := self._foreign_process(thread)):
                found[pid] = None
        found |= dict.fromkeys(lock.holder_pid for lock in self._locks if lock.waits and lock.pid in own)
        pids = [pid for pid in found if pid > 0 and pid not in self._seen and pid != os.getpid()]
        room = max(0, self._own + _MOST_OTHERS - len(self._seen))
        self._rows.cut("processes", len(pids) - room)
        return pids[:room]

    def _peer(self, name: str) -> str:
        """Return the name of a socket's other end; empty if it is unknown, or none."""
        if not name.startswith("socket:["):
            return ""
        number = name[len("socket:[") : -1]
        peer = self._sockets.peers.get(int(number), 0) if number.isdigit() else 0
        return name_of(peer) if peer else ""

    def _foreign_process(self, thread: ThreadInfo) -> int:
        """Return the process of a lock's owner, other than the waiting process, if both share the word's memory."""
        owner = thread.lock.foreign_owner
        status = self._proc.read(owner, "status")
        at = status.find(b"\nTgid:")
        fields = status[at + 6 : status.find(b"\n", at + 1)].split() if at >= 0 else []
        pid = int(fields[0]) if fields and fields[0].isdigit() else 0
        file = shared_file(self._proc.read(thread.pid, "maps", most=_MAPS_BYTES), thread.word)
        if not pid or file is None or file not in shared_files(self._proc.read(pid, "maps", most=_MAPS_BYTES)):
            return 0
        thread.lock = thread.lock._replace(owner=owner, foreign_owner=0)
        return pid

    def _file_locks(self) -> list[FileLock]:
        try:
            with open(f"{self._proc.root}/locks", "rb") as file:
                return file_locks(file.read(_LOCKS_BYTES))
        except OSError:
            return []

    def _keep_threads(self) -> None:
        for t in self._waiting:
            stacks = (self._rows.stack(t.kstack, kernel=True), self._rows.stack(t.pystack, kernel=False))
            place = (t.state, t.wchan, t.syscall, t.object, t.fd, t.word, t.lock.kind, t.lock.owner, t.holds_gil)
            self._rows.keep(
                "threads",
                (self._at, t.pid, t.tid, t.comm, *place, t.tracer_pid, t.frozen, *stacks, t.limited, t.lock.readers),
            )
        self._keep_members()

    def _keep_members(self) -> None:
        """Keep what threads wait for besides `object`; of a thread all or nothing."""
        room = _MOST_MEMBERS
        for t in self._waiting:
            room -= len(t.members)
            for number, name in t.members if room >= 0 else ():
                self._rows.keep("members", (self._at, t.pid, t.tid, number, name))

    def _keep_sockets(self, own: set[int], *, last: bool) -> None:
        """Keep the sockets of the target and their other ends; without a target those of all processes."""
        held = {inode for inode in self._sockets.inodes() if self._held_by(inode, own)}
        ends = held | {peer for inode in held if (peer := self._sockets.peers.get(inode, 0))}
        kept = sorted(ends) + (sorted(self._further_sockets(own, ends)) if own and last else [])
        self._rows.cut("sockets", (len(kept) - _MOST_SOCKETS) or int(self._sockets.cut))
        comms: dict[int, str] = {}
        for inode in kept[:_MOST_SOCKETS]:
            pid, fd = self._owner(inode)
            if pid not in comms:
                comms[pid] = clean(self._proc.comm(pid)) if pid > 0 else ""
            row = self._sockets.row(self._at, inode, pid, fd, comms[pid])
            if row is not None:
                self._rows.keep("sockets", row)

    def _owner(self, inode: int) -> tuple[int, int]:
        """Return the process of a socket, and its descriptor. Processes that were forked with both ends of a pair hold
        both: of these it is the first that does not wait at the other end."""
        holders = self._holders.of(name_of(inode))
        other = self._peer(name_of(inode))
        waiting = (
            {thread.pid for thread in self._waiting if thread.object == other} if len(holders) > 1 and other else ()
        )
        return next((one for one in holders if one.pid not in waiting), next(iter(holders), (-1, -1)))

    def _further_sockets(self, own: set[int], kept: set[int]) -> set[int]:
        """Return the sockets between the processes to which the target has connections, and those to which these have
        some: a server may wait for another one."""
        by_pid: dict[int, list[int]] = {}
        for inode in self._sockets.inodes():
            for holder in self._holders.of(name_of(inode))[:1]:
                by_pid.setdefault(holder.pid, []).append(inode)
        found: set[int] = set()
        seen, new = set(own), kept
        for _ in range(_ROUNDS):
            pids = {holder.pid for inode in new for holder in self._holders.of(name_of(inode))[:1]} - seen
            seen |= pids
            inodes = {inode for pid in pids for inode in by_pid.get(pid, ())}
            new = (inodes | {self._sockets.peers.get(inode, 0) for inode in inodes}) - kept - found - {0}
            if len(found) + len(new) > _MOST_FURTHER:
                break
            found |= new
        return found

    def _held_by(self, inode: int, own: set[int]) -> bool:
        holders = self._holders.of(name_of(inode))
        return any(holder.pid in own for holder in holders) if own else bool(holders)

    def _keep_ends(self) -> None:
        names = {name for thread in self._waiting for _, name in thread.objects}
        names |= {peer for name in names if (peer := self._peer(name))}
        held = {(name, holder) for name in names for holder in self._holders.of(name)}
        held |= {(thread.object, server) for thread in self._waiting for server in self._servers(thread)}
        for name, (pid, fd) in sorted(held):
            reads, writes = self._proc.access(pid, fd)
            if reads or writes:
                self._rows.keep("ends", (self._at, name, pid, clean(self._proc.comm(pid)), fd, reads, writes))

    def _keep_locks(self, pids: Container[int] | None) -> None:
        over = limit(_LOCKS_NS)
        locks = concerning(self._locks, pids)
        self._rows.cut("file locks", len(locks) - _MOST_LOCKS)
        paths: dict[tuple[int, str, int], str] = {}
        for lock in locks[:_MOST_LOCKS]:
            pid = lock.holder_pid if lock.waits else lock.pid
            key = (pid, lock.dev, lock.ino)
            if key not in paths:
                paths[key] = self._lock_path(pid, lock) if pid > 0 and not over() else ""
            self._rows.keep("file_locks", (self._at, *lock, paths[key]))

    def _lock_path(self, pid: int, lock: FileLock) -> str:
        """Return the path of a locked file, by the descriptors of its holder; empty if it is not found."""
        for number, link in self._proc.descriptors(pid):
            if link.startswith(b"/") and same_lock(self._proc.read(pid, f"fdinfo/{number}"), lock):
                return clean_path(link)
        return ""


def shared_file(maps: bytes, address: int) -> tuple[bytes, bytes] | None:
    """Return device and inode of the shared file mapping at `address`; None if it is not one."""
    for line in maps.splitlines():
        fields = line.split(None, 5)
        if len(fields) < 5:
            continue
        start, _, end = fields[0].partition(b"-")
        if int(start, 16) <= address < int(end, 16):
            return (fields[3], fields[4]) if fields[1].endswith(b"s") and fields[4] != b"0" else None
    return None


def shared_files(maps: bytes) -> set[tuple[bytes, bytes]]:
    """Return device and inode of all shared mappings of files."""
    rows = (line.split(None, 5) for line in maps.splitlines())
    return {(f[3], f[4]) for f in rows if len(f) >= 5 and f[1].endswith(b"s") and f[4] != b"0"}


def limit(most_ns: int) -> Callable[[], bool]:
    """Return a function that returns whether this thread has used `most_ns` of CPU time since now."""
    end = time.thread_time_ns() + most_ns
    return lambda: time.thread_time_ns() > end
