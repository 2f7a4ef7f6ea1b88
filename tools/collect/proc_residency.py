"""The `residency` collector: how much of the files that a target has open is in the page cache, and how it changed."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Sequence

import polars as pl

from whystall.tools.collect.proc_files import Files, OpenFile
from whystall.tools.collect.residency import Residency, residency
from whystall.tools.collect.tables import RESIDENCY
from whystall.tools.node.mounts import REMOTE
from whystall.tools.recording.collector import Capture

_MOST_FILES = 1024
_MOST_DESCRIPTORS = 8192
# Of one look. cachestat walks a file's cached pages: about 1 ms per GiB of small folios.
_BUDGET_NS = 250_000_000
Ask = Callable[[int, int, str], Residency]


class OpenFiles:
    """Looks at the open files of processes. `ask` gives the residency of a descriptor, by size and file system."""

    def __init__(self, root: str = "/proc", clock: Callable[[], int] = time.monotonic_ns, ask: Ask = residency) -> None:
        self._root = root
        self._clock = clock
        self._ask = ask
        self._files = Files(root)
        self._rows: list[tuple[int, ...]] = []
        self._denied: set[int] = set()
        self._left = 0
        self._proven = False

    def look(self, pids: Iterable[int]) -> None:
        """Take a row per file and process that has it open. Files of network file systems are left out: opening one
        may wait for its server."""
        now = self._clock()
        self._proven = self._proven or self._prove()
        known: dict[int, tuple[int, Residency] | None] = {}
        for pid in pids:
            mine: set[int] = set()
            for fd in self._descriptors(pid):
                if len(known) >= _MOST_FILES or self._clock() - now > _BUDGET_NS:
                    self._left += 1
                    continue
                file = self._files.resolve(pid, fd)
                if file is None or file.key in mine:
                    continue
                mine.add(file.key)
                if file.key not in known:
                    known[file.key] = self._measure(pid, fd, file)
                found = known[file.key]
                if found is not None:
                    size, pages = found
                    self._rows.append((now, pid, file.key, size, *pages))

    def finish(self) -> Capture:
        """Everything seen."""
        content: dict[str, Sequence[tuple[object, ...]]] = {"open_files": self._rows, "files": self._files.rows}
        not_seen = []
        if self._denied:
            not_seen.append(("not_permitted", f"cached pages of {len(self._denied)} files"))
        if self._left:
            not_seen.append(("residency_cut", str(self._left)))
        return Capture(
            tables={name: pl.DataFrame(content[name], schema, orient="row") for name, schema in RESIDENCY.items()},
            hooks=["cachestat"],
            seen=len(self._rows),
            kept=len(self._rows),
            lost=0,
            proven=self._proven,
            not_seen=not_seen,
        )

    def _prove(self) -> bool:
        """A page that was read just now is in the cache."""
        try:
            with open(__file__, "rb") as file:
                os.pread(file.fileno(), 1, 0)
                kind = self._files.resolve(os.getpid(), file.fileno())
                fstype = self._files.fstype(kind.key) if kind is not None else ""
                return self._ask(file.fileno(), os.fstat(file.fileno()).st_size, fstype).cached > 0
        except OSError:
            return False

    def _descriptors(self, pid: int) -> list[int]:
        try:
            names = os.listdir(f"{self._root}/{pid}/fd")
        except OSError:
            return []  # exited, or not ours to see
        found = sorted(int(name) for name in names)
        self._left += max(0, len(found) - _MOST_DESCRIPTORS)
        return found[:_MOST_DESCRIPTORS]

    def _measure(self, pid: int, fd: int, file: OpenFile) -> tuple[int, Residency] | None:
        fstype = self._files.fstype(file.key)
        if fstype.startswith(REMOTE):
            return None
        try:
            # our own description: theirs is neither read nor moved
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
            descriptor = os.open(f"{self._root}/{pid}/fd/{fd}", flags)
        except OSError:
            self._denied.add(file.key)
            return None
        try:
            size = os.fstat(descriptor).st_size
            return size, self._ask(descriptor, size, fstype)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EACCES):
                self._denied.add(file.key)
            return None  # a kind of file that has no such pages
        finally:
            os.close(descriptor)
