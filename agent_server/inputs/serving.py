"""Saved metrics of inference servers, opened as a recording."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.tools.recording.store import Recording


def open_metrics(files: Sequence[str], source: Path | None) -> Recording:
    """Return the metrics in `files` as a recording.

    Raises `ToolError`: bad_argument if a recording `source` is given too; what `recording_of_files` raises.
    """
    from whystall.tools.collect.serving.metric_files import recording_of_files

    if source is not None:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "metrics and a recording exclude each other", "give one of them")
    return recording_of_files([Path(path) for path in files])
