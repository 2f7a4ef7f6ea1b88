"""Who holds what threads wait for: futex owners, the interpreter lock, peers of sockets, ends of pipes, file locks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from whystall.tools.host.common.held import held_processes
from whystall.tools.host.common.snapshots import last_snapshot
from whystall.tools.host.common.timelines import Timeline
from whystall.tools.recording.store import Recording

_SOCKET, _PIPE = "socket:[", "pipe:["
# Of glibc's read-write lock, in which threads wait on several words (struct __pthread_rwlock_arch_t).
_RWLOCK_BYTES = 56


@dataclass
class Objects:
    """The last snapshot of the collector ``objects``; empty if it was not recorded."""

    recorded: bool = False
    threads: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The last row of each thread, by tid."""
    gil_words: dict[int, set[int]] = field(default_factory=dict)
    """Futex words of the interpreter lock, by pid."""
    sockets: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The last row of each socket, by inode."""
    ends: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The processes that have a pipe, FIFO or eventfd open, by object."""
    members: dict[int, list[str]] = field(default_factory=dict)
    """What is in the epoll set, or in the list of poll or select, for which a thread waits, by tid. Empty name: not
    read."""
    file_locks: list[dict[str, Any]] = field(default_factory=list)
    held: dict[int, str] = field(default_factory=dict)
    """Why processes cannot run, by pid: stopped, traced, frozen."""

    def socket(self, name: str) -> dict[str, Any] | None:
        """Return the socket ``socket:[inode]``; None if it is no socket or unknown."""
        if not name.startswith(_SOCKET) or not name[len(_SOCKET) : -1].isdigit():
            return None
        return self.sockets.get(int(name[len(_SOCKET) : -1]))

    def peer(self, name: str) -> dict[str, Any] | None:
        """Return the other end of socket `name` if a process of this host has it."""
        socket = self.socket(name)
        other = self.sockets.get(socket["peer"]) if socket is not None and socket["peer"] > 0 else None
        return other if other is not None and other["pid"] > 0 else None

    def name(self, object: str) -> str:
        """Return the display name of an object: of a socket its remote address, or the local process at its other
        end."""
        other = self.peer(object)
        if other is not None:
            return f"{other['comm']} ({other['pid']})"
        socket = self.socket(object)
        if socket is None:
            return object
        return str(socket["remote"] or socket["local"] or object)

    def connected(self, pid: int, other: int) -> bool:
        """Return whether two processes share a connection on this host."""
        for socket in self.sockets.values():
            if socket["pid"] == pid and socket["peer"] > 0:
                end = self.sockets.get(socket["peer"])
                if end is not None and end["pid"] == other:
                    return True
        return False

    def sole_connection(self, pid: int, other: int) -> bool:
        """Return whether two processes share no more than one connection on this host at a time."""
        at: list[int] = []
        for socket in self.sockets.values():
            end = self.sockets.get(socket["peer"]) if socket["pid"] == pid and socket["peer"] > 0 else None
            if end is not None and end["pid"] == other:
                at.append(socket["at_ns"])
        return len(set(at)) == len(at)

    def connected_processes(self, pid: int) -> dict[int, str]:
        """Return the processes of this host to which process `pid` has connections, with their commands."""
        ends = (self.sockets.get(s["peer"]) for s in self.sockets.values() if s["pid"] == pid and s["peer"] > 0)
        return {end["pid"]: end["comm"] for end in ends if end is not None and end["pid"] not in (pid, -1)}

    def has_network(self, pid: int) -> bool:
        """Return whether process `pid` has a connection by another device than the loopback one."""
        return any(
            s["pid"] == pid and s["protocol"] == "tcp" and s["state"] == "established" and not _is_loopback(s["remote"])
            for s in self.sockets.values()
        )

    def reaches_others(self, pid: int) -> bool:
        """Return whether process `pid` has a connection whose other end is on no process of this host."""
        return any(
            s["pid"] == pid and s["protocol"] == "tcp" and s["state"] == "established" and s["peer"] <= 0
            for s in self.sockets.values()
        )

    def remote_connections(self) -> dict[int, dict[str, Any]]:
        """Return the connections whose other end is on no process of this host, by inode: established, over TCP, not by
        the loopback device, and of a known process."""
        return {
            inode: s
            for inode, s in self.sockets.items()
            if (s["protocol"], s["state"]) == ("tcp", "established")
            and s["peer"] <= 0 < s["pid"]
            and s["remote"]
            and not _is_loopback(s["remote"])
        }

    def shares(self, pid: int, writer: int) -> bool:
        """Return whether process `pid` may read what process `writer` writes to a pipe or counts in an eventfd."""
        return any(
            any(end["pid"] == pid and end["reads"] for end in ends)
            and any(end["pid"] == writer and end["writes"] for end in ends)
            for ends in self.ends.values()
        )

    def is_client_of(self, pid: int, server: int) -> bool:
        """Return whether process `pid` has a connection to a port at which process `server` listens."""
        ports = self._ports(server)
        return any(
            s["pid"] == pid and s["peer"] > 0 and self._pid_of(s["peer"]) == server and _port(s["remote"]) in ports
            for s in self.sockets.values()
        )

    def asked(self, pid: int, server: int) -> bool:
        """Return whether process `pid` is a client of process `server`, which has not read all that it was sent."""
        ports = self._ports(server)
        for socket in self.sockets.values():
            other = self.sockets.get(socket["peer"]) if socket["pid"] == pid and socket["peer"] > 0 else None
            # of a connection that is not accepted yet, the other end is the listening socket
            if other is None or other["pid"] != server or _port(socket["remote"]) not in ports:
                continue
            if other["state"] == "listen" or other["recv_queue"] > 0 or socket["send_queue"] > 0:
                return True
        return False

    def listens_to(self, pid: int, other: int) -> bool:
        """Return whether a thread of process `pid` waits, at the end of the window, for what process `other` may send
        or write to it through one socket or pipe."""
        for row in self.threads.values():
            name = row["object"] if row["pid"] == pid else ""
            if name.startswith(_PIPE) and other in self.writers(name, pid):
                return True
            peer = self.peer(name)
            if peer is not None and peer["pid"] == other:
                return True
        return False

    def is_accepted(self, socket: dict[str, Any]) -> bool:
        """Return whether a client made the connection: a process of this host listens at its local port."""
        port = _port(socket["local"])
        return socket["protocol"] == "tcp" and any(
            s["state"] == "listen" and _port(s["local"]) == port for s in self.sockets.values()
        )

    def awaits_clients(self, name: str) -> bool:
        """Return whether socket `name` is a server's: it listens, or a client made the connection."""
        socket = self.socket(name)
        return socket is not None and (socket["state"] == "listen" or self.is_accepted(socket))

    def has_remote(self, pid: int) -> bool:
        """Return whether process `pid` listens nowhere, and has a connection to another host."""
        own = [s for s in self.sockets.values() if s["pid"] == pid and s["protocol"] == "tcp"]
        if any(s["state"] == "listen" for s in own):
            return False
        return any(s["peer"] <= 0 and s["state"] == "established" for s in own)

    def _ports(self, pid: int) -> set[str]:
        return {_port(s["local"]) for s in self.sockets.values() if s["pid"] == pid and s["state"] == "listen"}

    def _pid_of(self, inode: int) -> int:
        return int(self.sockets[inode]["pid"]) if inode in self.sockets else -1

    def writers(self, object: str, but: int) -> list[int]:
        """Return the processes other than `but` that may write to a pipe."""
        return [row["pid"] for row in self.ends.get(object, ()) if row["writes"] and row["pid"] != but]

    def wakes_itself(self, object: str, pid: int) -> bool:
        """Return whether process `pid` may write to the pipe, or has the other end of the socket, from which it reads:
        another thread of it, or a handler of a signal, ends its wait."""
        peer = self.peer(object)
        return (peer is not None and peer["pid"] == pid) or any(
            row["writes"] and row["pid"] == pid for row in self.ends.get(object, ())
        )

    def readers(self, object: str, but: int) -> list[int]:
        """Return the processes other than `but` that may read from a pipe."""
        return [row["pid"] for row in self.ends.get(object, ()) if row["reads"] and row["pid"] != but]

    def readers_of_lock(self, tid: int) -> int:
        """Return how often the read-write lock for which thread `tid` waits is held for reading; 0 if it waits for none
        that is."""
        row = self.threads.get(tid)
        return max(row["readers"], 0) if row is not None else 0

    def lock_readers(self, tid: int) -> set[int]:
        """Return the threads that hold the read-write lock for which thread `tid` waits: all other threads of the
        process that do not wait for it, if the lock has as many readers; else none."""
        number = self.readers_of_lock(tid)
        if not number:
            return set()
        own = self.threads[tid]
        others = (row for other, row in self.threads.items() if row["pid"] == own["pid"] and other != tid)
        able = {row["tid"] for row in others if not abs(row["lock"] - own["lock"]) < _RWLOCK_BYTES}
        return able if len(able) == number else set()

    def lock_holder(self, pid: int) -> int | None:
        """Return the process that holds the file lock for which process `pid` waits."""
        return next((r["holder_pid"] for r in self.file_locks if r["waits"] and r["pid"] == pid), None)

    def holder_of_file(self, dev: str, ino: int, but: int) -> int | None:
        """Return a process besides `but` that holds a lock of the file."""
        locks = (row for row in self.file_locks if (row["dev"], row["ino"]) == (dev, ino) and not row["waits"])
        return next((row["pid"] for row in locks if row["pid"] not in (but, -1)), None)

    def serves(self, pids: Collection[int]) -> bool:
        """Return whether one of the processes `pids` listens for clients, or has a connection that a client made."""
        own = (s for s in self.sockets.values() if s["pid"] in pids)
        return any(s["state"] == "listen" or (s["state"] == "established" and self.is_accepted(s)) for s in own)

    def requests_in_flight(self, pid: int) -> int | None:
        """Return how many connections of the server process `pid` received data and have sent nothing since, with those
        that wait to be accepted; None if its sockets are unknown. Compares tcp_info's times since data was last
        received and sent. A client that sends its next request at the answer leaves both times equal: then more
        segments arrived than were sent. So does the first request of a connection; it counts once it has waited long.
        """
        own = [s for s in self.sockets.values() if s["pid"] == pid]
        if not own:
            return None
        ports = self._ports(pid)
        served = [s for s in own if s["state"] == "established" and _port(s["local"]) in ports]
        # of a socket that listens, the receive queue is the number of these connections (sock_diag(7))
        waiting: int = sum(max(s["recv_queue"], 0) for s in own if s["state"] == "listen")
        return waiting + sum(1 for s in served if s["recv_queue"] > 0 or _is_unanswered(s))


