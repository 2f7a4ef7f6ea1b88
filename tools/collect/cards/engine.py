"""The ``procfs`` engine of the collector ``card_state``: programs of the vendors that are installed on this host."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from whystall.tools.collect.cards.read import COLLECTOR, live
from whystall.tools.contract.commands import program
from whystall.tools.recording.collector import Capture, Engine, Options
from whystall.tools.recording.target import Target

_DRIVERS = {"npu-smi.info": "/dev/davinci_manager", "amd-smi.metric": "/dev/kfd", "rocm-smi": "/dev/kfd"}


class CardsEngine(Engine):
    """Runs the programs once, at the end of the window."""

    name = "procfs"
    serves = frozenset({COLLECTOR})
    period_s = 1.0

    def __init__(self) -> None:
        self._stopped_ns = 0

    def unavailable(self) -> str | None:
        """Return that no driver of these vendors is loaded, or none of their programs installed."""
        return None if programs_here() else "no driver of Ascend or AMD is loaded, or its program is not installed"

    def load(self, wanted: Mapping[str, Options], target: Target) -> None:
        """Nothing is attached."""

    def stop(self) -> int:
        """Return the instant of the end."""
        self._stopped_ns = self._stopped_ns or time.monotonic_ns()
        return self._stopped_ns

    def read(self) -> dict[str, Capture]:
        """Return the capture."""
        return {COLLECTOR: live(programs_here())}

    def close(self) -> None:
        """Nothing is open."""


def programs_here() -> list[str]:
    """Return the programs that are installed and whose driver is loaded; of AMD's two the newer one."""
    found = [name.partition(".")[0] for name, path in _DRIVERS.items() if os.path.exists(path) and program(name)]
    return [name for name in found if name != "rocm-smi" or "amd-smi" not in found]
