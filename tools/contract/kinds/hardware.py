"""Kinds of findings about hardware: messages of drivers, state of GPUs, error counters of memory, CPUs and ports."""

from __future__ import annotations

from whystall.tools.contract.kinds.spec import KindSpec, Mechanism, kind

_LOG, _SENSORS, _COUNTERS = Mechanism.LOG, Mechanism.SENSORS, Mechanism.COUNTERS

KINDS: dict[str, KindSpec] = {
    # `xid`: 79, 149.33 (with the sub-code); `meaning`, `action`, `further`: keys of texts; `area`: the part concerned;
    # `root`: the error that it follows; `recovery`: what the driver states that the GPU needs. `age_s`: before the end
    # of the log.
    "gpu.xid": kind(
        _LOG,
        "device",
        "count age_s line",
        "xid meaning area action further recovery root links process uuid message relevance log",
    ),
    "gpu.switch": kind(
        _LOG, "device", "count age_s line", "xid meaning switch_class action links message relevance log"
    ),
    # `throttled_pct`: of the readings in which it worked
    "gpu.throttled": kind(
        _SENSORS,
        "device",
        "throttled_pct clock_mhz clock_max_mhz temperature_c power_w power_limit_w busy_pct",
        "throttle action",
    ),
    # since the driver started; `_ever`: in its life
    "gpu.memory": kind(
        _SENSORS,
        "device",
        "ecc_uncorrected ecc_uncorrected_ever ecc_corrected remapped_rows",
        "condition action",
    ),
    "gpu.pcie": kind(
        _SENSORS,
        "device",
        "pcie_width pcie_width_max pcie_generation pcie_generation_max replays",
        "action",
    ),
    "gpu.nvlink": kind(_SENSORS, "device", "new_errors links_down", "links action"),
    "gpu.recovery": kind(_SENSORS, "device", "processes", "recovery action"),
    # of Ascend and AMD, as the vendor's program states it
    "gpu.health": kind(
        _SENSORS,
        "device",
        "temperature_c power_w memory_pct link_errors",
        "health condition model action",
    ),
    "gpu.lost": kind(_SENSORS, "device", "count", "error action"),
    # `count`, `rate`: in the window; `total`: since the start of the host
    "host.memory": kind(_COUNTERS, "device", "count rate total", "condition counters action"),
    "host.machine_check": kind(_COUNTERS, "host", "count total", "cpus action"),
    "host.thermal": kind(_COUNTERS, "host", "count throttled_pct", "cpus action"),
    "port.errors": kind(_COUNTERS, "device", "count rate link_downs", "counters action"),
    "port.pauses": kind(_COUNTERS, "device", "rate paused_pct", "counters"),
    "port.slow": kind(_COUNTERS, "device", "rate_mbps peers_mbps", "condition action"),
}
