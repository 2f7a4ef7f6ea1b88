"""Which PIDs the threads of containers have inside, for profiles that were written in there. Standard library only."""

from __future__ import annotations

import json
import os
from pathlib import Path

from whystall.tools.contract.text import clean

Row = dict[str, str]
_FIELDS = {b"NSpid": "NSpid", b"Name": "name", b"Tgid": "Tgid", b"PPid": "PPid"}


class NamespacePids:
    """Threads of other PID namespaces than ours, gathered by `look` as often as one likes: threads come and go.

    `rows`: by the PID the host (strictly: our own namespace) knows, what the status file says: ``NSpid`` (inside the
    innermost namespace), ``name``, ``Tgid``, ``PPid``. A number that was used again keeps its first thread.
    """

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self._known: set[str] = set()

    def look(self) -> None:
        """Take in the threads that are new since the last look."""
        threads = {thread: pid for pid in _numbers("/proc") for thread in _numbers(f"/proc/{pid}/task")}
        for thread in threads.keys() - self._known:
            row = _row(Path("/proc", threads[thread], "task", thread, "status"))
            if row is not None:
                self.rows[thread] = row
        self._known = set(threads)

    def text(self) -> str:
        """`rows` as a JSON object."""
        return json.dumps(dict(sorted(self.rows.items(), key=lambda item: int(item[0]))), indent=1) + "\n"


def _numbers(directory: str) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if name.isdigit()]
    except OSError:
        return []  # the process ended while we looked


def _row(status: Path) -> Row | None:
    """None for a thread of our own namespace, and for one that is gone."""
    row: Row = {}
    try:
        for line in status.read_bytes().splitlines():
            key, _, value = line.partition(b":")
            if key in _FIELDS:
                row[_FIELDS[key]] = clean(value.strip().replace(b"\t", b" "))
    except OSError:
        return None
    numbers = row.get("NSpid", "").split()
    return {**row, "NSpid": numbers[-1]} if len(numbers) > 1 else None
