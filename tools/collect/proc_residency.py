"""The `residency` collector: the cached part of the files that a target has open, at the start and at the end."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable

from whystall.tools.collect.proc_files import Files, OpenFile
from whystall.tools.collect.residency import Residency, residency
from whystall.tools.collect.tables import RESIDENCY, filled
from whystall.tools.node.mounts import REMOTE
from whystall.tools.recording.collector import Capture

_MOST_FILES = 1024
_MOST_DESCRIPTORS = 8192
# Of one sample. cachestat walks a file's cached pages: about 1 ms per GiB of small folios.
_BUDGET_NS = 250_000_000
Measure = Callable[[int, int, str], Residency]


class OpenFiles:
    """Samples the open files of processes. `measure`: as `residency`."""

    def __init__(
        self, root: str = "/proc", clock: Callable[[], int] = time.monotonic_ns, measure: Measure = residency
    ) -> None:
        self._root = root
        self._clock = clock
        self._measure = measure
        self._files = Files(root)
        self._rows: list[tuple[int, ...]] = []
        self._denied: set[int] = set()
        self._left = 0
        self._proven = False

    def sample(self, pids: Iterable[int]) -> None:
        """Add a row per open file and process. Files of network file systems are left out: opening one may block."""
        now = self._clock()
        self._proven = self._proven or self._prove()
        known: dict[int, tuple[int, Residency] | None] = {}
        for pid in pids:
            done: set[int] = set()
            for fd in self._descriptors(pid):
                if len(known) >= _MOST_FILES or self._clock() - now > _BUDGET_NS:
                    self._left += 1
                    continue
                file = self._files.resolve(pid, fd)
                if file is None or file.key in done:
                    continue
                done.add(file.key)
                if file.key not in known:
                    known[file.key] = self._residency_of(pid, fd, file)
                found = known[file.key]
                if found is not None:
                    size, pages = found
                    self._rows.append((now, pid, file.key, size, *pages))

    def read(self) -> Capture:
        """Return the capture."""
        not_seen = []
        if self._denied:
            not_seen.append(("not_permitted", f"cached pages of {len(self._denied)} files"))
        if self._left:
            not_seen.append(("residency_cut", str(self._left)))
        return Capture(
            tables=filled(RESIDENCY, open_files=self._rows, files=self._files.rows),
            hooks=["cachestat"],
            seen=len(self._rows),
            kept=len(self._rows),
            lost=0,
            proven=self._proven,
            not_seen=not_seen,
        )

    def _prove(self) -> bool:
        """Return whether a page that was just read is reported as cached."""
        try:
            with open(__file__, "rb") as file:
                os.pread(file.fileno(), 1, 0)
                kind = self._files.resolve(os.getpid(), file.fileno())
                fstype = self._files.fstype(kind.key) if kind is not None else ""
                return self._measure(file.fileno(), os.fstat(file.fileno()).st_size, fstype).cached > 0
        except OSError:
            return False

    def _descriptors(self, pid: int) -> list[int]:
        try:
            names = os.listdir(f"{self._root}/{pid}/fd")
        except OSError:
            return []  # exited, or no permission
        found = sorted(int(name) for name in names)
        self._left += max(0, len(found) - _MOST_DESCRIPTORS)
        return found[:_MOST_DESCRIPTORS]

    def _residency_of(self, pid: int, fd: int, file: OpenFile) -> tuple[int, Residency] | None:
        fstype = self._files.fstype(file.key)
        if fstype.startswith(REMOTE):
            return None
        try:
            # a file description of our own, so that the position of theirs does not change
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
            descriptor = os.open(f"{self._root}/{pid}/fd/{fd}", flags)
        except OSError:
            self._denied.add(file.key)
            return None
        try:
            size = os.fstat(descriptor).st_size
            return size, self._measure(descriptor, size, fstype)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EACCES):
                self._denied.add(file.key)
            return None  # a kind of file without such pages
        finally:
            os.close(descriptor)
