"""Trials of direct I/O beside buffered, where they were asked for: once a window is over, into what it recorded."""

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
"""Collectors that no engine of a window serves: they join a recording afterwards."""


def check_source(params: Params) -> None:
    """`ToolError` (bad_argument) where `params` ask for trials, and a recording is to be judged."""
    if getattr(params, "calibrate", False):
        message = "calibrate tries the disk of this host, which need not be that of a recording"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "leave it out, or observe on the host in question")


@dataclass(frozen=True)
class Calibration:
    """What is to be tried: what `named` says, or, where that is None, where the files are that a recording knows."""

    named: calibration.Request | None

    @classmethod
    def asked(cls, params: Params) -> Calibration | None:
        """What `params` ask for; None for nothing. `ToolError` (bad_argument) where nothing can be tried there."""
        if not getattr(params, "calibrate", False):
            return None
        directory, operation = getattr(params, "directory", None), getattr(params, "operation", None)
        operations = [operation] if operation else ["read", "write"]
        return cls(calibration.in_directory(directory, operations) if directory else None)

    async def joined(self, recording: Recording, progress: Progress | None) -> Recording:
        """A copy of `recording` that holds the trials too; they take some seconds, and their file is gone then."""
        request = self.named or calibration.for_recording(recording, worth_trying(recording))
        return calibration.joined(recording, await calibration.calibrate(request, progress))
