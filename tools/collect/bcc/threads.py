"""The kernel's own count of switches of a process's threads, to hold a tool's account against."""

from __future__ import annotations

import os
from pathlib import Path

_OFTEN = 20


class Switches:
    """Reads how often each thread of `pid` left its CPU, at the start and at the end."""

    def __init__(self, pid: int, root: Path = Path("/proc")) -> None:
        self._pid, self._root = pid, root
        self._before: dict[int, int] = {}
        self._after: dict[int, int] = {}

    def look(self) -> None:
        """The reading at the start."""
        self._before = self._read()

    def finish(self) -> None:
        """The reading at the end."""
        self._after = self._read()

    @property
    def waiting(self) -> bool:
        """Whether some thread did not run between the readings: it waited all the time."""
        return any(self._after[tid] == count for tid, count in self._before.items() if tid in self._after)

    def all_in(self, told: set[int]) -> bool:
        """Whether every thread that switched often between the readings is among those `told`."""
        if not self._after:
            return False
        return all(tid in told for tid, count in self._after.items() if count - self._before.get(tid, count) >= _OFTEN)

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
    """The process of thread `tid`; -1 where it is gone."""
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
