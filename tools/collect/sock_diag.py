"""Read the sockets of a network namespace from the kernel (sock_diag(7)), as ss(8) does.

Formats: linux/netlink.h, linux/inet_diag.h, linux/unix_diag.h, and ``struct tcp_info`` of linux/tcp.h, to which kernels
append members. A namespace may have very many sockets, so the number of messages is bounded.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_ERROR, _DONE = 2, 3
_CLONE_NEWNET = 0x40000000
_RECEIVE_BYTES = 1 << 18
_TIMEOUT_S = 0.5
_HEADER = struct.Struct("=IHHII")
_INET_REQUEST = struct.Struct("=BBBBI48x")
_UNIX_REQUEST = struct.Struct("=BBHIIIII")
_INET_BYTES, _UNIX_BYTES = 72, 16
_INFO = 2  # INET_DIAG_INFO
_WITH_INFO = 1 << _INFO - 1
_UNIX_NAME, _UNIX_PEER, _UNIX_PENDING, _UNIX_QUEUES = 0, 2, 3, 4
_UNIX_SHOW = 1 | 4 | 8 | 16  # name, peer, pending connections, queues
_MAPPED = bytes(10) + b"\xff\xff"

# include/net/tcp_states.h
STATES = (
    *("unknown", "established", "syn_sent", "syn_recv", "fin_wait1", "fin_wait2", "time_wait", "close", "close_wait"),
    *("last_ack", "listen", "closing", "new_syn_recv"),
)
LISTEN = STATES.index("listen")
_NO_TIME_WAIT = 0xFFF & ~(1 << STATES.index("time_wait")) | 1 << STATES.index("new_syn_recv")
TYPES = {1: "stream", 2: "dgram", 5: "seqpacket"}

# Offsets in struct tcp_info, by column; the last number is the size.
_TCP_INFO = {
    "options": (5, 1),
    "unacked": (24, 4),
    "lost": (32, 4),
    "last_sent_ms": (44, 4),
    "last_received_ms": (52, 4),
    "rtt_us": (68, 4),
    "rtt_var_us": (72, 4),
    "receive_rtt_us": (92, 4),
    "cwnd": (80, 4),
    "retransmits": (100, 4),
    "pacing_rate": (104, 8),
    "bytes_acked": (120, 8),
    "bytes_received": (128, 8),
    "segments_out": (136, 4),
    "min_rtt_us": (148, 4),
    "data_segments_in": (152, 4),
    "data_segments_out": (156, 4),
    "delivery_rate": (160, 8),
    "busy_us": (168, 8),
    "rwnd_limited_us": (176, 8),
    "sndbuf_limited_us": (184, 8),
    "out_of_order": (224, 4),
}
TIMESTAMPS = 1
"""Bit of `options`: both ends send timestamps (TCPI_OPT_TIMESTAMPS), with which round trips are measured."""


class End(NamedTuple):
    """One end of a connection: packed address (4 or 16 bytes; IPv4 also of an IPv6 socket) and port."""

    address: bytes
    port: int

    @property
    def loopback(self) -> bool:
        """Return whether packets to it never leave its network namespace."""
        return self.address[:1] == b"\x7f" if len(self.address) == 4 else self.address == bytes(15) + b"\1"

    @property
    def wildcard(self) -> bool:
        """Return whether it stands for all addresses."""
        return not any(self.address)

    def __str__(self) -> str:
        if len(self.address) == 4:
            return f"{socket.inet_ntop(socket.AF_INET, self.address)}:{self.port}"
        return f"[{socket.inet_ntop(socket.AF_INET6, self.address)}]:{self.port}"


class InetSocket:
    """A TCP or UDP socket: a reply of the kernel, decoded on access."""

    __slots__ = ("_body", "inode", "local", "protocol", "remote", "state")

    def __init__(self, body: bytes, protocol: str) -> None:
        """`body`: struct inet_diag_msg and its attributes."""
        self._body = body
        self.protocol = protocol
        self.state = body[1]
        source, destination = struct.unpack_from(">HH", body, 4)
        self.local = End(_address(body[0], body[8:24]), source)
        self.remote = End(_address(body[0], body[24:40]), destination)
        (self.inode,) = struct.unpack_from("=I", body, 68)

    @property
    def family(self) -> str:
        """Return ``inet`` or ``inet6``."""
        return "inet6" if self._body[0] == socket.AF_INET6 else "inet"

    @property
    def queues(self) -> tuple[int, int]:
        """Return the bytes received and not read, and sent and not acknowledged. Of a listening socket: connections not
        accepted yet, and their maximum."""
        received, sent = struct.unpack_from("=II", self._body, 56)
        return received, sent

    def tcp_info(self) -> dict[str, int]:
        """Return the members of `_TCP_INFO` that this kernel reports; empty unless TCP."""
        info = _attributes(self._body[_INET_BYTES:]).get(_INFO, b"")
        found = {}
        for name, (offset, size) in _TCP_INFO.items():
            value = int.from_bytes(info[offset : offset + size], "little")
            unlimited = name in ("min_rtt_us", "pacing_rate") and value == (1 << 8 * size) - 1
            if offset + size <= len(info) and not unlimited:
                found[name] = min(value, (1 << 63) - 1)
        return found


class UnixSocket(NamedTuple):
    """A unix socket. `peer`: inode of the other end, 0 if it has none. `name`: path, ``@name`` of an abstract one.
    `pending`: of a listening one, inodes of the clients that it has not accepted yet; these have no peer."""

    inode: int
    peer: int
    type: str
    state: int
    name: bytes
    receive_queue: int
    send_queue: int
    pending: tuple[int, ...] = ()


class Channels:
    """Netlink sockets in a network namespace: one per kind of socket, since an aborted dump blocks its channel.

    `cut`: whether there were more than `most` sockets of a kind.
    """

    def __init__(self, namespace: str | None, most: int) -> None:
        """`namespace`: path of another namespace than ours (``/proc/PID/ns/net``). Raises ``OSError``."""
        self._most = most
        self._open: list[socket.socket] = []
        self.cut = False
        opened = _open_in(namespace, 5) if namespace is not None else [_open() for _ in range(5)]
        self._open = opened

    def inet(self, protocol: str) -> list[InetSocket]:
        """Return the sockets of ``tcp`` or ``udp``. Raises ``OSError``."""
        number = {"tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP}[protocol]
        states = _NO_TIME_WAIT if protocol == "tcp" else 0xFFF
        found = []
        for family in (socket.AF_INET, socket.AF_INET6):
            request = _INET_REQUEST.pack(family, number, _WITH_INFO, 0, states)
            found += [InetSocket(body, protocol) for body in self._replies(request) if len(body) >= _INET_BYTES]
        return found

    def unix(self) -> list[UnixSocket]:
        """Return the unix sockets. Raises ``OSError``."""
        request = _UNIX_REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _UNIX_SHOW, 0, 0)
        return [unix_socket(body) for body in self._replies(request) if len(body) >= _UNIX_BYTES]

    def close(self) -> None:
        """Close; idempotent."""
        for channel in self._open:
            channel.close()
        self._open = []

    def _replies(self, request: bytes) -> Iterator[bytes]:
        with self._open.pop() as channel:
            header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
            channel.send(header + request)
            count = 0
            while count <= self._most:
                for kind, body in messages(channel.recv(_RECEIVE_BYTES)):
                    if kind == _ERROR:
                        number = -int.from_bytes(body[:4], "little", signed=True)
                        raise OSError(number, os.strerror(number))
                    if kind == _DONE:
                        return
                    count += 1
                    if count <= self._most:
                        yield body
            self.cut = True


def messages(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and content of the netlink messages in `raw`; ends at the first that is invalid."""
    at = 0
    while at + _HEADER.size <= len(raw):
        length, kind, *_ = _HEADER.unpack_from(raw, at)
        if length < _HEADER.size or at + length > len(raw):
            return
        yield kind, raw[at + _HEADER.size : at + length]
        at += (length + 3) & ~3


