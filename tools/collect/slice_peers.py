"""The other end of sockets that threads wait for, read while the wait is recent."""

from __future__ import annotations

import time
from contextlib import suppress

from whystall.tools.collect.sock_diag import Channels

_EVERY_NS = 30_000_000_000  # between two dumps: each reads all sockets of a network namespace
_MOST_SOCKETS = 4096
_MOST_NAMES = 4096


class Peers:
    """Names of sockets by inode: ``tcp 10.0.0.3:29500``. Bounded in cost: at most one dump in 30 s."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._due = 0

    def name(self, pid: int, inode: int, name: str) -> str:
        """Return `name` of a file that process `pid` waited for; of a socket with its peer if that is known."""
        if name != "socket":
            return name
        if inode not in self._names:
            self._read(pid)
        return self._names.get(inode, name)

    def _read(self, pid: int) -> None:
        now = time.monotonic_ns()
        if now < self._due:
            return
        self._due = now + _EVERY_NS
        if len(self._names) > _MOST_NAMES:
            self._names = {}
        with suppress(OSError):  # the process has ended, or sockets cannot be listed: they have no peer then
            channels = Channels(f"/proc/{pid}/ns/net", _MOST_SOCKETS)
            try:
                for protocol in ("tcp", "udp"):
                    for one in channels.inet(protocol):
                        if one.inode and one.remote.port:
                            self._names[one.inode] = f"{protocol} {one.remote}"
            finally:
                channels.close()
