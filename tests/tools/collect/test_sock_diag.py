"""Replies of sock_diag: real ones of sockets of our own, and those that no kernel should send."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from whystall.tools.collect.sock_diag import STATES, TIMESTAMPS, Channels, InetSocket, messages, mirrored, unix_socket


def reply(
    inode: int, local: tuple[str, int], remote: tuple[str, int], state: str = "established", mapped: bool = False
) -> InetSocket:
    """A reply of a kernel about an IPv4 socket, or an IPv6 socket with a mapped address."""
    prefix = bytes(10) + b"\xff\xff" if mapped else b""
    ends = [(prefix + socket.inet_aton(host)).ljust(16, b"\0") for host, _ in (local, remote)]
    family = socket.AF_INET6 if mapped else socket.AF_INET
    ports = struct.pack(">HH", local[1], remote[1])
    numbers = struct.pack("=5I", 0, 10, 20, 0, inode)
    body = bytes([family, STATES.index(state), 0, 0]) + ports + b"".join(ends) + bytes(12) + numbers
    return InetSocket(body, "tcp")


A, B = ("127.0.0.1", 4000), ("127.0.0.1", 80)


def test_ends_of_a_connection_are_found() -> None:
    assert mirrored([reply(1, A, B), reply(2, B, A, mapped=True)]) == {1: 2, 2: 1}
    assert mirrored([reply(1, A, B), reply(2, B, ("127.0.0.1", 4001))]) == {}


def test_a_connection_that_is_not_accepted_belongs_to_the_listening_socket() -> None:
    listening = reply(3, ("0.0.0.0", 80), ("0.0.0.0", 0), "listen")
    elsewhere = reply(4, ("10.0.0.1", 80), ("0.0.0.0", 0), "listen")
    assert mirrored([reply(1, A, B), reply(0, B, A), elsewhere, listening]) == {1: 3}


def test_a_reply_is_decoded() -> None:
    found = reply(1, A, B)
    assert (str(found.local), found.family, found.queues, found.tcp_info()) == ("127.0.0.1:4000", "inet", (10, 20), {})
    assert found.local.loopback
    info = bytearray(b"\xff" * 232)
    info[5] = TIMESTAMPS | 2
    info[68:72] = struct.pack("<I", 1500)
    info[92:96], info[152:160] = struct.pack("<I", 90_000), struct.pack("<2I", 700, 30)
    info[224:228] = struct.pack("<I", 12)
    attribute = struct.pack("=HH", 4 + len(info), 2) + info
    known = InetSocket(found._body + attribute, "tcp").tcp_info()
    assert known["rtt_us"] == 1500
    assert known["options"] & TIMESTAMPS
    assert [known[name] for name in ("receive_rtt_us", "data_segments_in", "data_segments_out")] == [90_000, 700, 30]
    assert known["out_of_order"] == 12
    assert "min_rtt_us" not in known  # not measured yet
    assert "pacing_rate" not in known  # unlimited
    before_5_4 = struct.pack("=HH", 4 + 224, 2) + info[:224]
    assert "out_of_order" not in InetSocket(found._body + before_5_4, "tcp").tcp_info()
    older = struct.pack("=HH", 4 + 104, 2) + info[:104]
    assert "busy_us" not in InetSocket(found._body + older, "tcp").tcp_info()


def test_unix_sockets() -> None:
    head = struct.pack("=BBBBI8x", 1, 1, 1, 0, 77)
    name = struct.pack("=HH", 4 + 5, 0) + b"\0abcd" + bytes(3)
    peer = struct.pack("=HHI", 8, 2, 78)
    found = unix_socket(head + name + peer)
    assert (found.inode, found.peer, found.type, found.name) == (77, 78, "stream", b"@abcd")
    pending = struct.pack("=HHIIIH", 4 + 12, 3, 80, 0, 81, 0)
    assert unix_socket(head + pending).pending == (80, 81)
    assert unix_socket(head + b"\xff\xff\0\0").peer == 0


@pytest.mark.parametrize("raw", [b"", bytes(16), b"\xff" * 64, struct.pack("=IHHII", 15, 20, 0, 0, 0)])
def test_an_invalid_message_ends_the_reply(raw: bytes) -> None:
    assert list(messages(raw)) == []


def test_real_sockets() -> None:
    pair = socket.socketpair()
    waiting = socket.socket(socket.AF_UNIX)
    waiting.bind(f"\0{os.getpid()}-waits")
    waiting.listen()
    early = socket.socket(socket.AF_UNIX)
    early.connect(waiting.getsockname())
    listening, client_ino = (os.fstat(s.fileno()).st_ino for s in (waiting, early))
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    client.sendall(b"x" * 100)
    inodes = [os.fstat(s.fileno()).st_ino for s in (*pair, client, accepted)]
    channels = Channels(None, 10_000)
    try:
        tcp = {found.inode: found for found in channels.inet("tcp")}
        unix = {found.inode: found for found in channels.unix()}
    finally:
        channels.close()
        for one in (*pair, server, client, accepted, waiting, early):
            one.close()
    assert unix[listening].pending == (client_ino,)
    assert unix[inodes[0]].peer == inodes[1]
    assert mirrored(list(tcp.values()))[inodes[2]] == inodes[3]
    assert tcp[inodes[3]].queues[0] == 100
    assert tcp[inodes[2]].tcp_info()["rtt_us"] > 0
    assert not channels.cut


def test_too_many_sockets_are_cut() -> None:
    sockets = [socket.socketpair() for _ in range(3)]
    channels = Channels(None, 2)
    try:
        assert len(channels.unix()) == 2
    finally:
        channels.close()
        for pair in sockets:
            for one in pair:
                one.close()
    assert channels.cut