# A server that handles requests as they come has some in flight at any moment; one that waits this long is late.
_LONG_MS = 1000


def _is_unanswered(socket: dict[str, Any]) -> bool:
    received, sent = socket["last_received_ms"], socket["last_sent_ms"]
    if received == sent >= 0:
        arrived, answered = socket["data_segments_in"], socket["data_segments_out"]
        return bool(arrived > answered > 0 or (arrived > answered == 0 and received >= _LONG_MS))
    return bool(0 <= received < sent)


def _is_loopback(address: str) -> bool:
    return address.startswith(("127.", "[::1]", "[::ffff:127."))


def _port(address: str) -> str:
    return address.rpartition(":")[2]


def objects_of(recording: Recording) -> Objects:
    """Return the objects that threads of `recording` wait for."""
    if not recording.has("objects"):
        return Objects()
    threads = {row["tid"]: row for row in _rows(recording, "threads")}
    words: dict[int, set[int]] = {}
    for row in _rows(recording, "interpreters"):
        words.setdefault(row["pid"], set()).add(row["word"])
    for row in recording.table("objects.threads").iter_rows(named=True):
        if row["lock_kind"] == "gil" and row["lock"]:
            words.setdefault(row["pid"], set()).add(row["lock"])
    ends: dict[str, list[dict[str, Any]]] = {}
    for row in last_snapshot(recording, "ends").iter_rows(named=True):
        ends.setdefault(row["object"], []).append(row)
    members: dict[int, list[str]] = {}
    if recording.find("objects.members") is not None:
        for tid, name in last_snapshot(recording, "members").select("tid", "object").iter_rows():
            members.setdefault(tid, []).append(name)
    return Objects(
        recorded=True,
        threads=threads,
        members=members,
        gil_words=words,
        sockets={row["inode"]: row for row in _rows(recording, "sockets")},
        ends=ends,
        file_locks=list(last_snapshot(recording, "file_locks").iter_rows(named=True)),
        held=held_processes(last_snapshot(recording, "threads").iter_rows(named=True)),
    )


