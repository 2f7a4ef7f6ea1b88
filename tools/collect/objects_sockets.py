"""Read the sockets of processes and their other ends, as rows of ``objects.sockets``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TypeVar

from whystall.tools.collect.objects_proc import Proc
from whystall.tools.collect.sock_diag import (
    STATES,
    Channels,
    InetSocket,
    UnixSocket,
    mirrored,
)
from whystall.tools.contract.text import clean, clean_path

_MOST = 16_384  # sockets of a kind in a namespace
_MOST_NAMESPACES = 16
NUMBERS = (
    *("rtt_us", "min_rtt_us", "rtt_var_us", "retransmits", "unacked", "lost", "cwnd", "segments_out", "bytes_acked"),
    *("bytes_received", "busy_us", "rwnd_limited_us", "sndbuf_limited_us", "last_sent_ms", "last_received_ms"),
    *("delivery_rate", "pacing_rate", "options", "receive_rtt_us", "data_segments_in", "data_segments_out"),
    "out_of_order",
)
"""The last columns of the table ``sockets``, from tcp_info."""
Row = tuple[object, ...]
Socket = TypeVar("Socket", InetSocket, UnixSocket)


def name_of(inode: int) -> str:
    """Return the name of a socket in /proc/PID/fd."""
    return f"socket:[{inode}]"


class Sockets:
    """The sockets of the network namespaces of processes at one instant. `failed`: namespaces and kinds that could not
    be read, with the reason; `cut`: whether there were too many sockets."""

    def __init__(self, proc: Proc) -> None:
        self.failed: dict[str, str] = {}
        self.cut = False
        self.peers: dict[int, int] = {}
        """The inode of the other end, by inode."""
        self._proc = proc
        self._inet: dict[int, InetSocket] = {}
        self._unix: dict[int, UnixSocket] = {}

    def read(self, pids: Iterable[int]) -> None:
        """Read the namespaces of `pids`, and ours if there are none."""
        own = os.readlink("/proc/self/ns/net").encode()
        namespaces: dict[bytes, str | None] = {}
        for pid in pids:
            link = self._proc.link(pid, "ns/net")
            if link and link not in namespaces:
                namespaces[link] = None if link == own else f"{self._proc.root}/{pid}/ns/net"
        self.cut = len(namespaces) > _MOST_NAMESPACES
        routed: list[InetSocket] = []
        for link, path in list((namespaces or {own: None}).items())[:_MOST_NAMESPACES]:
            try:
                channels = Channels(path, _MOST)
            except OSError as error:
                self.failed[clean(link)] = error.strerror or ""
                continue
            try:
                routed += self._read(channels)
            finally:
                channels.close()
                self.cut = self.cut or channels.cut
        if len(namespaces) > 1:
            self.peers |= mirrored(routed)  # between containers of this host

    def _read(self, channels: Channels) -> list[InetSocket]:
        """Read one namespace; return its sockets that may be connected to another namespace."""
        found = self._dump("tcp", lambda: channels.inet("tcp")) + self._dump("udp", lambda: channels.inet("udp"))
        for one in self._dump("unix", channels.unix):
            if one.inode:
                self._unix[one.inode] = one
                if one.peer:
                    self.peers[one.inode] = one.peer
                for client in one.pending:
                    self.peers.setdefault(client, one.inode)
        self._inet |= {one.inode: one for one in found if one.inode}
        self.peers |= mirrored(found)
        return [one for one in found if not one.local.loopback]

    def _dump(self, kind: str, dump: Callable[[], list[Socket]]) -> list[Socket]:
        """Return the sockets of a kind; none if this kernel cannot list them."""
        try:
            return dump()
        except OSError as error:
            self.failed[kind] = error.strerror or ""
            return []

    def inodes(self) -> list[int]:
        """Return the inodes of all sockets."""
        return [*self._inet, *self._unix]

    def row(self, at_ns: int, inode: int, pid: int, fd: int, comm: str) -> Row | None:
        """Return the row of a socket; None if it is not in these namespaces, or of another kind."""
        head = (at_ns, inode, self.peers.get(inode, -1), pid, fd, comm)
        if (one := self._inet.get(inode)) is not None:
            info = one.tcp_info() if one.protocol == "tcp" else {}
            remote = str(one.remote) if one.remote.port else ""
            numbers = (info.get(name, -1) for name in NUMBERS)
            return (*head, one.family, one.protocol, _state(one.state), str(one.local), remote, *one.queues, *numbers)
        if (local := self._unix.get(inode)) is not None:
            other = self._unix.get(local.peer)
            names = (clean_path(local.name), clean_path(other.name) if other is not None else "")
            queues = (local.receive_queue, local.send_queue)
            return (*head, "unix", local.type, _state(local.state), *names, *queues, *(-1 for _ in NUMBERS))
        return None


def _state(number: int) -> str:
    return STATES[number] if number < len(STATES) else str(number)
