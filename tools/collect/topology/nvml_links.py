"""Read by NVML which GPU a number, an address and a process stand for, and which GPUs NVLinks join."""

from __future__ import annotations

from collections import Counter
from typing import Any

from whystall.tools.collect.nvml import Nvml, pci_address

_MOST_LINKS = 18
_UP = 1
_REMOTE_GPU, _REMOTE_SWITCH = 0, 2  # nvmlIntNvLinkDeviceType_t


class NvmlLinks(Nvml):
    """Reads once, in the thread of `Nvml`. `gpus`: number, UUID and model by PCI address; `of_process`: addresses by
    pid; `joined`: NVLinks up between two addresses; `switched`: those of an address to NVSwitches."""

    def __init__(self, library: Any) -> None:
        super().__init__(library, 1_000_000_000)
        self.gpus: dict[str, tuple[int, str, str]] = {}
        self.of_process: dict[int, set[str]] = {}
        self.joined: Counter[tuple[str, str]] = Counter()
        self.switched: Counter[str] = Counter()

    def links(self) -> list[tuple[str, str, int]]:
        """Return pairs of addresses with the number of NVLinks between them, also through NVSwitches."""
        found = [(one, other, count) for (one, other), count in sorted(self.joined.items()) if one < other]
        behind = sorted(self.switched)
        for at, one in enumerate(behind):
            found += [(one, other, min(self.switched[one], self.switched[other])) for other in behind[at + 1 :]]
        return found

    def _read_gpus(self, first: bool = False, last: bool = False) -> None:
        if not last:
            return
        for number, (device, gpu) in enumerate(self._gpus):
            _, _, uuid, model, *_ = self._state(number, device, gpu)
            self.gpus[device] = (number, str(uuid), str(model))
            for process in self._call(device, "nvmlDeviceGetComputeRunningProcesses", gpu) or ():
                if isinstance(pid := getattr(process, "pid", None), int):
                    self.of_process.setdefault(pid, set()).add(device)
            for link in range(_MOST_LINKS):
                if self._number(device, "nvmlDeviceGetNvLinkState", gpu, link) == _UP:
                    self._link(device, gpu, link)

    def _link(self, device: str, gpu: Any, link: int) -> None:
        kind = self._number(device, "nvmlDeviceGetNvLinkRemoteDeviceType", gpu, link)
        remote = self._call(device, "nvmlDeviceGetNvLinkRemotePciInfo", gpu, link)
        if kind == _REMOTE_SWITCH:
            self.switched[device] += 1
        elif kind == _REMOTE_GPU and remote is not None:
            self.joined[device, pci_address(remote.busId)] += 1
