"""Compute the connections of a target from two snapshots of its sockets."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from whystall.tools.collect.sock_diag import TIMESTAMPS
from whystall.tools.host.common.snapshots import first_snapshot, last_snapshot
from whystall.tools.recording.store import Recording

Socket = Mapping[str, Any]
LISTENING = "listen"
_SITE = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))


@dataclass(frozen=True)
class Connection:
    """One socket with a peer. Counters are differences over `span_ns`; None: unknown. Times in milliseconds.

    `peer`: a process on this host as ``comm (pid)``, else the remote address, with its port unless that is temporary;
    `peer_pid`: of a local one. `serves`: the peer connected to a port on which this host listens. `new`: it did not
    exist at the first snapshot; its differences are since its start. `ended`: it did not exist at the last snapshot;
    only its addresses are known.
    """

    pid: int
    comm: str
    fd: int
    inode: int
    family: str
    protocol: str
    state: str
    local: str
    remote: str
    peer: str
    peer_pid: int | None
    serves: bool
    new: bool
    ended: bool
    span_ns: int
    rtt_ms: float | None
    min_rtt_ms: float | None
    rtt_var_ms: float | None
    retransmits: int | None
    segments: int | None
    sent_bytes: int | None
    received_bytes: int | None
    busy_pct: float | None
    rwnd_limited_pct: float | None
    sndbuf_limited_pct: float | None
    unacked: int | None
    lost: int | None
    """Segments that counted as lost at both readings: no acknowledgement has arrived in between."""
    recv_queue: int
    send_queue: int
    silent_ms: float | None
    """Time since data last arrived; None if none did or it is unknown."""
    sent_ago_ms: float | None
    """Time since data was last sent."""
    delivery_rate: int | None
    data_in: int | None
    """Segments with data that arrived."""
    data_out: int | None
    """Segments with data that were sent: at least one for each request."""
    out_of_order: int | None
    """Of `data_in`, arrived before an earlier one, which was lost or overtaken."""
    receive_rtt_ms: float | None
    """From an acknowledgement to the arrival of data that was sent after it (by timestamps); the longer of both
    readings."""
    longest_rtt_ms: float | None
    """The longer of both readings: between bursts a queue drains."""
    rtt_deviation: float | None
    """Deviation of the round trip relative to it; the smaller of both readings: it is large after a pause."""

    @property
    def loss_pct(self) -> float | None:
        """Share of the sent segments that were retransmitted."""
        if self.retransmits is None or not self.segments:
            return None
        return min(100.0, 100 * self.retransmits / self.segments)

    @property
    def out_of_order_pct(self) -> float | None:
        """Share of the segments with data that arrived before an earlier one."""
        if self.out_of_order is None or not self.data_in:
            return None
        return min(100.0, 100 * self.out_of_order / self.data_in)

    @property
    def network_limited_pct(self) -> float | None:
        """Share of the time with data to send in which neither the receiver's window nor the send buffer was the limit:
        the congestion window, pacing, or the wait for acknowledgements."""
        if self.busy_pct is None or self.rwnd_limited_pct is None or self.sndbuf_limited_pct is None:
            return None
        return max(0.0, self.busy_pct - self.rwnd_limited_pct - self.sndbuf_limited_pct)

    @property
    def is_local(self) -> bool:
        """Whether both ends are on this host."""
        return self.peer_pid is not None or self.family == "unix" or _is_loopback(self.remote)

    @property
    def is_loopback(self) -> bool:
        """Whether the kernel hands its packets over within the host: both ends have one address, or loopback ones."""
        own, other = address_of(self.local), address_of(self.remote)
        return own is not None and other is not None and (own == other or (own.is_loopback and other.is_loopback))

    @property
    def is_private(self) -> bool:
        """Whether the peer's address is private (RFC 1918, RFC 4193)."""
        address = address_of(self.remote)
        return address is not None and any(address in network for network in _SITE)