def unix_socket(body: bytes) -> UnixSocket:
    """Decode struct unix_diag_msg and its attributes."""
    _, kind, state, _, inode = struct.unpack_from("=BBBBI", body)
    found = _attributes(body[_UNIX_BYTES:])
    name = found.get(_UNIX_NAME, b"")
    if name.startswith(b"\0"):
        name = b"@" + name[1:]
    queues = found.get(_UNIX_QUEUES, b"").ljust(8, b"\0")
    received, sent = struct.unpack_from("=II", queues)
    peer = int.from_bytes(found.get(_UNIX_PEER, b"")[:4], "little")
    waiting = found.get(_UNIX_PENDING, b"")
    pending = tuple(number for (number,) in struct.iter_unpack("=I", waiting[: len(waiting) & ~3]) if number)
    return UnixSocket(inode, peer, TYPES.get(kind, str(kind)), state, name, received, sent, pending)


def mirrored(sockets: list[InetSocket]) -> Mapping[int, int]:
    """Return the inode at the other end of each connection whose both ends are in `sockets`, by inode.

    The other end of a connection that its server has not accepted yet is the listening socket. For sockets of several
    namespaces leave out those of loopback addresses.
    """
    ends = {(one.protocol, one.local, one.remote): one for one in sockets if one.remote.port}
    listening: dict[tuple[str, int], list[InetSocket]] = {}
    for one in sockets:
        if one.protocol == "tcp" and one.state == LISTEN and one.inode:
            listening.setdefault((one.protocol, one.local.port), []).append(one)
    found = {}
    for (protocol, local, remote), one in ends.items():
        other = ends.get((protocol, remote, local))
        if other is None or not one.inode or other is one:
            continue
        inode = other.inode
        if not inode:
            servers = listening.get((protocol, remote.port), [])
            inode = next((s.inode for s in servers if s.local.wildcard or s.local.address == remote.address), 0)
        if inode:
            found[one.inode] = inode
    return found


def _address(family: int, raw: bytes) -> bytes:
    if family != socket.AF_INET6:
        return raw[:4]
    return raw[12:] if raw.startswith(_MAPPED) else raw


def _attributes(raw: bytes) -> dict[int, bytes]:
    """Return the attributes by type (struct nlattr: length, type, content, padded to four bytes)."""
    found = {}
    at = 0
    while at + 4 <= len(raw):
        length, kind = struct.unpack_from("=HH", raw, at)
        if length < 4 or at + length > len(raw):
            break
        found[kind & 0x3FFF] = raw[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def _open() -> socket.socket:
    channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
    channel.settimeout(_TIMEOUT_S)
    return channel


def _open_in(namespace: str, count: int) -> list[socket.socket]:
    """Open channels in another network namespace, in a thread that enters it and then ends. Raises ``OSError``."""
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    opened: list[socket.socket] = []
    failed: list[OSError] = []

    def enter() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(ctypes.c_int(descriptor), ctypes.c_int(_CLONE_NEWNET)) != 0:
            number = ctypes.get_errno()
            failed.append(OSError(number, os.strerror(number)))
            return
        try:
            opened.extend(_open() for _ in range(count))
        except OSError as error:
            failed.append(error)

    try:
        thread = threading.Thread(target=enter, name="netns")
        thread.start()
        thread.join()
    finally:
        os.close(descriptor)
    if failed:
        for channel in opened:
            channel.close()
        raise failed[0]
    return opened
