"""Read a log that somebody shows: crashes, failures of programs and messages of GPUs. Nothing is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from whystall.agent_server.diagnosis.crashes import crash_diagnosis
from whystall.agent_server.diagnosis.known_fixes import known_in_logs
from whystall.agent_server.inputs.logs import read_all
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Diagnosis
from whystall.tools.collect.device_log import has_marks
from whystall.tools.crashes.read import marks_of_crashes
from whystall.tools.host.crash_analyse import tool as crash_analyse
from whystall.tools.host.gpu_health import tool as gpu_health
from whystall.tools.recording.judging import judge

if TYPE_CHECKING:
    from whystall.agent_server.stores import Stores
    from whystall.tools.host.crash_analyse.tool import Data
    from whystall.tools.host.gpu_health.data import MessageRow


@dataclass(frozen=True)
class LogReading:
    """What a log states. `crashes`: of the kernel and of programs; `messages`: Xid and SXid, the most severe first;
    `diagnosis`: not stored, with similar incidents and known defects.
    """

    crashes: Data
    messages: Sequence[MessageRow]
    diagnosis: Diagnosis


def may_be_log(text: str) -> bool:
    """Return whether `text` has a mark by which `read_log` finds anything; quick."""
    return has_marks(text.encode("utf-8", "replace")) or any(mark in text for mark in marks_of_crashes())


def read_log(path: Path, kb: Stores) -> LogReading | None:
    """Return what the log `path` states; None without a crash, a failure or a message of a GPU. Blocking.

    Raises `ToolError`: io_error, bad_trace; database.
    """
    logs = read_all([str(path)])
    crashed = judge(crash_analyse.TOOL, logs.crashes, crash_analyse.Params())
    devices = [judge(gpu_health.TOOL, one, gpu_health.Params(kernel_log=str(path))) for one in logs.devices]
    data, rows = crashed.data, [row for one in devices if one.data is not None for row in one.data.messages]
    if data is None or not (data.crashes or data.failures or rows):
        return None
    found = crash_diagnosis(load_causes(), crashed, path.name, "", devices)
    found = known_in_logs(found, logs)
    return LogReading(data, rows, found.model_copy(update={"matches": list(kb.match(found))}))
