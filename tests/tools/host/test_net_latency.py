"""net_latency on recordings made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from recordings import PID, Scene

from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.host.net_latency.tool import Data, Params, judge

WINDOW_S = 10.0
# A healthy connection of a rack: each counter at the start and at the end of the window.
HEALTHY: dict[str, Any] = {
    "inode": 77,
    "pid": PID,
    "fd": 5,
    "comm": "train",
    "family": "inet",
    "protocol": "tcp",
    "state": "established",
    "local": "10.0.0.1:40000",
    "remote": "10.0.0.2:9000",
    "recv_queue": 0,
    "send_queue": 0,
    "rtt_us": 300,
    "min_rtt_us": 200,
    "rtt_var_us": 50,
    "retransmits": (0, 1),
    "unacked": 0,
    "segments_out": (100, 1100),
    "bytes_acked": (1000, 11_000_000),
    "bytes_received": (5000, 6000),
    "busy_us": (0, 1_000_000),
    "rwnd_limited_us": 0,
    "sndbuf_limited_us": 0,
    "last_sent_ms": 5,
    "last_received_ms": 3,
}
ASKS = ("recv", "fetch_batch (client.py:26)", "main (client.py:40)")


def looked(wait_ms: float = 0, sockets: tuple[dict[str, Any], ...] = (), **changed: Any) -> Data:
    return scene(wait_ms, sockets, **changed)[1]


def scene(wait_ms: float = 0, sockets: tuple[dict[str, Any], ...] = (), **changed: Any) -> tuple[list[Finding], Data]:
    made = Scene(window_s=WINDOW_S).seen("sockets", **(HEALTHY | changed))
    for row in sockets:
        made.seen("sockets", **row)
    if wait_ms:
        still = wait_ms >= WINDOW_S * 1e3
        made.wait(0, wait_ms, "recvfrom", user=ASKS, object="socket:[77]", still=still)
    result = judge(made.build(), Params(pid=PID, top=50))
    return result.findings, result.data


def test_differences_of_the_two_readings() -> None:
    findings, data = scene()
    (row,) = data.connections
    assert (row.peer, row.sent_bytes, row.received_bytes) == ("10.0.0.2:9000", 10_999_000, 1000)
    assert row.loss_pct == pytest.approx(0.1)
    assert row.busy_pct == pytest.approx(10)
    assert row.network_limited_pct == pytest.approx(10)
    assert row.rtt_ms == pytest.approx(0.3)
    (normal,) = findings
    assert (normal.kind, normal.polarity) == ("net.loss", Polarity.NORMAL)


@pytest.mark.parametrize(
    ("changed", "kind", "says"),
    [
        ({"retransmits": (0, 30)}, "net.loss", {}),
        ({"retransmits": (0, 30), "local": "10.0.0.2:40000"}, "net.receiver_slow", {"local": "10.0.0.2:40000"}),
        ({"busy_us": (0, 9_000_000), "rwnd_limited_us": (0, 4_000_000)}, "net.receiver_slow", {}),
        ({"busy_us": (0, 9_000_000), "rtt_us": 30_000}, "net.bandwidth", {"limit": "network"}),
        # the last reading falls into a pause, in which the queue has drained
        (
            {"busy_us": (0, 9_000_000), "rtt_us": (30_000, 400), "rtt_var_us": (2000, 350)},
            "net.bandwidth",
            {"limit": "network"},
        ),
        # a small request for each round trip over a long distance
        (
            {"busy_us": (0, 9_000_000), "rtt_us": 144_000, "min_rtt_us": 143_000, "bytes_acked": (0, 5000)},
            "net.rtt",
            {"limit": "distance"},
        ),
        # a full queue before a slow link loses some
        (
            {"busy_us": (0, 9_000_000), "retransmits": (0, 15), "rtt_us": 30_000, "rtt_var_us": 2000},
            "net.bandwidth",
            {"limit": "network"},
        ),
        ({"busy_us": (0, 9_000_000), "retransmits": (0, 180), "rtt_us": 13_000}, "net.loss", {}),
        (
            {"busy_us": (0, 9_000_000), "sndbuf_limited_us": (0, 8_000_000)},
            "net.bandwidth",
            {"limit": "send_buffer"},
        ),
        ({"rtt_us": 180_000}, "net.rtt", {"limit": "queue"}),
        ({"rtt_us": 60_000, "min_rtt_us": 55_000}, "net.rtt", {"limit": "distance"}),
    ],
)
def test_what_limits_a_connection(changed: dict[str, Any], kind: str, says: dict[str, str]) -> None:
    (finding,), _ = scene(**changed)
    assert (finding.kind, finding.polarity) == (kind, Polarity.ABNORMAL)
    assert finding.attributes == {"peer": "10.0.0.2:9000", "local": "10.0.0.1:40000", **says}


@pytest.mark.parametrize(
    "changed",
    [
        {"remote": "203.0.113.9:443", "rtt_us": 150_000, "min_rtt_us": 140_000},  # another continent
        {"retransmits": (0, 2), "segments_out": (0, 20)},  # too few to judge
        {"remote": "127.0.0.1:9000", "busy_us": (0, 9_000_000)},  # no bandwidth limits loopback
        {"busy_us": (0, 9_000_000), "rtt_us": 30_000, "rtt_var_us": 20_000},  # round trips that vary widely
    ],
)
def test_what_is_usual(changed: dict[str, Any]) -> None:
    assert all(f.polarity is Polarity.NORMAL for f in scene(**changed)[0])


@pytest.mark.parametrize(("longest_ms", "found"), [(150, ["net.bandwidth"]), (20, ["net.bandwidth"]), (3, [])])
def test_a_shaped_link_between_containers_of_a_host_is_told_from_an_ordinary_one(
    longest_ms: int, found: list[str]
) -> None:
    other = {**HEALTHY, "inode": 78, "pid": 5000, "comm": "collector", "local": "10.0.0.2:9000", "peer": 77}
    ends = {"peer": 78, "busy_us": (0, 9_000_000), "rtt_us": longest_ms * 1000, "rtt_var_us": longest_ms * 100}
    findings, _ = scene(sockets=(other | {"remote": "10.0.0.1:40000"},), **ends)
    assert [f.kind for f in findings if f.polarity is Polarity.ABNORMAL] == found


QUIET = {"bytes_acked": 1000, "bytes_received": 6000, "segments_out": 100, "retransmits": 0, "busy_us": 0}


def test_a_peer_that_acknowledged_the_request_and_sent_nothing() -> None:
    (finding,), data = scene(10_000, **QUIET, last_sent_ms=12_000, last_received_ms=12_500)
    assert (finding.kind, finding.attributes["answer"]) == ("net.no_answer", "silent")
    assert finding.attributes["code"] == "fetch_batch (client.py:26)"
    assert finding.metrics["silent_s"] == pytest.approx(12.5)
    assert data.connections[0].waited_ms == pytest.approx(10_000)
    assert [w.what for w in data.waits] == ["receive"]


@pytest.mark.parametrize(
    ("listens", "changed"),
    [
        (False, {"last_received_ms": 11_000}),  # the answer came after the request: an idle pooled connection
        (True, {"last_received_ms": 12_500}),  # a server waits for the next request
    ],
)
def test_an_idle_connection_is_no_peer_that_does_not_answer(listens: bool, changed: dict[str, Any]) -> None:
    listener = {"inode": 5, "pid": PID, "protocol": "tcp", "state": "listen", "local": "0.0.0.0:40000"}
    findings, _ = scene(10_000, (listener,) if listens else (), **QUIET, last_sent_ms=12_000, **changed)
    assert all(f.polarity is Polarity.NORMAL for f in findings)


def test_data_that_is_never_acknowledged() -> None:
    lost = QUIET | {"retransmits": (1, 5), "segments_out": (101, 105), "unacked": 1, "send_queue": 400}
    (finding,), _ = scene(10_000, **lost, last_sent_ms=9000, last_received_ms=12_500)
    assert (finding.kind, finding.attributes["answer"]) == ("net.no_answer", "unreachable")


def test_data_that_is_never_acknowledged_between_two_attempts() -> None:
    lost = QUIET | {"lost": (1, 1), "unacked": 1, "send_queue": 400}
    (finding,), _ = scene(10_000, **lost, last_sent_ms=19_000, last_received_ms=22_500)
    assert (finding.kind, finding.attributes["answer"]) == ("net.no_answer", "unreachable")
    assert "retransmits" not in finding.metrics


# Ten requests for 400 kB each over 8 Mbit/s: data arrives every millisecond or two, and 100 ms after it was asked for.
FETCHES = {
    "options": 1,
    "data_segments_out": (5, 15),
    "data_segments_in": (100, 2900),
    "bytes_received": (10_000, 4_010_000),
    "receive_rtt_us": (0, 90_000),
    "out_of_order": (0, 0),
    "bytes_acked": (1000, 2000),
    "segments_out": (100, 1100),
}


def fetching(silence_ms: float, parts: int, part_ms: float, **changed: Any) -> dict[str, Finding]:
    """Findings about ten requests, each answered after a silence, in so many parts."""
    made = Scene(window_s=WINDOW_S).seen("sockets", **(HEALTHY | FETCHES | changed))
    for second in range(10):
        made.wait(second, silence_ms, "recvfrom", user=ASKS, object="socket:[77]")
        for part in range(parts):
            at_s = second + (silence_ms + 0.1 + part * (part_ms + 0.1)) / 1e3
            made.wait(at_s, part_ms, "recvfrom", user=ASKS, object="socket:[77]")
    return {f.kind: f for f in judge(made.build(), Params(pid=PID)).findings if f.polarity is Polarity.ABNORMAL}


@pytest.mark.parametrize(
    ("changed", "kind", "limit"),
    [
        ({}, "net.transfer", "network"),
        # nothing queues on the way: the sender may be slow
        ({"receive_rtt_us": 2000}, "net.transfer", "either"),
        ({"receive_rtt_us": 90_000, "min_rtt_us": 80_000}, "net.transfer", "either"),  # it is far away
        ({"options": 0}, "net.transfer", "either"),  # without timestamps the estimate says nothing
        ({"receive_rtt_us": 2000, "out_of_order": (3, 403)}, "net.out_of_order", None),
        # a full queue before a narrow link drops some
        ({"out_of_order": (3, 403)}, "net.transfer", "network"),
        ({"receive_rtt_us": 10_000, "out_of_order": (3, 403)}, "net.transfer", "network"),
        ({"receive_rtt_us": 10_000}, "net.transfer", "either"),
    ],
)
def test_data_that_arrives_part_by_part(changed: dict[str, Any], kind: str, limit: str | None) -> None:
    (found,) = fetching(20, 300, 2, **changed).values()
    assert (found.kind, found.attributes.get("limit")) == (kind, limit)
    assert (found.subject.tid, found.attributes["code"]) == (PID, "fetch_batch (client.py:26)")
    assert found.metrics["later_pct"] > 90
    assert found.metrics["received_rate"] == pytest.approx(400_000)


@pytest.mark.parametrize(
    ("silence_ms", "parts", "changed"),
    [
        (400, 20, {}),  # the server thinks, then sends
        (20, 300, {"data_segments_out": (5, 4000)}),  # a request for each part
        (20, 300, {"bytes_received": (0, 30_000)}),  # messages, no transfer
        (20, 300, {"data_segments_out": -1}),  # an older recording
        (20, 300, {"remote": "127.0.0.1:9000"}),
        (20, 5, {}),  # little waiting
    ],
)
def test_waits_that_are_no_transfer(silence_ms: float, parts: int, changed: dict[str, Any]) -> None:
    assert not fetching(silence_ms, parts, 2, **changed)


def test_a_sender_that_was_not_observed_is_a_blind_spot() -> None:
    made = Scene(window_s=WINDOW_S).seen("sockets", **(HEALTHY | FETCHES | {"receive_rtt_us": 1000}))
    for part in range(2000):
        made.wait(part * 0.005, 4, "recvfrom", user=ASKS, object="socket:[77]")
    assert ("sender_not_observed", "10.0.0.2:9000") in judge(made.build(), Params(pid=PID)).not_seen


def test_a_local_peer_is_named_by_its_process() -> None:
    other = {"inode": 88, "peer": 77, "pid": 900, "comm": "server", "fd": 4, "family": "inet", "protocol": "tcp"}
    data = looked(4000, (other | {"state": "established"},), peer=88, remote="127.0.0.1:9000")
    assert [c.peer for c in data.connections] == ["server (900)"]
    (peer,) = data.peers
    assert (peer.peer, peer.connections, peer.waited_ms) == ("server (900)", 1, pytest.approx(4000))


def test_waits_for_connections_and_name_servers() -> None:
    made = Scene(window_s=WINDOW_S).seen("sockets", **HEALTHY)
    resolver = ("poll", "getaddrinfo (python3.11/socket.py:955)", "fetch (job.py:7)")
    for second in range(2):
        made.wait(second * 5, 5000, "poll", user=resolver, object="socket:[99]", asked_ns=5_000_000_000)
    made.wait(1, 1100, "connect", tid=PID + 1, user=("connect", "dial (job.py:3)"), object="socket:[98]")
    found = {f.kind: f for f in judge(made.build(), Params(pid=PID)).findings}
    dns, connect = found["net.dns"], found["net.connect"]
    assert (dns.attributes["code"], dns.metrics["window_pct"]) == ("fetch (job.py:7)", pytest.approx(100))
    assert dns.metrics["asked_ms"] == pytest.approx(5000)
    assert (connect.attributes["code"], connect.subject.tid) == ("dial (job.py:3)", PID + 1)


def test_a_recording_without_waits_and_a_vanished_connection() -> None:
    made = Scene(window_s=WINDOW_S).seen("sockets", looks="start", **HEALTHY)
    result = judge(made.build(without=("switches",)), Params(pid=PID))
    assert [(c.ended, c.rtt_ms, c.sent_bytes) for c in result.data.connections] == [(True, None, None)]
    assert result.findings == []
