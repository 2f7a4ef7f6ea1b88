"""Judge connections and waits for the network. Contains all thresholds, with their sources."""

from __future__ import annotations

from collections.abc import Sequence

from whystall.tools.contract.findings import Finding, Interval, Severity, Subject
from whystall.tools.host.common.findings import finding, severity, window
from whystall.tools.host.common.thread_states import ThreadStates
from whystall.tools.host.net_latency.arrivals import arrival_finding
from whystall.tools.host.net_latency.connections import Connection
from whystall.tools.host.net_latency.waits import NetWait

# With a share p of its segments lost, a TCP connection sends at most 1.22 / sqrt(p) segments per round trip (Mathis et
# al., "The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm", 1997): at 1 % only 12. Single
# retransmissions are usual.
_LOSS_PCT = 1.0
_LEAST_RETRANSMITS = 3
# A transfer that uses up a link's bandwidth fills the queue before it, and drops what does not fit: round trips are
# then at least twice the shortest, and TCP keeps the losses small (RFC 5681, section 3.1: each one halves its window).
_QUEUE_LOSS_PCT = 10.0
# Evidence of a standing queue: round trips this much longer than the shortest one, and at least twice as long. 100 ms
# is the interval in which CoDel expects a queue to drain (RFC 8289, section 4.2).
_QUEUE_MS = 100.0
# Within a host, across network namespaces (containers, pods), only a shaper queues for so long: the bandwidth plugin of
# CNI sets tbf with a latency of 25 ms.
_SHAPED_MS = 10.0
# Bytes in flight below which no link is full: twice the ten segments of Ethernet that a sender may send before any
# acknowledgement (RFC 6928). Less are messages that take two round trips at most, and wait for the distance. The
# congestion window tells nothing here: it keeps the size that a faster link allowed.
_IN_FLIGHT = 2 * 10 * 1448
# Light in fibre takes 1 ms to go 100 km and back: 5,000 km is too far within a site (addresses of RFC 1918 and RFC
# 4193), 30,000 km around the globe.
_SITE_RTT_MS = 50.0
_GLOBAL_RTT_MS = 300.0
# tcp_info (include/uapi/linux/tcp.h): tcpi_busy_time "Time (usec) busy sending data", tcpi_rwnd_limited "Time (usec)
# limited by receive window", tcpi_sndbuf_limited "Time (usec) limited by send buffer". A tenth of the time is what
# users notice of a thread (see host_snapshot); a sender that has data to send most of the time is a bulk transfer.
_LIMITED_PCT = 10.0
_BULK_PCT = 50.0
# Of a bulk transfer, this much of the busy time limited by the network alone, with a deviation of the round trip below
# half of it (RTTVAR after the first measurement, RFC 6298, section 2.2): the bandwidth is exhausted.
_NETWORK_SHARE = 0.8
_STABLE = 0.5
# RFC 6298, section 2.1: until a round trip is measured, the time-out is 1 s. A connection that takes longer lost a
# segment, or its peer's queue of connections is full; a lost request would have been retransmitted by then.
_RTO_MS = 1000.0
# Share of a thread's time that users notice.
_WAIT_PCT = 5.0
_OPEN = ("established", "syn_sent")
_MOST = 10


def judged(
    found: Sequence[Connection], waited: Sequence[NetWait], known: ThreadStates, window_ns: int, *, complete: bool
) -> list[Finding]:
    """Return findings about connections and waits, worst first; with `complete` also a normal one if all are in
    order."""
    results: list[tuple[int, Finding]] = []
    for connection in found:
        own = [w for w in waited if w.inode == connection.inode]
        place = _place(connection, own, known)
        judgement = (
            _no_answer(connection, own, place, window_ns)
            or (_bandwidth(connection, place, window_ns) if _overflows(connection) else None)
            or _loss(connection, place, window_ns)
            or _receiver(connection, place, window_ns)
            or _bandwidth(connection, place, window_ns)
            or _rtt(connection, place, window_ns)
        )
        arrives = arrival_finding(connection, own, place, window_ns)
        results += [(sum(w.total_ns for w in own), one) for one in (judgement, arrives) if one is not None]
    results.sort(key=lambda r: (-r[1].severity.rank, -r[0]))
    findings = [f for _, f in results[:_MOST]] + _made(waited, window_ns)
    tcp = [c for c in found if c.rtt_ms is not None and not c.is_local]
    if complete and tcp and not findings:
        findings.append(_in_order(tcp, window_ns))
    return findings


def _subject(connection: Connection) -> Subject:
    return Subject(type="process", pid=connection.pid, comm=connection.comm)


