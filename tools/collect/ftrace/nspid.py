"""Map the host's thread ids to those inside containers, for profiles written there. Standard library only."""

from __future__ import annotations

import json
import os
from pathlib import Path

from whystall.tools.contract.text import clean

Row = dict[str, str]
_FIELDS = {b"NSpid": "NSpid", b"Name": "name", b"Tgid": "Tgid", b"PPid": "PPid"}


class NamespacePids:
    """Threads of other PID namespaces than ours; call `update` repeatedly, since threads come and go.

    `rows`: by the PID in our own namespace, fields of its status file: ``NSpid`` (in the innermost namespace),
    ``name``, ``Tgid``, ``PPid``. A reused PID keeps its first thread.
    """

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self._known: set[str] = set()

    def update(self) -> None:
        """Add the threads that are new since the last call."""
        threads = {thread: pid for pid in _numbers("/proc") for thread in _numbers(f"/proc/{pid}/task")}
        for thread in threads.keys() - self._known:
            row = _row(Path("/proc", threads[thread], "task", thread, "status"))
            if row is not None:
                self.rows[thread] = row
        self._known = set(threads)

    def text(self) -> str:
        """Return `rows` as a JSON object."""
        return json.dumps(dict(sorted(self.rows.items(), key=lambda item: int(item[0]))), indent=1) + "\n"


def _numbers(directory: str) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if name.isdigit()]
    except OSError:
        return []  # exited


def _row(status: Path) -> Row | None:
    """Return None for a thread of our own namespace, and for one that has exited."""
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
