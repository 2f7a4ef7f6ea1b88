"""Servers that do not accept, and name servers that do not respond."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Generator

from benchmarks.faults.case import PARTS, Case


def full_backlog(case: Case, role: str = "peer") -> Generator[None, None, None]:
    """Serve the port `web`; then stop accepting, with a full backlog, so that connects time out."""
    path = case.install_program(PARTS / "collector.py", "collector.py")
    theirs, ours = os.pipe()
    case.outputs[role] = ours
    case.spawn(role, [sys.executable, str(path), str(case.port("web"))])
    os.close(ours)
    os.read(theirs, 1)
    os.close(theirs)
    yield
    os.kill(case.pids[role], signal.SIGHUP)
    time.sleep(0.5)
    for _ in range(4):
        waiting = socket.socket()
        waiting.setblocking(False)
        waiting.connect_ex(("127.0.0.1", case.port("web")))
        case.keep_open(waiting)


def silent_name_server(case: Case, role: str = "job") -> Generator[None, None, None]:
    """Configure a name server for a process that receives queries and never responds."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.77.0.53", 53))
    case.keep_open(server)
    resolver = case.directory / "resolv.conf"
    resolver.write_text("nameserver 127.77.0.53\n")
    script = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
    case.wrap(role, ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script, str(resolver)])
    yield
