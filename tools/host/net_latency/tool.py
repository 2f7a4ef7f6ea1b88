"""net_latency: measure connections of a target: round trips, losses, limits, and what threads wait for on them."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from whystall.tools.collect.options import SwitchOptions
from whystall.tools.contract.params import LiveParams, MinMs
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.contract.result import Model
from whystall.tools.host.common.snapshots import target_pids
from whystall.tools.host.common.thread_states import ThreadStates, thread_states_of
from whystall.tools.host.net_latency.connections import Connection, connections
from whystall.tools.host.net_latency.findings import judged
from whystall.tools.host.net_latency.waits import NetWait, What, waits
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording


class Params(LiveParams):
    """Parameters of net_latency."""

    min_ms: MinMs = 1.0


class Row(Model):
    """One connection over the window. `peer`: a process of this host, or the remote address. `busy_pct`: with data
    unacknowledged; of it limited by the receiver's window, the send buffer, the network. `receive_rtt_ms`: from an
    acknowledgement to data sent after it; `out_of_order_pct`: of the segments received with data. `silent_ms`: since
    data last arrived. `waited_ms`: threads waited for its data, longest at `code`; `peer_code`: line of a local peer at
    the end, if exactly one of its threads has a Python stack. None: unknown, or not TCP."""

    pid: int
    comm: str
    fd: int
    protocol: str
    state: str
    peer: str
    local: str
    remote: str
    new: bool
    ended: bool
    rtt_ms: float | None
    min_rtt_ms: float | None
    rtt_var_ms: float | None
    retransmits: int | None
    loss_pct: float | None
    sent_bytes: int | None
    received_bytes: int | None
    busy_pct: float | None
    receiver_limited_pct: float | None
    buffer_limited_pct: float | None
    network_limited_pct: float | None
    receive_rtt_ms: float | None
    out_of_order_pct: float | None
    unacked: int | None
    recv_queue: int
    send_queue: int
    silent_ms: float | None
    waited_ms: float
    code: str
    peer_code: str


class PeerRow(Model):
    """All connections to one peer."""

    peer: str
    connections: int
    retransmits: int
    sent_bytes: int
    received_bytes: int
    rtt_ms: float | None
    waited_ms: float


class WaitRow(Model):
    """Waits of one thread at one line. `what`: connect, dns, receive, send."""

    pid: int
    tid: int
    comm: str
    what: What
    peer: str
    code: str
    syscall: str
    count: int
    total_ms: float
    max_ms: float
    open: bool
    window_pct: float


class Data(Model):
    """Connections and peers that threads waited for longest first."""

    connections: list[Row] = Field(default_factory=list)
    peers: list[PeerRow] = Field(default_factory=list)
    waits: list[WaitRow] = Field(default_factory=list)


def _needs(params: Params) -> list[Need]:
    options = SwitchOptions(int(params.min_ms * 1e6), python=True)
    return [Need("objects"), Need("switches", options, optional=True)]


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Judge the connections of the target in `recording`."""
    window_ns = max(recording.manifest.window_ns, 1)
    found = connections(recording, target_pids(recording))
    waited = waits(recording, found)
    known = thread_states_of(recording)
    rows = sorted((_row(c, waited, known) for c in found), key=lambda r: (-r.waited_ms, -_moved(r), r.pid, r.fd))
    peers = _peers(rows)
    by_inode = {c.inode: c for c in found}
    lines = [_wait(w, by_inode.get(w.inode), window_ns) for w in waited]
    complete = recording.manifest.saw_everything("objects")
    findings = judged(found, waited, known, window_ns, complete=complete)
    either = [f.attributes["peer"] for f in findings if f.attributes.get("limit") == "either"]
    return Judgement(
        findings=findings,
        data=Data(connections=rows[: params.top], peers=peers[: params.top], waits=lines[: params.top]),
        seen=len(rows) + len(lines),
        totals={"connections": len(rows), "peers": len(peers), "waits": len(lines)},
        not_seen=[("short_connections", ""), *(("sender_not_observed", peer) for peer in either[:3])],
    )


def _row(connection: Connection, waited: Sequence[NetWait], known: ThreadStates) -> Row:
    own = [w for w in waited if w.inode == connection.inode]
    return Row(
        pid=connection.pid,
        comm=connection.comm,
        fd=connection.fd,
        protocol="unix" if connection.family == "unix" else connection.protocol,
        state=connection.state,
        peer=connection.peer,
        local=connection.local,
        remote=connection.remote,
        new=connection.new,
        ended=connection.ended,
        rtt_ms=connection.rtt_ms,
        min_rtt_ms=connection.min_rtt_ms,
        rtt_var_ms=connection.rtt_var_ms,
        retransmits=connection.retransmits,
        loss_pct=connection.loss_pct,
        sent_bytes=connection.sent_bytes,
        received_bytes=connection.received_bytes,
        busy_pct=connection.busy_pct,
        receiver_limited_pct=connection.rwnd_limited_pct,
        buffer_limited_pct=connection.sndbuf_limited_pct,
        network_limited_pct=connection.network_limited_pct,
        receive_rtt_ms=connection.receive_rtt_ms,
        out_of_order_pct=connection.out_of_order_pct,
        unacked=connection.unacked,
        recv_queue=connection.recv_queue,
        send_queue=connection.send_queue,
        silent_ms=connection.silent_ms,
        waited_ms=sum(w.total_ns for w in own) / 1e6,
        code=own[0].code if own else "",
        peer_code=known.sole_line(connection.peer_pid) if connection.peer_pid is not None else "",
    )


def _moved(row: Row) -> int:
    return (row.sent_bytes or 0) + (row.received_bytes or 0)


def _peers(rows: Sequence[Row]) -> list[PeerRow]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.peer, []).append(row)
    found = [
        PeerRow(
            peer=peer,
            connections=len(own),
            retransmits=sum(r.retransmits or 0 for r in own),
            sent_bytes=sum(r.sent_bytes or 0 for r in own),
            received_bytes=sum(r.received_bytes or 0 for r in own),
            rtt_ms=max((r.rtt_ms for r in own if r.rtt_ms is not None), default=None),
            waited_ms=sum(r.waited_ms for r in own),
        )
        for peer, own in groups.items()
    ]
    return sorted(found, key=lambda p: (-p.waited_ms, -p.sent_bytes - p.received_bytes, p.peer))


def _wait(wait: NetWait, connection: Connection | None, window_ns: int) -> WaitRow:
    return WaitRow(
        pid=wait.pid,
        tid=wait.tid,
        comm=wait.comm,
        what=wait.what,
        peer=connection.peer if connection is not None else "",
        code=wait.code,
        syscall=wait.syscall,
        count=wait.count,
        total_ms=wait.total_ns / 1e6,
        max_ms=wait.max_ns / 1e6,
        open=wait.open,
        window_pct=min(100.0, 100 * wait.total_ns / window_ns),
    )


TOOL = Tool(
    name="net_latency",
    title="Connections",
    description=(
        "Connections of a target, per peer (address, or the process behind a local one): round trip, losses, what "
        "limits them, bytes, and the code that waits for data, for connections and for name servers."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset(
        {
            *("net.no_answer", "net.loss", "net.receiver_slow", "net.bandwidth", "net.rtt"),
            *("net.connect", "net.dns", "net.transfer", "net.out_of_order"),
        }
    ),
    cost=2.0,
)
