"""Read the state of NVIDIA GPUs by NVML, through the library nvidia-ml-py (pynvml); the collector `gpu_state`.

A call may block as long as a GPU that is lost does not answer. All calls are made in a thread of their own, which the
window does not wait for longer than `ANSWER_S`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from whystall.tools.collect.tables import GPU_STATE, filled
from whystall.tools.contract.text import clean
from whystall.tools.node.xid_log import address
from whystall.tools.recording.collector import Capture
from whystall.tools.recording.target import comm_of

ANSWER_S = 5.0
_UNKNOWN = -1
_MOST_GPUS = 64
_MOST_LINKS = 18
_MOST_READINGS = 4096
# Constants of nvml.h, the same in every version.
_SM_CLOCK, _GPU_SENSOR, _SLOWDOWN = 1, 0, 1
_CORRECTED, _UNCORRECTED, _VOLATILE, _AGGREGATE = 0, 1, 0, 1
_RECOVERY_FIELD = 230
_REPLAY, _RECOVERED, _CRC_FLIT, _CRC_DATA = 0, 1, 2, 3
_NOT_SUPPORTED = frozenset({2, 3, 13, 21})
"""NVML_ERROR_INVALID_ARGUMENT (a link that this GPU does not have), NOT_SUPPORTED, FUNCTION_NOT_FOUND, NO_DATA."""


class Nvml:
    """Reads in a thread from `start` until `stop`. `library`: the module pynvml.

    `refused`: why there is nothing to read, empty if there is.
    """

    def __init__(
        self, library: Any, period_ns: int, clock: Callable[[], int] = time.monotonic_ns, answer_s: float = ANSWER_S
    ) -> None:
        self._library, self._clock = library, clock
        self._period_s, self._answer_s = max(period_ns, 100_000_000) / 1e9, answer_s
        self._rows: dict[str, list[tuple[object, ...]]] = {name: [] for name in GPU_STATE}
        self._failures: Counter[tuple[str, str, str]] = Counter()
        self._gpus: list[tuple[str, Any]] = []
        self._begun, self._end = threading.Event(), threading.Event()
        self._calling = ""
        self.refused = ""
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)

    def start(self) -> None:
        """Begin, and wait for the first reading."""
        self._thread.start()
        self._begun.wait(self._answer_s)

    def stop(self) -> None:
        """Take the last reading, and end. A call that does not return is left behind."""
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join(self._answer_s)

    def read(self) -> Capture:
        """Return the capture; what could not be read is a blind spot."""
        self.stop()
        hung = self._thread.is_alive()
        rows = {name: list(found) for name, found in self._rows.items()}
        rows["failures"] = [(*what, count) for what, count in sorted(self._failures.copy().items())]
        tables = filled(GPU_STATE, **rows)
        spots = []
        if hung:
            spots.append(("gpus_unread", f"{self._calling} has not returned for {self._answer_s:.0f} s"))
        if self.refused:
            spots.append(("no_gpus", self.refused))
        if self._failures:
            names = sorted({f"{device} {call}: {error}" for device, call, error in self._failures})
            spots.append(("gpus_unread", "; ".join(names[:4])))
        readings = tables["readings"].height
        return Capture(
            tables=tables,
            hooks=["NVML"],
            seen=readings,
            kept=readings,
            lost=0,
            proven=tables["gpus"].height > 0 and not hung,
            not_seen=spots,
            events=frozenset(),
        )

    def _run(self) -> None:
        try:
            if self._init():
                self._read_gpus(first=True)
                self._begun.set()
                while not self._end.wait(self._period_s):
                    self._read_gpus()
                self._read_gpus(last=True)
        finally:
            self._begun.set()
            self._call("", "nvmlShutdown")

    def _init(self) -> bool:
        self._calling = "nvmlInit"
        try:
            self._library.nvmlInit()
        except (self._library.NVMLError, OSError) as error:
            self.refused = clean(str(error))
            return False
        count = self._call("", "nvmlDeviceGetCount") or 0
        for number in range(min(int(count), _MOST_GPUS)):
            handle = self._call(str(number), "nvmlDeviceGetHandleByIndex", number)
            info = self._call(str(number), "nvmlDeviceGetPciInfo", handle) if handle is not None else None
            if info is not None:
                self._gpus.append((pci_address(info.busId), handle))
        if not count:
            self.refused = "NVML finds none"
        return bool(count)

    def _read_gpus(self, first: bool = False, last: bool = False) -> None:
        for device, gpu in self._gpus:
            if len(self._rows["readings"]) < _MOST_READINGS or last:
                self._read(device, gpu)
            if first or last:
                self._read_links(device, gpu)
        if last:
            for number, (device, gpu) in enumerate(self._gpus):
                self._rows["gpus"].append(self._state(number, device, gpu))
                self._read_processes(device, gpu)

    def _read(self, device: str, gpu: Any) -> None:
        use = self._call(device, "nvmlDeviceGetUtilizationRates", gpu)
        memory = self._call(device, "nvmlDeviceGetMemoryInfo", gpu)
        reasons = self._number(device, "nvmlDeviceGetCurrentClocksEventReasons", gpu)
        if reasons == _UNKNOWN:  # before driver 535
            reasons = self._number(device, "nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
        self._rows["readings"].append(
            (
                self._clock(),
                device,
                self._number(device, "nvmlDeviceGetClockInfo", gpu, _SM_CLOCK),
                reasons,
                self._number(device, "nvmlDeviceGetTemperature", gpu, _GPU_SENSOR),
                self._number(device, "nvmlDeviceGetPowerUsage", gpu),
                _whole(getattr(use, "gpu", None)),
                _whole(getattr(memory, "used", None)),
                self._number(device, "nvmlDeviceGetCurrPcieLinkGeneration", gpu),
                self._number(device, "nvmlDeviceGetCurrPcieLinkWidth", gpu),
                self._number(device, "nvmlDeviceGetPcieReplayCounter", gpu),
            )
        )

    def _state(self, number: int, device: str, gpu: Any) -> tuple[object, ...]:
        rows = self._call(device, "nvmlDeviceGetRemappedRows", gpu)
        remapped = (
            [_whole(one) for one in rows] if isinstance(rows, (tuple, list)) and len(rows) == 4 else [_UNKNOWN] * 4
        )
        memory = self._call(device, "nvmlDeviceGetMemoryInfo", gpu)
        errors = [
            self._number(device, "nvmlDeviceGetTotalEccErrors", gpu, kind, span)
            for span in (_VOLATILE, _AGGREGATE)
            for kind in (_CORRECTED, _UNCORRECTED)
        ]
        return (
            number,
            device,
            _text(self._call(device, "nvmlDeviceGetUUID", gpu)),
            _text(self._call(device, "nvmlDeviceGetName", gpu)),
            self._number(device, "nvmlDeviceGetMaxClockInfo", gpu, _SM_CLOCK),
            self._number(device, "nvmlDeviceGetEnforcedPowerLimit", gpu),
            self._number(device, "nvmlDeviceGetTemperatureThreshold", gpu, _SLOWDOWN),
            self._number(device, "nvmlDeviceGetMaxPcieLinkGeneration", gpu),
            self._number(device, "nvmlDeviceGetMaxPcieLinkWidth", gpu),
            *errors,
            *remapped,
            self._recovery(device, gpu),
            _whole(getattr(memory, "total", None)),
        )

    def _recovery(self, device: str, gpu: Any) -> int:
        fields = self._call(device, "nvmlDeviceGetFieldValues", gpu, [_RECOVERY_FIELD])
        try:
            field = fields[0]
            return _whole(field.value.uiVal) if field.nvmlReturn == 0 else _UNKNOWN
        except (TypeError, IndexError, AttributeError):
            return _UNKNOWN

    def _read_links(self, device: str, gpu: Any) -> None:
        for link in range(_MOST_LINKS):
            state = self._number(device, "nvmlDeviceGetNvLinkState", gpu, link)
            if state == _UNKNOWN:
                continue
            counts = [
                self._number(device, "nvmlDeviceGetNvLinkErrorCounter", gpu, link, counter)
                for counter in (_REPLAY, _RECOVERED, _CRC_FLIT, _CRC_DATA)
            ]
            self._rows["links"].append((self._clock(), device, link, state, *counts))

    def _read_processes(self, device: str, gpu: Any) -> None:
        for process in self._call(device, "nvmlDeviceGetComputeRunningProcesses", gpu) or ():
            pid, used = _whole(getattr(process, "pid", None)), _whole(getattr(process, "usedGpuMemory", None))
            if pid > 0:
                self._rows["processes"].append((device, pid, clean(comm_of(pid)), used))

    def _number(self, device: str, name: str, *arguments: Any) -> int:
        return _whole(self._call(device, name, *arguments))

    def _call(self, device: str, name: str, *arguments: Any) -> Any:
        """Return the answer of an NVML function; None if this GPU, driver or library has none, or it fails."""
        function = getattr(self._library, name, None)
        if function is None:
            return None
        self._calling = f"{name} of {device}" if device else name
        try:
            return function(*arguments)
        except self._library.NVMLError as error:
            if getattr(error, "value", None) not in _NOT_SUPPORTED:
                self._failures[device, name, clean(str(error))] += 1
        except (OSError, ValueError, TypeError) as error:
            self._failures[device, name, clean(type(error).__name__)] += 1
        return None


def _whole(value: object) -> int:
    """Return an answer as a number; unknown if it is none, or NVML's mark for a value that is not available."""
    number = value if isinstance(value, int) else _UNKNOWN
    return number if 0 <= number < 1 << 63 else _UNKNOWN


def _text(value: object) -> str:
    return clean(value) if isinstance(value, (str, bytes)) else ""


def pci_address(bus_id: object) -> str:
    """Return a PCI address of NVML (``00000000:1B:00.0``) as sysfs writes it."""
    text = _text(bus_id)
    try:
        return address(text)
    except ValueError:
        return text
