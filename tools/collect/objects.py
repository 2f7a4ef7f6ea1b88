"""The `objects` collector: what threads wait for, and who holds it, at the start and at the end of a window.

Everything is read without stopping a process. A snapshot is bounded in CPU time and in numbers of processes and
threads; what was left out is reported.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from whystall.bpf import process_groups
from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.objects_frozen import Freezers
from whystall.tools.collect.objects_proc import Proc
from whystall.tools.collect.objects_python import Interpreters
from whystall.tools.collect.objects_snapshot import Rows, Snapshot, limit
from whystall.tools.collect.objects_threads import ThreadReader
from whystall.tools.collect.proc_calls import syscall_name
from whystall.tools.collect.python_notes import refusals
from whystall.tools.recording.collector import Capture
from whystall.tools.recording.target import Target, children_of

_FIND_NS = 1_000_000_000  # finding interpreters and process groups before the window: it reads symbol tables


class Objects:
    """Take snapshots of the processes of `target` and their children: call `take_snapshot` at the start and, with
    ``last``, at the end, then `read`."""

    def __init__(self, target: Target, root: str = "/proc", clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._target = target
        self._clock = clock
        self._proc = Proc(root)
        self._interpreters = Interpreters(root)
        self._freezers = Freezers(root)
        self._threads = ThreadReader(self._proc, self._interpreters, self._freezers)
        self._rows = Rows()
        self._proven = False

    def take_snapshot(self, *, last: bool = False) -> None:
        """Read everything once. `last`: also the processes that hold what threads of the target wait for."""
        own = self._own_pids()
        if not last:
            self._proven = self._prove()
            over = limit(_FIND_NS)
            for pid in own:
                if not over():
                    self._interpreters.runtime(pid, named_only=False)
                    with suppress(OSError):  # it ends
                        process_groups.prepare(pid)
        self._freezers.forget()
        snapshot = Snapshot(self._proc, self._interpreters, self._threads, self._rows, self._clock())
        snapshot.run(own, last=last, everywhere=self._target.everything)

    def raw(self) -> dict[str, Any]:
        """Return what `read` makes its capture of: rows by table, whether it is proven, and blind spots."""
        return {
            "tables": self._rows.tables,
            "proven": self._proven or self._prove(),
            "not_seen": self._blind_spots(),
        }

    def read(self) -> Capture:
        """Return the capture."""
        from whystall.tools.collect.tables import OBJECTS, filled  # large: not needed until now

        tables = filled(OBJECTS, **self._rows.tables)
        rows = sum(frame.height for frame in tables.values())
        return Capture(
            tables=tables,
            hooks=["/proc/PID/task", "sock_diag", "/proc/locks"],
            seen=rows,
            kept=rows,
            lost=0,
            proven=self._proven,
            not_seen=self._blind_spots(),
        )

    def _own_pids(self) -> list[int]:
        """Return the processes of the target, then their descendants without our own process."""
        own = list(self._target.pids)
        return own + [pid for pid in children_of(own) if pid not in own and pid != os.getpid()] if own else []

    def _prove(self) -> bool:
        """Return whether /proc shows the calling thread in the read(2) that it is executing."""
        try:
            call = parse.syscall(self._proc.read(os.getpid(), "syscall", threading.get_native_id()))
        except ValueError:
            return False
        return call is not None and syscall_name(call.nr) in ("read", "pread64")

    def _blind_spots(self) -> list[tuple[str, str]]:
        # without kernel stacks there is still the innermost function (wchan)
        denied = sorted((what, pids) for what, pids in self._proc.denied.items() if what != "stack")
        found = [("not_permitted", f"{what} of {len(pids)} processes") for what, pids in denied]
        found += [("not_permitted", f"sockets ({what}): {why}") for what, why in sorted(self._rows.failed.items())]
        if cut := ", ".join(f"{count} {what}" for what, count in sorted(self._rows.left.items()) if count > 0):
            found.append(("objects_cut", cut))
        if self._interpreters.refused:
            found.append(("python_frames", refusals(self._interpreters.refused)))
        if self._interpreters.unknown_locks:
            found.append(("interpreter_lock", refusals(self._interpreters.unknown_locks)))
        if self._target.everything:
            found.append(("no_target_threads", self._target.describe()))
        return found
