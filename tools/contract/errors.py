"""Errors of tools: a code, a one-line message, and a remedy."""

from __future__ import annotations

from enum import Enum

from whystall.tools.contract.text import clean


class ErrorCode(str, Enum):
    """Closed list of failure codes; they are stable and may be matched by programs."""

    BAD_ARGUMENT = "bad_argument"
    NO_SUCH_PROCESS = "no_such_process"
    NO_SUCH_CGROUP = "no_such_cgroup"
    NO_PRIVILEGE = "no_privilege"
    NO_BTF = "no_btf"
    NO_LIBBPF = "no_libbpf"
    NO_ENGINE = "no_engine"
    PROBE_FAILED = "probe_failed"
    BUSY = "busy"
    BAD_RECORDING = "bad_recording"
    MISSING_COLLECTOR = "missing_collector"
    NO_TRACEFS = "no_tracefs"
    BAD_TRACE = "bad_trace"  # a trace or profile that cannot be read
    CLOCK_MISMATCH = "clock_mismatch"  # trace and profile share no clock
    NO_OVERLAP = "no_overlap"  # they share a clock but no time
    NOT_FOUND = "not_found"
    DATABASE = "database"
    DISK_FULL = "disk_full"
    IO_ERROR = "io_error"
    NO_MODEL = "no_model"  # no language model is set up, or its settings cannot be used
    CANCELLED = "cancelled"


class ToolError(Exception):
    """A failure with a stable `code`, a one-line `message` and a `remedy` (what the caller can do)."""

    def __init__(self, code: ErrorCode, message: str, remedy: str) -> None:
        self.code = code
        self.message = clean(message, 500)
        self.remedy = clean(remedy, 500)
        super().__init__(f"{code.value}: {self.message} ({self.remedy})")
