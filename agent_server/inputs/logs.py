"""Open logs: from the paths that parameters name, or from a recording of what they state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from whystall.agent_server.inputs.recordings import open_source
from whystall.tools.collect.log_file import recording_of_log
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.registry import Tool
from whystall.tools.crashes.read import files_below, name_of, read_logs
from whystall.tools.files.input import DAMAGED
from whystall.tools.recording.store import Recording

_MOST_LOGS = 64


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


def driver_logs(named: Sequence[str]) -> Iterator[tuple[Path, Recording]]:
    """Yield those of the first 64 files at and below `named` in which the driver of a GPU or switch wrote messages.

    What cannot be read is left out: reading the same files for crashes reports it.
    """
    for path in islice(files_below(named), _MOST_LOGS):
        try:
            recording = recording_of_log(path)
        except (OSError, ToolError, *DAMAGED):
            continue
        if recording.table("device_log.events").height:
            yield path, recording
