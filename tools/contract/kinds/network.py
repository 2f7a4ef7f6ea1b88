"""Kinds of findings about connections."""

from __future__ import annotations

from whystall.tools.contract.kinds.spec import KindSpec, Mechanism, kind

# `peer`: a process on this host as ``comm (pid)``, or an address; `peer_code`: the line of a local one; `local`: the
# target's address; `code`: the line that waits longest for the connection.
_PLACE = "peer local code peer_code"
_MADE = "window_pct total_ms max_ms count asked_ms"
_ARRIVES = (
    "window_pct count later_pct received_rate:bytes/s receive_rtt_ms min_rtt_ms out_of_order_pct out_of_order:count"
)

KINDS: dict[str, KindSpec] = {
    # `answer`: silent (all was acknowledged, nothing came back) or unreachable (nothing is acknowledged)
    "net.no_answer": kind(Mechanism.OBJECTS, "process", "sent_ago_s silent_s unacked retransmits", f"{_PLACE} answer"),
    "net.loss": kind(Mechanism.OBJECTS, "process", "loss_pct retransmits busy_pct rtt_ms sent_rate:bytes/s", _PLACE),
    # the sender was limited by the receiver's window in `limited_pct` of the time; or, within the host, it sent
    # segments again since the receiver did not take them in time
    "net.receiver_slow": kind(
        Mechanism.OBJECTS,
        "process",
        "limited_pct busy_pct send_queue_bytes sent_rate:bytes/s loss_pct retransmits",
        _PLACE,
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
    # How data arrives for a thread that waits for it in `window_pct` of the time; `later_pct`: at least this share of
    # that time after the first byte of an answer. `limit`: network (a queue on the way), either (narrow link or slow
    # sender). Both rest on the thread's waits, and a receiver cannot tell lost from overtaken segments: no second
    # mechanism.
    "net.transfer": kind(Mechanism.SWITCHES, "thread", _ARRIVES, f"{_PLACE} limit", share="window_pct"),
    "net.out_of_order": kind(Mechanism.SWITCHES, "thread", _ARRIVES, _PLACE, share="window_pct"),
    # waits of a thread for connect(2), and for responses of name servers
    "net.connect": kind(Mechanism.SWITCHES, "thread", _MADE, "syscall code open", share="window_pct"),
    "net.dns": kind(Mechanism.SWITCHES, "thread", _MADE, "syscall code open", share="window_pct"),
}
