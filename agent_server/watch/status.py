"""The files of the watcher: its status, which `whystall doctor` shows, and its log of stalls.

A full disk stops nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

STATUS, LOG, ERRORS, METRICS = "status.json", "stalls.jsonl", "errors.log", "metrics.prom"
_LOG_BYTES = 4 << 20
_STATUS_BYTES = 4 << 20
_READ_BYTES = 512 << 10  # of the log of stalls, some 500 entries
_SILENT_S = 60.0


class StatusFiles:
    """Writes below `directory`, which exists. Methods return why they failed, empty if they did not."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, status: Mapping[str, Any]) -> str:
        """Replace the status."""
        return self._replace(STATUS, json.dumps(status, separators=(",", ":")))

    def write_metrics(self, text: str) -> str:
        """Replace the file for the textfile collector of Prometheus's node exporter."""
        return self._replace(METRICS, text)

    def _replace(self, name: str, text: str) -> str:
        partial = self._directory / f".{name}"
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(self._directory / name)
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def log(self, entry: Mapping[str, Any]) -> str:
        """Append one line to the log of stalls. The log before it is kept once, at 4 MiB each."""
        path = self._directory / LOG
        try:
            if path.exists() and path.stat().st_size > _LOG_BYTES:
                path.replace(path.with_suffix(".jsonl.1"))
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry, separators=(",", ":")) + "\n")
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def errors(self) -> IO[str] | int:
        """Return a file for what an investigation writes to standard error."""
        path = self._directory / ERRORS
        try:
            return path.open("w" if path.exists() and path.stat().st_size > _LOG_BYTES else "a", encoding="utf-8")
        except OSError:
            return subprocess.DEVNULL


def runs(status: Mapping[str, Any] | None, now: float) -> bool:
    """Return whether the watcher that wrote `status` still runs and writes. `now`: seconds since the epoch. Raises
    KeyError, TypeError or ValueError if another version has written it."""
    if status is None or not status.get("running"):
        return False
    return now - float(status["written"]) <= _SILENT_S and Path(f"/proc/{int(status['pid'])}").exists()


def read_stalls(directory: Path) -> list[dict[str, Any]]:
    """Return the latest entries of the log of stalls below `directory`, the newest first; unreadable lines are left
    out."""
    try:
        with (directory / LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _READ_BYTES))
            lines = file.read(_READ_BYTES).splitlines()
    except OSError:
        return []
    found = []
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except ValueError:  # its start was cut off, or it is being written
            continue
        if isinstance(entry, dict):
            found.append(entry)
    return found


def read_status(directory: Path) -> dict[str, Any] | None:
    """Return the status that a watcher has written below `directory`; None if there is none that can be read."""
    try:
        with (directory / STATUS).open("rb") as file:
            found = json.loads(file.read(_STATUS_BYTES))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