def _place(connection: Connection, own: Sequence[NetWait], known: ThreadStates) -> dict[str, str]:
    """Return both ends, the line that waits longest for the connection, and where a local peer is."""
    found = {"peer": connection.peer, "local": connection.local}
    if own:
        found["code"] = max(own, key=lambda w: w.total_ns).code
    if connection.peer_pid is not None:
        found["peer_code"] = known.sole_line(connection.peer_pid)
    return {name: text for name, text in found.items() if text}


def _no_answer(connection: Connection, own: Sequence[NetWait], place: dict[str, str], window_ns: int) -> Finding | None:
    """Return a finding if the peer is silent or unreachable.

    Silent: nothing is in flight, and nothing was received since data was last sent. Unreachable: data in flight is
    retransmitted and never acknowledged; the pauses between two attempts grow up to 120 s (RFC 6298, section 5.5;
    TCP_RTO_MAX), so that none may fall into the window.
    """
    if connection.serves or connection.unacked is None or connection.ended or connection.received_bytes:
        return None
    silent, sent = connection.silent_ms, connection.sent_ago_ms
    if connection.state not in _OPEN or sent is None:
        return None
    metrics: dict[str, float | None] = {"silent_s": None if silent is None else silent / 1e3}
    if connection.unacked and (connection.retransmits or connection.lost) and not connection.sent_bytes:
        metrics |= {"unacked": connection.unacked, "retransmits": connection.retransmits or None}
        attributes = {**place, "answer": "unreachable"}
        return finding("net.no_answer", _subject(connection), window(window_ns), metrics, Severity.CRITICAL, attributes)
    if connection.state != "established" or connection.unacked or connection.send_queue:
        return None
    waits = [w for w in own if w.what == "receive"]
    asked = silent is None or sent <= silent
    if not asked or sent < _RTO_MS or not any(w.open for w in waits):
        return None
    longest = max(waits, key=lambda w: w.total_ns)
    metrics["sent_ago_s"] = sent / 1e3
    attributes = {**place, "answer": "silent"}
    bad = severity(100 * longest.total_ns / window_ns)
    return finding("net.no_answer", _subject(connection), window(window_ns), metrics, bad, attributes)


def _loss(connection: Connection, place: dict[str, str], window_ns: int) -> Finding | None:
    loss, times = connection.loss_pct, connection.retransmits
    if loss is None or times is None or loss < _LOSS_PCT or times < _LEAST_RETRANSMITS:
        return None
    metrics = {
        "loss_pct": loss,
        "retransmits": times,
        "busy_pct": connection.busy_pct,
        "rtt_ms": connection.rtt_ms,
        "sent_rate": _rate(connection.sent_bytes, connection),
    }
    bad = Severity.MAJOR if loss >= 5 * _LOSS_PCT else Severity.MINOR
    if connection.is_loopback:
        # No wire loses them: the receiver held its socket, or had no room, for longer than the time-out
        # (tcp_add_backlog in net/ipv4/tcp_ipv4.c), as one without a CPU does.
        late = {"loss_pct": loss, "retransmits": times, "busy_pct": connection.busy_pct}
        return finding("net.receiver_slow", _subject(connection), window(window_ns), late, Severity.MINOR, place)
    return finding("net.loss", _subject(connection), window(window_ns), metrics, bad, place)


def _overflows(connection: Connection) -> bool:
    """Return whether the losses are explained by a bulk transfer that overflows a queue on the path."""
    rtt, least, loss = connection.rtt_ms, connection.min_rtt_ms, connection.loss_pct
    if rtt is None or least is None or loss is None or (connection.busy_pct or 0.0) < _BULK_PCT:
        return False
    return 0 < loss < _QUEUE_LOSS_PCT and rtt >= 2 * least


def _receiver(connection: Connection, place: dict[str, str], window_ns: int) -> Finding | None:
    """Return the finding that the peer's receive window limits the sender."""
    limited = connection.rwnd_limited_pct
    if limited is None or limited < _LIMITED_PCT:
        return None
    metrics = {
        "limited_pct": limited,
        "busy_pct": connection.busy_pct,
        "send_queue_bytes": connection.send_queue,
        "sent_rate": _rate(connection.sent_bytes, connection),
    }
    bad = severity(limited)
    return finding("net.receiver_slow", _subject(connection), window(window_ns), metrics, bad, place)


