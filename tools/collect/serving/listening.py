"""Find the ports on which a process serves metrics, without contacting any.

A port counts if the process itself listens on it, at loopback or at all addresses, in the network namespace of this
process, and if its command line says that it is one of HTTP: by an option (``--port 8000``), or as the usual port of a
known inference server that the command line names. Others are not asked: an unexpected request may disturb the
rendezvous of a training job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from whystall.tools.collect.serving.catalogue import servers
from whystall.tools.collect.serving.scrape import Endpoint

_MOST_PROCESSES = 64
_MOST_BYTES = 1 << 20
_OPTIONS = re.compile(rb"--?(?:http[-_]|metrics[-_]|prometheus[-_])?port(?:=(\d{1,5}))?|-p")
_INODE = re.compile(r"socket:\[(\d+)\]")
_LISTEN = "0A"
_USUAL_PATH = "/metrics"
# local_address of /proc/PID/net/tcp and tcp6: in the byte order of the host, here little endian
_LOCAL = {
    "0100007F": "127.0.0.1",
    "00000000": "127.0.0.1",
    "00000000000000000000000000000000": "::1",
    "00000000000000000000000001000000": "::1",
    "0000000000000000FFFF00000100007F": "127.0.0.1",
}


def metrics_endpoints(pids: Iterable[int], proc: str = "/proc") -> tuple[list[Endpoint], list[int]]:
    """Return where the processes `pids` may serve metrics, and those that may but cannot be reached: they are in
    another network namespace."""
    found: dict[int, Endpoint] = {}
    apart = []
    for pid in sorted(set(pids))[:_MOST_PROCESSES]:
        try:
            arguments = _arguments(pid, proc)
            named = set(_named_ports(arguments))
            ports = _listening(pid, proc) if named else {}
            same = os.readlink(f"{proc}/{pid}/ns/net") == os.readlink(f"{proc}/self/ns/net")
        except OSError:
            continue
        fitting = sorted(named & ports.keys())
        if fitting and not same:
            apart.append(pid)
            continue
        for port in fitting:
            found.setdefault(port, Endpoint(ports[port], port, _path(arguments), pid))
    return list(found.values()), apart


def _arguments(pid: int, proc: str) -> list[bytes]:
    with open(f"{proc}/{pid}/cmdline", "rb") as file:
        return file.read(_MOST_BYTES).split(b"\0")


def _named_ports(arguments: list[bytes]) -> Iterator[int]:
    for at, argument in enumerate(arguments):
        if one := _OPTIONS.fullmatch(argument):
            text = one[1] or (arguments[at + 1] if at + 1 < len(arguments) else b"")
            if text.isdigit() and 0 < int(text[:6]) < 1 << 16:
                yield int(text)
    line = b" ".join(arguments)
    for about in servers().values():
        if any(word.encode() in line for word in about.processes):
            yield from about.ports


def _path(arguments: list[bytes]) -> str:
    """Return the path of the metrics of the known server that the command line names, else the usual one."""
    line = b" ".join(arguments)
    paths = (about.path for about in servers().values() if any(word.encode() in line for word in about.processes))
    return next((path for path in paths if path != _USUAL_PATH), _USUAL_PATH)


def _listening(pid: int, proc: str) -> dict[int, str]:
    """Return the ports that `pid` listens on, each with the loopback address at which it answers."""
    inodes = set()
    for name in os.listdir(f"{proc}/{pid}/fd"):
        try:
            target = os.readlink(f"{proc}/{pid}/fd/{name}")
        except OSError:
            continue
        if one := _INODE.fullmatch(target):
            inodes.add(one[1])
    found: dict[int, str] = {}
    for table in ("tcp", "tcp6"):
        try:
            with open(f"{proc}/{pid}/net/{table}", encoding="ascii", errors="replace") as file:
                lines = file.readlines(_MOST_BYTES)[1:]
        except OSError:
            continue
        for line in lines:
            # 0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 21345 1 ...
            fields = line.split()
            if len(fields) < 10 or fields[3] != _LISTEN or fields[9] not in inodes:
                continue
            address, _, port = fields[1].rpartition(":")
            if address in _LOCAL:
                found.setdefault(int(port, 16), _LOCAL[address])
    return found