def _rows(recording: Recording, table: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table in order of time."""
    yield from recording.table(f"objects.{table}").sort("at_ns").iter_rows(named=True)


OWNED = frozenset({"mutex", "rwlock", "stdio", "python", "abandoned"})
"""Values of ``objects.threads.lock_kind`` of locks with a stored or derived owner."""


def lock_words(recording: Recording, lines: Iterable[Timeline]) -> dict[int, set[int]]:
    """Return, by process, the futex words that are known to be locks: from memory in a snapshot, or because they pass
    from thread to thread."""
    found = passing_words(lines)
    if recording.has("objects"):
        rows = recording.table("objects.threads").select("pid", "lock", "lock_kind").unique()
        for pid, word, kind in rows.iter_rows():
            if word > 0 and kind in OWNED:
                found.setdefault(pid, set()).add(word)
    return found


def passing_words(lines: Iterable[Timeline]) -> dict[int, set[int]]:
    """Return, by process, the futex words that pass to and fro between threads that wait for them, as a lock does.

    The producer that wakes a consumer of a queue does not wait on its word.
    """
    pairs: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for line in lines:
        for wait in line.waits:
            if wait.lock and wait.waker_tid > 0:
                pairs.setdefault((line.pid, wait.lock), set()).add((line.tid, wait.waker_tid))
    found: dict[int, set[int]] = {}
    for (pid, word), edges in pairs.items():
        if any((waker, waiter) in edges for waiter, waker in edges):
            found.setdefault(pid, set()).add(word)
    return found
