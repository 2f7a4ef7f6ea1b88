#!/usr/bin/env python3
"""Two processes that have nothing but a network in common, as on two hosts: one asks, and the other saves before it
answers.

Each is a job of its own (SLURM_JOB_ID) in a network namespace. Needs root and iproute2.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time

import ranks_net
from workload import Workload

JOBS = (4242001, 4242002)
ADDRESS = ("10.0.0.2", 7000)
_PR_SET_PDEATHSIG = 1


def save() -> None:
    time.sleep(0.4)


def receive(connection: socket.socket) -> bytes:
    return connection.recv(1)


def asks() -> None:
    with socket.create_connection(ADDRESS) as connection:
        while True:
            connection.sendall(b"?")
            receive(connection)
            time.sleep(0.05)


def answers() -> None:
    with socket.create_server(ADDRESS) as listener:
        print("listens", flush=True)
        connection, _ = listener.accept()
        while connection.recv(1):
            save()
            connection.sendall(b"!")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    work = Workload(parser)
    # the bridge's namespace lives as long as somebody is in it, or has its file open
    with ranks_net.Network(2, (), 0) as network, open("/proc/self/ns/net"):

        def started(rank: int, role: str) -> subprocess.Popen[str]:
            network.enter(rank)
            environment = os.environ | {"SLURM_JOB_ID": str(JOBS[rank])}
            argv = [sys.executable, __file__, role]
            return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True)

        answering = started(1, "answers")
        assert answering.stdout is not None
        answering.stdout.readline()
        work.start(pids=[started(0, "asks").pid, answering.pid])
        signal.pause()


if __name__ == "__main__":
    role = {"asks": asks, "answers": answers}.get(sys.argv[-1])
    if role is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    (role or main)()
