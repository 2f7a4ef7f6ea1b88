"""Find the processes that hold sockets, pipes, FIFOs and eventfds open, or serve FUSE file systems."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from whystall.tools.collect.objects_fuse import DEVICE, served_connection
from whystall.tools.collect.objects_proc import Proc
from whystall.tools.collect.objects_threads import EVENTFD, ThreadReader
from whystall.tools.contract.text import clean_path

_PREFIXES = (b"socket:[", b"pipe:[", EVENTFD)
_MOST_EVENTFDS = 1024


class Holder(NamedTuple):
    """A process and its descriptor of an object."""

    pid: int
    fd: int


class Holders:
    """The holders of objects among the processes scanned so far, by the name in ``objects.threads``. `paths`: the FIFOs
    to look for, since they are named like files.
    """

    def __init__(self, proc: Proc, threads: ThreadReader) -> None:
        self.paths: set[str] = set()
        self.left = 0
        self._proc = proc
        self._threads = threads
        self._held: dict[str, list[Holder]] = {}
        self._scanned: set[int] = set()
        self._eventfds = 0

    def of(self, name: str) -> list[Holder]:
        """Return the holders of an object, in the order in which processes were scanned."""
        return self._held.get(name, [])

    def scan(self, pids: Iterable[int], over: Callable[[], bool]) -> None:
        """Read the descriptors of processes not scanned yet, until the time is used up."""
        for pid in pids:
            if pid in self._scanned:
                continue
            if over():
                self.left += 1
                continue
            self._scanned.add(pid)
            for number, link in self._proc.descriptors(pid):
                if name := self._name(pid, number, link):
                    self._held.setdefault(name, []).append(Holder(pid, number))

    def _name(self, pid: int, number: int, link: bytes) -> str:
        if link == EVENTFD:
            self._eventfds += 1
            return self._threads.eventfd(pid, number) if self._eventfds <= _MOST_EVENTFDS else ""
        if link == DEVICE:
            return served_connection(self._proc.read(pid, f"fdinfo/{number}"))
        if link.startswith(_PREFIXES):
            return clean_path(link)
        path = clean_path(link) if self.paths and link.startswith(b"/") else ""
        return path if path in self.paths else ""
