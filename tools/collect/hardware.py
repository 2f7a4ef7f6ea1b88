"""The collector `hardware`: error counters of memory, CPUs and ports, read twice from sysfs.

* EDAC, corrected and uncorrected memory errors: /sys/devices/system/edac/mc/mcN (Documentation/admin-guide/RAS).
* Machine check exceptions: the line MCE of /proc/interrupts (x86).
* Thermal throttling: /sys/devices/system/cpu/cpuN/thermal_throttle (Intel; Documentation/ABI/testing).
* RDMA ports: /sys/class/infiniband/DEV/ports/N, counters and hw_counters (ABI/stable/sysfs-class-infiniband).
* Ethernet ports of real devices: /sys/class/net/NAME/statistics; what the driver counts itself, such as pauses of
  priority flow control, by `ethtool`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from whystall.tools.collect import ethtool
from whystall.tools.collect.proc_interrupts import lines
from whystall.tools.collect.tables import HARDWARE, filled
from whystall.tools.contract.text import clean
from whystall.tools.recording.collector import Capture

KINDS = ("memory", "machine_check", "thermal", "rdma", "ethernet")
_UNKNOWN = -1
_MOST = 1 << 62
_MOST_FILES = 20_000
_FILE_BYTES = 4096
_NUMBER = re.compile(rb"\s*(\d{1,20})\s*")
_ETHERNET = (
    *("rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors", "rx_fifo_errors", "rx_missed_errors"),
    "tx_carrier_errors",
)
_CARRIER = ("carrier_down_count",)
_RATE = re.compile(rb"\s*([\d.]{1,12})\s*Gb/sec")


class Counter(NamedTuple):
    """What one counter is of."""

    kind: str
    device: str
    port: int
    name: str


class Hardware:
    """Reads the counters at each `sample`; the first and the last one count. `sysfs`, `proc`: where these are mounted.
    `driver_counts`: returns what the driver of a network device counts."""

    def __init__(
        self,
        sysfs: Path = Path("/sys"),
        proc: Path = Path("/proc"),
        clock: Callable[[], int] = time.monotonic_ns,
        driver_counts: Callable[[str], dict[str, int]] = ethtool.statistics,
    ) -> None:
        self._sysfs, self._proc, self._clock = sysfs, proc, clock
        self._driver_counts = driver_counts
        self._readings: list[tuple[int, dict[Counter, int]]] = []
        self._denied: set[str] = set()
        self._files = 0

    def sample(self) -> None:
        """Read all counters."""
        self._files = 0
        reading = (self._clock(), dict(self._counters()))
        self._readings = [*self._readings[:1], reading]

    def read(self) -> Capture:
        """Return the capture of the first and the last reading."""
        rows = []
        ever = {counter for _, values in self._readings for counter, value in values.items() if value}
        for at_ns, values in self._readings:
            rows += [(at_ns, *counter, min(value, _MOST)) for counter, value in values.items() if counter in ever]
        last = self._readings[-1][1] if self._readings else {}
        found = {kind: sum(counter.kind == kind for counter in last) for kind in KINDS}
        absent = [kind for kind, count in found.items() if not count]
        spots = [("counters_absent", ", ".join(absent))] if absent else []
        if self._denied:
            spots.append(("not_permitted", f"{len(self._denied)} counters of hardware"))
        if self._files > _MOST_FILES:
            spots.append(("counters_absent", f"more than {_MOST_FILES}"))
        tables = filled(HARDWARE, counters=rows, ports=self._ports(), kinds=[(k, n) for k, n in found.items() if n])
        return Capture(
            tables=tables,
            hooks=["/sys"],
            seen=len(last),
            kept=len(rows),
            lost=0,
            proven=len(self._readings) > 1,
            not_seen=spots,
        )

    def _counters(self) -> Iterator[tuple[Counter, int]]:
        yield from self._memory()
        yield from self._machine_checks()
        yield from self._thermal()
        yield from self._rdma()
        yield from self._ethernet()

    def _memory(self) -> Iterator[tuple[Counter, int]]:
        for controller in self._children("devices/system/edac/mc", r"mc\d+"):
            for name in ("ce_count", "ue_count"):
                yield from self._one(controller / name, Counter("memory", controller.name, _UNKNOWN, name))
            for module in self._children_of(controller, r"(?:dimm|rank)\d+"):
                port = int(re.sub(r"\D", "", module.name))
                for name in ("dimm_ce_count", "dimm_ue_count"):
                    yield from self._one(module / name, Counter("memory", controller.name, port, name))

    def _machine_checks(self) -> Iterator[tuple[Counter, int]]:
        try:
            found = lines((self._proc / "interrupts").read_bytes())
        except OSError:
            return
        for line in found:
            if line.label == "MCE":
                for cpu, count in line.counts.items():
                    yield Counter("machine_check", f"cpu{cpu}", _UNKNOWN, "exceptions"), count

    def _thermal(self) -> Iterator[tuple[Counter, int]]:
        for cpu in self._children("devices/system/cpu", r"cpu\d+"):
            for part in ("core", "package"):
                for ending in ("throttle_count", "throttle_total_time_ms"):
                    name = f"{part}_{ending}"
                    yield from self._one(cpu / "thermal_throttle" / name, Counter("thermal", cpu.name, _UNKNOWN, name))

    def _rdma(self) -> Iterator[tuple[Counter, int]]:
        for device, port in self._rdma_ports():
            for folder in ("counters", "hw_counters"):
                for file in self._children_of(port / folder, r"\w{1,64}"):
                    if file.name != "lifespan":  # a setting: how long hw_counters are cached
                        yield from self._one(file, Counter("rdma", device, int(port.name), file.name))

    def _ethernet(self) -> Iterator[tuple[Counter, int]]:
        for device in self._cards():
            for name in _ETHERNET:
                yield from self._one(device / "statistics" / name, Counter("ethernet", device.name, _UNKNOWN, name))
            for name in _CARRIER:
                yield from self._one(device / name, Counter("ethernet", device.name, _UNKNOWN, name))
            for name, value in self._driver_counts(device.name).items():
                yield Counter("ethernet", device.name, _UNKNOWN, name), value

    def _ports(self) -> list[tuple[object, ...]]:
        rows: list[tuple[object, ...]] = []
        for device, port in self._rdma_ports():
            # 4: ACTIVE | 400 Gb/sec (4X NDR)
            state = (self._raw(port / "state") or b"").decode("ascii", "replace").rpartition(":")[2].strip().lower()
            rate = _RATE.match(self._raw(port / "rate") or b"")
            link = (self._raw(port / "link_layer") or b"").decode("ascii", "replace").strip().lower()
            mbps = int(float(rate[1]) * 1000) if rate and re.fullmatch(rb"\d+(\.\d+)?", rate[1]) else _UNKNOWN
            rows.append(("rdma", device, int(port.name), clean(state, 40), mbps, clean(link, 40)))
        for device_path in self._cards():
            state = (self._raw(device_path / "operstate") or b"").decode("ascii", "replace").strip()
            speed = _NUMBER.fullmatch(self._raw(device_path / "speed") or b"")
            mbps = min(int(speed[1]), _MOST) if speed else _UNKNOWN
            rows.append(("ethernet", device_path.name, _UNKNOWN, clean(state, 40), mbps, "ethernet"))
        return rows

    def _rdma_ports(self) -> Iterator[tuple[str, Path]]:
        for device in self._children("class/infiniband", r"[\w.-]{1,64}"):
            for port in self._children_of(device / "ports", r"\d{1,4}"):
                yield device.name, port

    def _cards(self) -> Iterator[Path]:
        """Yield the network devices that are hardware."""
        for device in self._children("class/net", r"[^/\s]{1,15}"):
            if (device / "device").exists():
                yield device

    def _children(self, folder: str, name: str) -> list[Path]:
        return self._children_of(self._sysfs / folder, name)

    def _children_of(self, folder: Path, name: str) -> list[Path]:
        try:
            found = sorted(os.listdir(folder))
        except OSError:
            return []
        return [folder / one for one in found if re.fullmatch(name, one)]

    def _one(self, path: Path, counter: Counter) -> Iterator[tuple[Counter, int]]:
        match = _NUMBER.fullmatch(self._raw(path) or b"")
        if match is not None:
            yield counter, int(match[1])

    def _raw(self, path: Path) -> bytes | None:
        self._files += 1
        if self._files > _MOST_FILES:
            return None
        try:
            with open(path, "rb") as file:
                return file.read(_FILE_BYTES)
        except PermissionError:
            self._denied.add(str(path))
        except OSError:  # absent, or not readable while the device is down
            pass
        return None


def growth(before: int, after: int) -> int:
    """Return by how much a counter rose between two readings.

    One that is smaller afterwards has wrapped if it was in the last eighth of 32 or 64 bits, else it was reset and has
    counted from 0 since.
    """
    if after >= before:
        return after - before
    for bits in (32, 64):
        if (1 << bits) - (1 << bits) // 8 <= before < 1 << bits:
            return after + (1 << bits) - before
    return after
