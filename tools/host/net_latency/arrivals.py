"""How the data that a thread waits for arrives: after a silence, part by part, or out of order. Pure.

A thread that asks and reads the answer waits once for the first byte, while the peer works, and then for each further
part, while data is being sent. A receiver cannot see the sender's state: a narrow link and a slow sender both deliver
part by part. They differ in a queue: only a sender that is faster than the link has much data on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whystall.tools.contract.findings import Finding, Interval, Severity, Subject
from whystall.tools.host.common.findings import finding, severity
from whystall.tools.host.net_latency.connections import Connection
from whystall.tools.host.net_latency.waits import NetWait

# What users notice of a thread.
_WAIT_PCT = 5.0
# After a lost segment those that follow it arrive out of order, up to a window of them: with 1 % of the segments lost
# about 1.22 / sqrt(0.01) = 12 of 100 (Mathis et al., see findings.py), with small windows fewer. Reordering without
# loss is mostly below 2 % (Bennett et al., "Packet Reordering is Not Pathological Network Behavior", 1999, and later
# measurements).
_DISORDER_PCT = 5.0
_LEAST_DISORDER = 10
# Most of the waiting lies between parts of answers, and the segments are full (a host must accept 536 bytes: RFC 1122,
# section 4.2.2.6): a transfer, no messages.
_LATER_PCT = 50.0
_FULL_BYTES = 536
# A queue on the way: as much as arrives in ten waits was sent before the receiver's acknowledgement reached the sender,
# and a round trip takes at least twice the shortest. A sender that pauses itself has no more than one part on the way.
_PARTS_ON_THE_WAY = 10
# A full queue drops what does not fit. Each loss holds up what follows it until it was sent again, so that parts are
# larger. A loss that limits the rate by itself is followed by a pause of about a round trip, or a time-out.
_PARTS_HELD_UP = 2
_QUEUED = 2.0


@dataclass(frozen=True)
class Arrival:
    """Waits of one thread for data of one connection. `later_ns`: at least this much of `wait_ns` came after the first
    byte of an answer; `typical_ns`: a typical one of these waits, weighted by length."""

    first: NetWait
    wait_ns: int
    count: int
    later_ns: int
    typical_ns: float
    span: tuple[int, int]


def arrival(connection: Connection, own: Sequence[NetWait]) -> Arrival | None:
    """Return how the data of a connection arrives for the thread that waits longest for it; None if none waits, or the
    number of requests is unknown.

    Each request is at least one segment with data, and is followed by at most one wait for the first byte of its
    answer; one request may have been sent before the window. The longest waits are taken for these.
    """
    received = [w for w in own if w.what == "receive"]
    if not received or connection.data_out is None:
        return None
    totals: dict[int, int] = {}
    for wait in received:
        totals[wait.tid] = totals.get(wait.tid, 0) + wait.total_ns
    tid = max(totals, key=lambda one: totals[one])
    mine = [w for w in received if w.tid == tid]
    lengths = sorted((took for w in mine for took in w.took), reverse=True)
    later = lengths[connection.data_out + 1 :]
    return Arrival(
        first=max(mine, key=lambda w: w.total_ns),
        wait_ns=totals[tid],
        count=len(lengths),
        later_ns=sum(later),
        typical_ns=sum(took * took for took in later) / max(sum(later), 1),
        span=(min(w.span[0] for w in mine), max(w.span[1] for w in mine)),
    )


def arrival_finding(
    connection: Connection, own: Sequence[NetWait], place: dict[str, str], window_ns: int
) -> Finding | None:
    """Return the finding about the data that a thread waits for from another host; None if there is nothing to say."""
    seen = arrival(connection, own)
    if seen is None or connection.is_local or connection.ended or not connection.data_in:
        return None
    share = 100.0 * seen.wait_ns / window_ns
    if share < _WAIT_PCT:
        return None
    later_pct = 100.0 * seen.later_ns / max(seen.wait_ns, 1)
    full = (connection.received_bytes or 0) >= _FULL_BYTES * connection.data_in
    flows = full and later_pct >= _LATER_PCT
    disorder = connection.out_of_order_pct
    kind, attributes = "net.transfer", dict(place)
    often = (connection.out_of_order or 0) >= _LEAST_DISORDER
    disordered = disorder is not None and disorder >= _DISORDER_PCT and often
    if flows and _queues(connection, seen, _PARTS_HELD_UP if disordered else _PARTS_ON_THE_WAY):
        attributes["limit"] = "network"
    elif disordered:
        kind = "net.out_of_order"
    elif flows:
        attributes["limit"] = "either"
    else:
        return None
    rate = 1e9 * (connection.received_bytes or 0) / connection.span_ns if connection.span_ns > 0 else None
    metrics = {
        "window_pct": min(share, 100.0),
        "count": seen.count,
        "later_pct": later_pct,
        "received_rate": rate,
        "receive_rtt_ms": connection.receive_rtt_ms,
        "min_rtt_ms": connection.min_rtt_ms,
        "out_of_order_pct": disorder,
        "out_of_order": connection.out_of_order,
    }
    one = seen.first
    return finding(
        kind,
        Subject(type="thread", pid=one.pid, tid=one.tid, comm=one.comm),
        Interval(start_ns=max(seen.span[0], 0), end_ns=seen.span[1]),
        metrics,
        severity(share) if kind == "net.out_of_order" else Severity.MINOR,
        attributes,
    )


def _queues(connection: Connection, seen: Arrival, parts: int) -> bool:
    """Return whether much more data is on the way than arrives between two waits: `parts` times as much."""
    rtt, least = connection.receive_rtt_ms, connection.min_rtt_ms
    if rtt is None or least is None or rtt < _QUEUED * least:
        return False
    return rtt - least >= parts * seen.typical_ns / 1e6
