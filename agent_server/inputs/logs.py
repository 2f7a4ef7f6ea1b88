"""Open logs: from the paths that parameters name, or from a recording of what they state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from whystall.agent_server.inputs.recordings import open_source
from whystall.tools.collect.log_file import LogReader
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.registry import Tool
from whystall.tools.contract.text import clean_path
from whystall.tools.crashes.read import Taker, name_of, read_logs
from whystall.tools.known_fixes.stated import Row, StatedVersions, stated_kernel
from whystall.tools.recording.store import Recording

_MOST_LOGS = 64
"""Most logs whose messages of drivers, and whose versions, are kept."""


@dataclass(frozen=True)
class ReadLogs:
    """What logs state. `crashes`: as a recording; `devices`: a recording per log with messages of a GPU or switch;
    `versions`: rows of ``versions``, with the kernels that crashed."""

    crashes: Recording
    devices: Sequence[Recording] = ()
    versions: Sequence[Row] = ()


@dataclass
class _Takers:
    """Readers of the logs, beside that of crashes."""

    messages: dict[Path, LogReader] = field(default_factory=dict)
    versions: dict[Path, StatedVersions] = field(default_factory=dict)

    def of(self, path: Path) -> Sequence[Taker]:
        """Return new readers for the log `path`; those of logs before it without a message are dropped."""
        self.messages = {before: one for before, one in self.messages.items() if one.has_messages}
        found: list[Taker] = []
        if len(self.messages) < _MOST_LOGS:
            self.messages[path] = LogReader()
            found.append(self.messages[path])
        if len(self.versions) < _MOST_LOGS:
            self.versions[path] = StatedVersions()
            found.append(self.versions[path])
        return found


def read_all(named: Sequence[str]) -> ReadLogs:
    """Return what the files at and below `named` state; each is read once, piece by piece.

    Raises `ToolError` as `read_logs`.
    """
    takers = _Takers()
    crashes = read_logs(list(named), name_of(list(named)), takers.of)
    read = [one.recording(clean_path(str(path))) for path, one in takers.messages.items() if one.has_messages]
    rows = [row for one in takers.versions.values() for row in one.rows]
    devices = [one for one in read if one.table("device_log.events").height]
    return ReadLogs(crashes, devices, list(dict.fromkeys([*rows, *_kernels(crashes)])))


def held_by(recording: Recording) -> ReadLogs:
    """Return what a `recording` of logs holds: also messages of drivers and versions, if it has them."""
    devices = [recording] if recording.has("device_log") else []
    stated = recording.find("versions.versions")
    names = ("component", "version", "where", "pid", "vendor_built")
    rows: list[Row] = [] if stated is None else stated.select(names).rows()
    return ReadLogs(recording, devices, list(dict.fromkeys([*rows, *_kernels(recording)])))


def _kernels(crashes: Recording) -> list[Row]:
    """Return the versions of the kernels whose crashes were reported."""
    releases = crashes.table("crashes.reports")["release"].unique(maintain_order=True).to_list()
    return [row for release in releases if (row := stated_kernel(release)) is not None]


def open_logs(tool: Tool[Any, Any], params: BaseModel, source: Path | None) -> Recording:
    """Return what the logs state for `tool`: those that `params` names in ``log``, or those of a recording, or a file.

    Raises `ToolError`: bad_argument if both or neither are given; what reading raises.
    """
    named: list[str] = list(getattr(params, "log", None) or [])
    if source is not None and named:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "log and a recording exclude each other", "give one of them")
    if source is not None:
        return open_source(source) if (source / "manifest.json").is_file() else read_logs([str(source)], source.name)
    if not named:
        message = f"{tool.name} needs log: files, or directories of them"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "give dmesg, console, journal or job logs")
    return read_logs(named, name_of(named))
