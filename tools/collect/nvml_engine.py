"""The ``procfs`` engine of the collector ``gpu_state``: counters of NVIDIA GPUs, by the library nvidia-ml-py."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from typing import Any

from whystall.tools.collect.nvml import Nvml
from whystall.tools.collect.options import GpuStateOptions
from whystall.tools.recording.collector import Capture, Engine, Options
from whystall.tools.recording.target import Target

_LIBRARY = "pynvml"
_DRIVER = ("/proc/driver/nvidia/version", "/dev/nvidiactl")
_OTHER_DRIVERS = ("/dev/kfd", "/dev/davinci_manager", "/dev/accel")
"""Of AMD's GPUs, of Ascend, and of the kernel's subsystem for accelerators."""


class NvmlEngine(Engine):
    """See the module."""

    name = "procfs"
    serves = frozenset({"gpu_state"})
    period_s = 1.0

    def __init__(self) -> None:
        self._nvml: Nvml | None = None
        self._stopped_ns = 0

    def unavailable(self) -> str | None:
        """Return that there is no driver of NVIDIA, or no library to ask it."""
        if not any(os.path.exists(path) for path in _DRIVER):
            return "no driver of NVIDIA is loaded on this host"
        if library() is None:
            return "the library nvidia-ml-py is not installed (`pip install 'whystall[nvml]'`)"
        return None

    def load(self, wanted: Mapping[str, Options], target: Target) -> None:
        """Initialise NVML and take the first reading."""
        self._nvml = Nvml(library(), GpuStateOptions.of(wanted, "gpu_state").period_ns)
        self._nvml.start()

    def stop(self) -> int:
        """Take the last reading."""
        if not self._stopped_ns:
            if self._nvml is not None:
                self._nvml.stop()
            self._stopped_ns = time.monotonic_ns()
        return self._stopped_ns

    def read(self) -> dict[str, Capture]:
        """Return the capture."""
        nvml, self._nvml = self._nvml, None
        return {"gpu_state": nvml.read()} if nvml is not None else {}

    def close(self) -> None:
        """End the thread; idempotent."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            nvml.stop()


def accelerators_here() -> bool:
    """Return whether a driver of accelerators is loaded on this host, of any vendor."""
    return any(os.path.exists(path) for path in (*_DRIVER, *_OTHER_DRIVERS))


def library() -> Any | None:
    """Return the module pynvml; None if it is not installed."""
    try:
        return importlib.import_module(_LIBRARY)
    except ImportError:
        return None
