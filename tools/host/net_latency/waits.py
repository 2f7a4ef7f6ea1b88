"""Find what threads of a target wait for on the network: connecting, name servers, data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

from whystall.tools.host.common.stack_frames import program_line
from whystall.tools.host.net_latency.connections import Connection, port_of
from whystall.tools.recording.store import Recording

What = Literal["connect", "dns", "receive", "send"]

_RECEIVES = ("read", "readv", "recvfrom", "recvmsg", "recvmmsg", "poll", "ppoll", "select", "pselect6")
_SENDS = ("write", "writev", "sendto", "sendmsg", "sendmmsg", "sendfile", "splice")
_POLLS = ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2")
_SOCKET = re.compile(r"socket:\[(\d{1,19})\]")
# The resolvers of glibc and musl, and the functions of Python that call them.
_RESOLVER = re.compile(
    r"^(__)?(res_|libc_res_|getaddrinfo|gethostbyname|gaih_)|^__res_|^send_dg|^getaddrinfo \(|"
    r"^(gethostbyname|gethostbyname_ex|gethostbyaddr|getfqdn|getnameinfo) \("
)
# Python's function that connects with a time-out: connect(2) returns at once, then poll(2) waits.
_CONNECTS = re.compile(r"^create_connection \((?:[^()]*/)?socket\.py:")
_DNS_PORTS = frozenset({53, 5353})


@dataclass
class NetWait:
    """Waits of one thread for one thing at one line. `inode`: of the socket; -1 if it is not known. `took`: the length
    of each, ns."""

    pid: int
    tid: int
    comm: str
    what: What
    inode: int
    code: str
    syscall: str
    count: int = 0
    total_ns: int = 0
    max_ns: int = 0
    max_asked_ns: int = -1
    open: bool = False
    span: list[int] = field(default_factory=list)
    took: list[int] = field(default_factory=list)


def waits(recording: Recording, found: Sequence[Connection]) -> list[NetWait]:
    """Return what the threads of the recorded processes waited for on the network, longest first; empty without
    `switches`."""
    if not recording.has("switches"):
        return []
    stacks = dict(recording.table("switches.stacks").select("stack", "frames").iter_rows())
    by_inode = {c.inode: c for c in found}
    groups: dict[tuple[int, int, What, int, str, str], NetWait] = {}
    segments = recording.table("switches.segments").filter(pl.col("state") != "R")
    calls = {"connect", *_RECEIVES, *_SENDS, *_POLLS}
    for r in segments.filter(pl.col("syscall").is_in(sorted(calls))).iter_rows(named=True):
        frames = stacks.get(r["ustack"], [])
        named = _SOCKET.fullmatch(r["object"])
        inode = int(named[1]) if named else -1
        what = _what(r["syscall"], inode, frames, by_inode)
        if what is None:
            continue
        code = program_line(frames)
        wait = groups.setdefault(
            (r["pid"], r["tid"], what, inode, code, r["syscall"]),
            NetWait(r["pid"], r["tid"], r["comm"], what, inode, code, r["syscall"]),
        )
        wall = r["end_ns"] - r["start_ns"]
        wait.count += 1
        wait.total_ns += wall
        wait.took.append(wall)
        wait.max_ns = max(wait.max_ns, wall)
        wait.max_asked_ns = max(wait.max_asked_ns, r["asked_ns"])
        wait.open |= r["open"]
        wait.span = [min([r["start_ns"], *wait.span]), max([r["end_ns"], *wait.span])]
    return sorted(groups.values(), key=lambda w: -w.total_ns)


def _what(syscall: str, inode: int, frames: Sequence[str], by_inode: Mapping[int, Connection]) -> What | None:
    """Return what a call waits for; None unless it is known to be the network."""
    if syscall == "connect":
        return "connect"
    if any(_RESOLVER.search(frame) for frame in frames):
        return "dns"
    if syscall in _POLLS and any(_CONNECTS.match(frame) for frame in frames):
        return "connect"
    connection = by_inode.get(inode)
    if connection is None:
        return None
    if connection.protocol == "udp" and port_of(connection.remote) in _DNS_PORTS:
        return "dns"
    if connection.state == "syn_sent":
        return "connect"
    return "send" if syscall in _SENDS else "receive"
