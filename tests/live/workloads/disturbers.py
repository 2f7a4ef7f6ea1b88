#!/usr/bin/env python3
"""Disturb one thread of another process in one known way, until told to stop; log what was really done to it.

``neighbour``   a process that computes without end on the thread's CPU
``migrations``  moves the thread to another CPU every few milliseconds, by its affinity
``quota``       a CPU quota for the thread's whole process
``softirq``     makes the kernel receive packets on the thread's CPU: a loopback of its own (network namespace) is
                steered there (RPS), and each broadcast is delivered to many sockets
``none``        nothing

A line ``disturbing`` says that it has begun, ``did`` at the end what was done.  Everything is undone on leaving; what
is not (after SIGKILL) is a CPU quota's cgroup.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cgroups import Cgroup
from workload import Workload

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
PORT = 9000
_libc = ctypes.CDLL(None, use_errno=True)


def name_thread(name: str) -> None:
    """Give the calling thread a name of at most 15 bytes, as the kernel shows it."""
    _libc.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def checked(result: int) -> None:
    """Raise the OSError of a C library call that returned -1."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def process_of(tid: int) -> int:
    """The process a thread belongs to."""
    status = Path(f"/proc/{tid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in status if line.startswith("Tgid:")))


def child(name: str, cpu: int, action: Callable[[], None], nice: int = 0) -> int:
    """A process that does `action` on a CPU, and dies with us."""
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.sched_setaffinity(0, {cpu})
    name_thread(name)
    os.nice(nice)
    action()
    os._exit(0)


def end(pid: int) -> resource.struct_rusage:
    """Kill a child; what it used."""
    os.kill(pid, signal.SIGKILL)
    return os.wait4(pid, 0)[2]


def burn() -> None:
    """Compute without end."""
    while True:
        pass


class Disturber(ABC):
    """One way to disturb; made from the options, begins with `start`."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    @abstractmethod
    def start(self) -> dict[str, Any]:
        """Begin; returns facts for the log."""

    @abstractmethod
    def stop(self) -> dict[str, Any]:
        """End, undo, and return what was done."""

    def tick(self) -> None:  # noqa: B027 - most have nothing to do
        """What is to be done again and again, every ``--every-ms``."""


class Nothing(Disturber):
    """The healthy case."""

    def start(self) -> dict[str, Any]:
        return {}

    def stop(self) -> dict[str, Any]:
        return {}


class Neighbour(Disturber):
    """Processes with a telling name that never leave the CPU by themselves."""

    def start(self) -> dict[str, Any]:
        self._pids = [
            child(self.options.name, self.options.cpu, burn, self.options.nice) for _ in range(self.options.processes)
        ]
        return {"pids": self._pids, "comm": self.options.name}

    def stop(self) -> dict[str, Any]:
        usage = [end(pid) for pid in self._pids]
        return {
            "cpu_s": sum(one.ru_utime + one.ru_stime for one in usage),
            "preempted": sum(u.ru_nivcsw for u in usage),
        }


class Migrations(Disturber):
    """The thread goes round the allowed CPUs."""

    def start(self) -> dict[str, Any]:
        self._before = os.sched_getaffinity(self.options.victim)
        self._cpus = sorted(os.sched_getaffinity(0))
        self._moves = 0
        if len(self._cpus) < 2:
            raise SystemExit("there is only one CPU to be on")
        return {"cpus": self._cpus}

    def tick(self) -> None:
        self._moves += 1
        with contextlib.suppress(ProcessLookupError):  # it ended before us
            os.sched_setaffinity(self.options.victim, {self._cpus[self._moves % len(self._cpus)]})

    def stop(self) -> dict[str, Any]:
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(self.options.victim, self._before)
        return {"moves": self._moves}


class Quota(Disturber):
    """The process moves into a cgroup with a quota, and back."""

    def start(self) -> dict[str, Any]:
        self._group = Cgroup("cpu")
        pid = process_of(self.options.victim)
        home = next(
            line.split(":", 2)[2]
            for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()
            if not self._group.legacy or "cpu" in line.split(":")[1].split(",")
        )
        self._home = self._group.path.parent / home.lstrip("/") / "cgroup.procs"
        self._group.limit_cpus(self.options.cpus)
        self._group.enroll(pid)
        return {"cgroup": self._group.name}

    def stop(self) -> dict[str, Any]:
        stat = self._group.stat("cpu.stat")
        for pid in (self._group.path / "cgroup.procs").read_text().split():
            self._home.write_text(pid)
        self._group.__exit__(None, None, None)
        return stat


class Softirq(Disturber):
    """Senders on the other CPUs; the packets are received on the thread's."""

    def start(self) -> dict[str, Any]:
        cpu = self.options.cpu
        self._cpus = sorted(os.sched_getaffinity(0) - {cpu})
        if not self._cpus:
            raise SystemExit("there is only one CPU to be on")
        checked(_libc.unshare(CLONE_NEWNET | CLONE_NEWNS))
        checked(_libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
        checked(_libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None))
        Path("/sys/class/net/lo/queues/rx-0/rps_cpus").write_text(f"{1 << cpu:x}")
        self._sockets = [self._receiver() for _ in range(self.options.sockets)]
        self._before = softirq_seconds()
        self._children = [child("udp-sender", cpu, self._send) for cpu in self._cpus]
        return {"sender_pids": self._children}

    def stop(self) -> dict[str, Any]:
        for pid in self._children:
            end(pid)
        spent = [after - before for before, after in zip(self._before, softirq_seconds(), strict=True)]
        return {"softirq_s": spent}

    @staticmethod
    def _receiver() -> socket.socket:
        """A socket that gets every broadcast and never reads it: the kernel's work is what counts."""
        out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        interface = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack_from("16sh", fcntl.ioctl(out, SIOCGIFFLAGS, interface))[1]
        fcntl.ioctl(out, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))
        out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        out.bind(("127.255.255.255", PORT))
        return out

    def _send(self) -> None:
        out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        out.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        out.connect(("127.255.255.255", PORT))
        pause = self.options.every_ms / 1000
        while True:
            for _ in range(self.options.burst):
                out.send(b"x")
            time.sleep(pause)