def address_of(endpoint: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address of ``10.0.0.1:80`` or ``[fd00::1]:80``; None if it is no address of the Internet Protocol."""
    host = endpoint.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def port_of(endpoint: str) -> int | None:
    """Return the port of ``10.0.0.1:80``; None without one."""
    port = endpoint.rpartition(":")[2]
    return int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else None


def connections(recording: Recording, pids: Collection[int] | None) -> list[Connection]:
    """Return the connections of the processes `pids` (None: of all), by process and inode."""
    before: dict[int, Socket] = {
        row["inode"]: row for row in _distinct(first_snapshot(recording, "sockets").iter_rows(named=True), pids)
    }
    rows = list(last_snapshot(recording, "sockets").iter_rows(named=True))
    every = rows + list(first_snapshot(recording, "sockets").iter_rows(named=True))
    holders: dict[int, Socket] = {}
    for held in every:
        if held["pid"] >= 0:
            holders.setdefault(held["inode"], held)
    listening = {(row["protocol"], port_of(row["local"])) for row in every if row["state"] == LISTENING}
    found = []
    now = _distinct(rows, pids)
    for row in now:
        if _has_peer(row):
            found.append(_connection(row, before.get(row["inode"]), holders, listening, ended=False))
    still = {row["inode"] for row in now}
    for inode, row in before.items():
        if inode not in still and _has_peer(row):
            found.append(_connection(row, row, holders, listening, ended=True))
    return sorted(found, key=lambda c: (c.pid, c.inode))


def _distinct(rows: Iterable[Socket], pids: Collection[int] | None) -> list[Socket]:
    """Return one row per socket, which several processes may share after a fork."""
    found: dict[int, Socket] = {}
    for row in rows:
        if row["pid"] >= 0 and (pids is None or row["pid"] in pids):
            found.setdefault(row["inode"], row)
    return list(found.values())


def _has_peer(row: Socket) -> bool:
    if row["state"] == LISTENING:
        return False
    return row["peer"] > 0 or (row["family"] != "unix" and port_of(row["remote"]) not in (None, 0))


def _connection(
    row: Socket,
    before: Socket | None,
    holders: Mapping[int, Socket],
    listening: Collection[tuple[str, int | None]],
    *,
    ended: bool,
) -> Connection:
    def change(name: str) -> int | None:
        if ended or row[name] < 0 or (before is not None and before[name] < 0):
            return None
        return max(0, int(row[name]) - (int(before[name]) if before is not None else 0))

    def share(name: str) -> float | None:
        micros = change(name)
        return None if micros is None or span_ns <= 0 else min(100.0, 1e5 * micros / span_ns)

    def known(name: str) -> int | None:
        return None if ended or row[name] < 0 else int(row[name])

    def millis(name: str) -> float | None:
        value = known(name)
        return None if value is None else value / 1e3

    # Of a new connection at most the window; its shares are then lower bounds.
    span_ns = row["at_ns"] - (before["at_ns"] if before is not None else 0)
    other = holders.get(row["peer"]) if row["peer"] > 0 else None
    port = port_of(row["local"])
    serves = port is not None and (row["protocol"], port) in listening
    sent_ago, silent = known("last_sent_ms"), known("last_received_ms")
    return Connection(
        pid=row["pid"],
        comm=row["comm"],
        fd=row["fd"],
        inode=row["inode"],
        family=row["family"],
        protocol=row["protocol"],
        state=row["state"],
        local=row["local"],
        remote=row["remote"],
        peer=_peer(row, other, serves=serves),
        peer_pid=other["pid"] if other is not None else None,
        serves=serves,
        new=before is None,
        ended=ended,
        span_ns=span_ns,
        rtt_ms=millis("rtt_us"),
        min_rtt_ms=millis("min_rtt_us"),
        rtt_var_ms=millis("rtt_var_us"),
        retransmits=change("retransmits"),
        segments=change("segments_out"),
        sent_bytes=change("bytes_acked"),
        received_bytes=change("bytes_received"),
        busy_pct=share("busy_us"),
        rwnd_limited_pct=share("rwnd_limited_us"),
        sndbuf_limited_pct=share("sndbuf_limited_us"),
        unacked=known("unacked"),
        lost=None if ended or before is None else max(0, min(row["lost"], before["lost"])),
        recv_queue=max(0, row["recv_queue"]),
        send_queue=max(0, row["send_queue"]),
        silent_ms=float(silent) if silent is not None and row["bytes_received"] > 0 else None,
        sent_ago_ms=float(sent_ago) if sent_ago is not None else None,
        delivery_rate=known("delivery_rate"),
        data_in=change("data_segments_in"),
        data_out=change("data_segments_out"),
        out_of_order=change("out_of_order"),
        receive_rtt_ms=None if ended else _receive_rtt_ms(row, before),
        longest_rtt_ms=None if ended else max((rtt / 1e3 for rtt, _ in _round_trips(row, before)), default=None),
        rtt_deviation=None if ended else min((var / rtt for rtt, var in _round_trips(row, before)), default=None),
    )


def _round_trips(*readings: Socket | None) -> list[tuple[int, int]]:
    """Return the measured round trips with their deviations, in us."""
    known = [(one["rtt_us"], one["rtt_var_us"]) for one in readings if one is not None]
    return [(rtt, deviation) for rtt, deviation in known if rtt > 0 and deviation >= 0]


def _receive_rtt_ms(*readings: Socket | None) -> float | None:
    """Return the receiver's round trip. Without timestamps the kernel estimates it by the time in which a full window
    arrives, which a slow sender makes long too (tcp_rcv_rtt_measure in net/ipv4/tcp_input.c)."""
    known = [r["receive_rtt_us"] for r in readings if r is not None and r["options"] > 0 and r["options"] & TIMESTAMPS]
    longest = max(known, default=0)
    return longest / 1e3 if longest > 0 else None


def _peer(row: Socket, other: Socket | None, *, serves: bool) -> str:
    if other is not None:
        return f"{other['comm']} ({other['pid']})"
    address = address_of(row["remote"])
    if address is None:
        return str(row["remote"] or row["local"])
    return str(address) if serves else str(row["remote"])


def _is_loopback(endpoint: str) -> bool:
    address = address_of(endpoint)
    return address is not None and address.is_loopback
