"""Kinds of findings about connections."""

from __future__ import annotations

from whystall.tools.contract.kinds.spec import KindSpec, Mechanism, kind

# `peer`: a process on this host as ``comm (pid)``, or an address; `peer_code`: the line of a local one; `local`: the
# target's address; `code`: the line that waits longest for the connection.
_PLACE = "peer local code peer_code"
_MADE = "window_pct total_ms max_ms count asked_ms"

KINDS: dict[str, KindSpec] = {
    # `answer`: silent (all was acknowledged, nothing came back) or unreachable (nothing is acknowledged)
    "net.no_answer": kind(Mechanism.OBJECTS, "process", "sent_ago_s silent_s unacked retransmits", f"{_PLACE} answer"),
    "net.loss": kind(Mechanism.OBJECTS, "process", "loss_pct retransmits busy_pct rtt_ms sent_rate:bytes/s", _PLACE),
    # the sender was limited by the receiver's window in `limited_pct` of the time
    "net.receiver_slow": kind(
        Mechanism.OBJECTS, "process", "limited_pct busy_pct send_queue_bytes sent_rate:bytes/s", _PLACE
    ),
    # `limit`: network, send_buffer
    "net.bandwidth": kind(
        Mechanism.OBJECTS,
        "process",
        "limited_pct busy_pct rtt_ms min_rtt_ms loss_pct sent_rate:bytes/s",
        f"{_PLACE} limit",
    ),
    # `limit`: queue (longer than the shortest round trip), distance
    "net.rtt": kind(Mechanism.OBJECTS, "process", "rtt_ms min_rtt_ms rtt_var_ms", f"{_PLACE} limit"),
    # waits of a thread for connect(2), and for responses of name servers
    "net.connect": kind(Mechanism.SWITCHES, "thread", _MADE, "syscall code open", share="window_pct"),
    "net.dns": kind(Mechanism.SWITCHES, "thread", _MADE, "syscall code open", share="window_pct"),
}
