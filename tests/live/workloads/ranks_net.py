"""A network of namespaces, one per rank, joined by a bridge; some ranks' wires are slow in both directions.

Nothing to clean up: the namespaces live only as long as file descriptors and processes hold them, and with them go
their interfaces.  Needs root, and `ip` and `tc` of iproute2.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Collection
from types import TracebackType

INTERFACE = "eth0"
_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def available() -> bool:
    """Whether such a network can be made here."""
    return os.geteuid() == 0 and all(shutil.which(program) for program in ("ip", "tc"))


class Network:
    """Namespaces for `count` ranks; a rank's process calls `enter`. `slow` ones get `megabit` per second each way.

    The maker stands in the bridge's namespace until the context is left.
    """

    def __init__(self, count: int, slow: Collection[int], megabit: float) -> None:
        self._count, self._slow, self._megabit = count, slow, megabit
        self._spaces: list[int] = []

    def enter(self, rank: int) -> None:
        """Move the calling process (of one thread) to the rank's namespace; its interface is `INTERFACE`."""
        _call("setns", self._spaces[rank], _NEWNET)

    def __enter__(self) -> Network:
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            self._build()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _build(self) -> None:
        for _ in range(self._count):
            _call("unshare", _NEWNET)
            self._spaces.append(os.open("/proc/self/ns/net", os.O_RDONLY))
        _call("unshare", _NEWNET)
        hub = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            self._ip("link add hub type bridge", "link set hub up")
            for rank, space in enumerate(self._spaces):
                wire = f"wire{rank}"
                self._ip(
                    f"link add {wire} type veth peer name {INTERFACE} netns /proc/self/fd/{space}",
                    f"link set {wire} master hub up",
                )
                _call("setns", space, _NEWNET)
                self._ip(
                    "link set lo up",
                    f"addr add 10.0.0.{rank + 1}/24 dev {INTERFACE}",
                    f"link set {INTERFACE} up",
                )
                self._shape(rank, INTERFACE)
                _call("setns", hub, _NEWNET)
                self._shape(rank, wire)
        finally:
            os.close(hub)

    def _shape(self, rank: int, interface: str) -> None:
        if rank in self._slow:
            rate = ["rate", f"{self._megabit}mbit", "burst", "64k", "latency", "500ms"]
            subprocess.run(["tc", "qdisc", "add", "dev", interface, "root", "tbf", *rate], check=True)

    def _ip(self, *lines: str) -> None:
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True, pass_fds=self._spaces)

    def _leave(self) -> None:
        _call("setns", self._home, _NEWNET)
        for space in (self._home, *self._spaces):
            os.close(space)
        self._spaces.clear()


def _call(name: str, *arguments: int) -> None:
    """A system call by its name in the C library: `os` has these from Python 3.12 on only."""
    if getattr(_libc, name)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
