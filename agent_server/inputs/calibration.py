"""Run the requested trials of direct I/O after a window, and join them to its recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from whystall.tools.collect import calibration
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.host.hybrid_io_advise.tool import worth_trying
from whystall.tools.recording.store import Recording
from whystall.tools.recording.window import Progress

if TYPE_CHECKING:
    from whystall.tools.contract.params import Params

JOINED = frozenset({"profile", calibration.NAME})
"""Collectors that no engine serves: they are joined to a recording after its window."""


def check_source(params: Params) -> None:
    """Raise `ToolError` (bad_argument) if `params` request trials: a recording may be of another host's disk."""
    if getattr(params, "calibrate", False):
        message = "calibrate tries the disk of this host, which need not be that of a recording"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "leave it out, or observe on the host in question")


@dataclass(frozen=True)
class Calibration:
    """A request for trials: as in `named`, or, if None, in the directories of a recording's files."""

    named: calibration.Request | None

    @classmethod
    def asked(cls, params: Params) -> Calibration | None:
        """Return the trials that `params` request; None for none. Raises `ToolError` (bad_argument)."""
        if not getattr(params, "calibrate", False):
            return None
        directory, operation = getattr(params, "directory", None), getattr(params, "operation", None)
        operations = [operation] if operation else ["read", "write"]
        return cls(calibration.in_directory(directory, operations) if directory else None)

    async def joined(self, recording: Recording, progress: Progress | None) -> Recording:
        """Run the trials (some seconds, in a temporary file) and return a copy of `recording` with them."""
        request = self.named or calibration.for_recording(recording, worth_trying(recording))
        return calibration.joined(recording, await calibration.calibrate(request, progress))