def softirq_seconds() -> list[float]:
    """What each CPU spent in softirqs, as the kernel accounts it: by ticks, which bursts between them escape."""
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    tick = os.sysconf("SC_CLK_TCK")
    return [int(words[7]) / tick for words in lines if words[0].startswith("cpu") and words[0] != "cpu"]


KINDS: dict[str, type[Disturber]] = {
    "neighbour": Neighbour,
    "migrations": Migrations,
    "quota": Quota,
    "softirq": Softirq,
    "none": Nothing,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--victim", type=int, required=True, help="the thread's number")
    parser.add_argument("--cpu", type=int, required=True, help="the CPU it is pinned to")
    parser.add_argument("--processes", type=int, default=4, help="neighbour: so many (default %(default)s)")
    parser.add_argument("--name", default="greedy-neighbor", help="neighbour: their name (default %(default)s)")
    parser.add_argument("--nice", type=int, default=0, help="neighbour: how nice they are (default %(default)s)")
    parser.add_argument("--every-ms", type=float, default=5.0, help="migrations, softirq: pause between two")
    parser.add_argument("--cpus", type=float, default=0.1, help="quota: so many CPUs (default %(default)s)")
    parser.add_argument("--sockets", type=int, default=200, help="softirq: receivers of every packet")
    parser.add_argument("--burst", type=int, default=300, help="softirq: packets before each pause")
    parser.add_argument("--duration", type=float, default=1e6, help="seconds (default: until stopped)")
    work = Workload(parser)
    disturber = KINDS[work.options.kind](work.options)
    work.start()
    until = time.monotonic() + work.options.duration
    work.emit("disturbing", mono_ns=time.monotonic_ns(), **disturber.start())
    while time.monotonic() < until and not work.stopped.is_set():
        work.pause(work.options.every_ms / 1000)
        disturber.tick()
    work.emit("did", mono_ns=time.monotonic_ns(), **disturber.stop())


if __name__ == "__main__":
    main()