def _bandwidth(connection: Connection, place: dict[str, str], window_ns: int) -> Finding | None:
    """Return the finding that the network, or the own send buffer, limits a sender that has data most of the time."""
    busy, network = connection.busy_pct, connection.network_limited_pct
    if busy is None or network is None or busy < _BULK_PCT or (connection.is_local and not _is_shaped(connection)):
        return None
    buffer = connection.sndbuf_limited_pct or 0.0
    if buffer >= _LIMITED_PCT and buffer >= network:
        limit, limited = "send_buffer", buffer
    elif network >= _NETWORK_SHARE * busy and _is_stable(connection) and _meets_a_limit(connection):
        limit, limited = "network", network
    else:
        return None
    metrics = {
        "limited_pct": limited,
        "busy_pct": busy,
        "rtt_ms": connection.rtt_ms,
        "min_rtt_ms": connection.min_rtt_ms,
        "loss_pct": connection.loss_pct or None,
        "sent_rate": _rate(connection.sent_bytes, connection),
    }
    attributes = {**place, "limit": limit}
    return finding("net.bandwidth", _subject(connection), window(window_ns), metrics, severity(limited), attributes)


def _is_shaped(connection: Connection) -> bool:
    """Return whether a connection within the host passes a queue, as between the network namespaces of containers."""
    longest, least = connection.longest_rtt_ms, connection.min_rtt_ms
    if longest is None or least is None or connection.is_loopback or connection.family == "unix":
        return False
    return longest - least >= _SHAPED_MS and longest >= 2 * least


def _meets_a_limit(connection: Connection) -> bool:
    """Return whether a busy sender meets the limit of a link: a shaper's own queue shows that, however short."""
    return connection.is_local or _fills_link(connection)


def _fills_link(connection: Connection) -> bool:
    """Return whether enough bytes are in flight on average for the link to be what limits the sender. A small request
    per round trip keeps a connection busy too, and waits for the distance."""
    sent, rtt = _rate(connection.sent_bytes, connection), connection.longest_rtt_ms
    return sent is not None and rtt is not None and sent * rtt / 1e3 >= _IN_FLIGHT


def _is_stable(connection: Connection) -> bool:
    return connection.rtt_deviation is not None and connection.rtt_deviation <= _STABLE


def _rtt(connection: Connection, place: dict[str, str], window_ns: int) -> Finding | None:
    rtt, least = connection.rtt_ms, connection.min_rtt_ms
    if rtt is None or connection.is_local:
        return None
    queued = least is not None and least > 0 and rtt - least >= _QUEUE_MS and rtt >= 2 * least
    if not queued and rtt < (_SITE_RTT_MS if connection.is_private else _GLOBAL_RTT_MS):
        return None
    metrics = {"rtt_ms": rtt, "min_rtt_ms": least, "rtt_var_ms": connection.rtt_var_ms}
    attributes = {**place, "limit": "queue" if queued else "distance"}
    return finding("net.rtt", _subject(connection), window(window_ns), metrics, Severity.MINOR, attributes)


def _in_order(tcp: Sequence[Connection], window_ns: int) -> Finding:
    """Return the normal finding: no connection loses segments or has long round trips."""
    metrics = {
        "loss_pct": max((c.loss_pct or 0.0 for c in tcp), default=0.0),
        "rtt_ms": max(c.rtt_ms or 0.0 for c in tcp),
    }
    pids = {(c.pid, c.comm) for c in tcp}
    pid, comm = pids.pop() if len(pids) == 1 else (None, None)
    return finding("net.loss", Subject(type="process", pid=pid, comm=comm), window(window_ns), metrics)


def _made(waited: Sequence[NetWait], window_ns: int) -> list[Finding]:
    """Return a finding per thread that waits long for connections or for a name server."""
    found = []
    groups: dict[tuple[int, str], list[NetWait]] = {}
    for wait in waited:
        if wait.what in ("connect", "dns"):
            groups.setdefault((wait.tid, wait.what), []).append(wait)
    for (tid, what), own in groups.items():
        total, longest = sum(w.total_ns for w in own) / 1e6, max(w.max_ns for w in own) / 1e6
        share = min(100.0, 1e8 * total / window_ns)
        if share < _WAIT_PCT and longest < _RTO_MS:
            continue
        most = max(own, key=lambda w: w.total_ns)
        asked = max(w.max_asked_ns for w in own)
        metrics = {
            "window_pct": share,
            "total_ms": total,
            "max_ms": longest,
            "count": sum(w.count for w in own),
            "asked_ms": asked / 1e6 if asked > 0 else None,
        }
        attributes = {"syscall": most.syscall, "open": "yes" if any(w.open for w in own) else "no"}
        if most.code:
            attributes["code"] = most.code
        subject = Subject(type="thread", pid=most.pid, tid=tid, comm=most.comm)
        interval = Interval(start_ns=min(w.span[0] for w in own), end_ns=max(w.span[1] for w in own))
        found.append(finding(f"net.{what}", subject, interval, metrics, severity(share), attributes))
    return sorted(found, key=lambda f: -f.metrics["total_ms"])[:_MOST]


def _rate(count: int | None, connection: Connection) -> float | None:
    return None if count is None or connection.span_ns <= 0 else 1e9 * count / connection.span_ns
