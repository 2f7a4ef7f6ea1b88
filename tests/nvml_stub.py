"""NVML at the interface of the library nvidia-ml-py (pynvml), for hosts without a GPU.

Functions, their results and errors are those of pynvml 13.615; what a test does not set is not supported, as by a GPU
without that sensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

NOT_SUPPORTED, GPU_IS_LOST, DRIVER_NOT_LOADED = 3, 15, 9
_TEXTS = {NOT_SUPPORTED: "Not Supported", GPU_IS_LOST: "GPU is lost", DRIVER_NOT_LOADED: "Driver Not Loaded"}


class NVMLError(Exception):
    """As pynvml.NVMLError: `value` is the code."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return _TEXTS.get(self.value, "Unknown Error")


class Library:
    """The module pynvml with some GPUs, each a mapping of function name to answer: a value, an error code as
    `NVMLError`, or a function of the arguments after the handle."""

    NVMLError = NVMLError

    def __init__(self, *gpus: Mapping[str, Any], refused: int = 0) -> None:
        self._gpus, self._refused = gpus, refused
        self.shut = False

    def nvmlInit(self) -> None:
        if self._refused:
            raise NVMLError(self._refused)

    def nvmlShutdown(self) -> None:
        self.shut = True

    def nvmlDeviceGetCount(self) -> int:
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Mapping[str, Any]:
        return self._gpus[index]

    def nvmlDeviceGetPciInfo(self, gpu: Mapping[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(busId=gpu["busId"])

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)

        def call(gpu: Mapping[str, Any], *arguments: Any) -> Any:
            answer = gpu.get(name, NVMLError(NOT_SUPPORTED))
            if isinstance(answer, NVMLError):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return call


def gpu(bus: str = "00000000:3B:00.0", **changed: Any) -> dict[str, Any]:
    """Return a healthy H100 at work, with some answers changed."""
    known: dict[str, Any] = {
        "busId": bus,
        "nvmlDeviceGetUUID": "GPU-2a3c9c1e-1111-2222-3333-444455556666",
        "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=40),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80 << 30, used=60 << 30, free=20 << 30),
        "nvmlDeviceGetClockInfo": 1950,
        "nvmlDeviceGetMaxClockInfo": 1980,
        "nvmlDeviceGetCurrentClocksEventReasons": 0,
        "nvmlDeviceGetTemperature": 61,
        "nvmlDeviceGetTemperatureThreshold": 89,
        "nvmlDeviceGetPowerUsage": 640_000,
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetCurrPcieLinkGeneration": 5,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetPcieReplayCounter": 0,
        "nvmlDeviceGetTotalEccErrors": 0,
        "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
        "nvmlDeviceGetFieldValues": [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=0))],
        "nvmlDeviceGetNvLinkState": lambda link: 1 if link < 4 else _raise(NVMLError(2)),
        "nvmlDeviceGetNvLinkErrorCounter": 0,
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=1, usedGpuMemory=60 << 30)],
    }
    return known | changed


def _raise(error: Exception) -> Any:
    raise error
