"""The kernel's own count of context switches per thread, to check a tool's result."""

from __future__ import annotations

import os
from pathlib import Path

_OFTEN = 20


class Switches:
    """How often each thread of process `pid` left its CPU between two readings of ``/proc/PID/task/TID/status``::

    voluntary_ctxt_switches:	150
    nonvoluntary_ctxt_switches:	545
    """

    def __init__(self, pid: int, root: Path = Path("/proc")) -> None:
        self._pid, self._root = pid, root
        self._before: dict[int, int] = {}
        self._after: dict[int, int] = {}

    def start(self) -> None:
        """Read the counts at the start of the window."""
        self._before = self._read()

    def stop(self) -> None:
        """Read them again at its end."""
        self._after = self._read()

    @property
    def waiting(self) -> bool:
        """Whether some thread waited during the whole window."""
        return any(self._after[tid] == count for tid, count in self._before.items() if tid in self._after)

    def all_in(self, tids: set[int]) -> bool:
        """Return whether `tids` contains every thread that switched often."""
        if not self._after:
            return False
        return all(tid in tids for tid, count in self._after.items() if count - self._before.get(tid, count) >= _OFTEN)

    def _read(self) -> dict[int, int]:
        try:
            tids = [int(name) for name in os.listdir(self._root / str(self._pid) / "task")]
        except OSError:
            return {}
        found = {}
        for tid in tids:
            fields = _status(self._root / str(self._pid) / "task" / str(tid))
            try:
                found[tid] = int(fields["voluntary_ctxt_switches"]) + int(fields["nonvoluntary_ctxt_switches"])
            except (KeyError, ValueError):
                continue  # exited
        return found


def process_of(tid: int, root: Path = Path("/proc")) -> int:
    """Return the process of thread `tid`; -1 if it has exited."""
    try:
        return int(_status(root / str(tid))["Tgid"])
    except (KeyError, ValueError):
        return -1


def _status(directory: Path) -> dict[str, str]:
    try:
        text = (directory / "status").read_text(errors="replace")
    except OSError:
        return {}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
