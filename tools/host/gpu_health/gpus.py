"""Judge the state of NVIDIA GPUs by NVML: clocks, temperature, memory errors, PCIe and NVLink.

A GPU without work lowers its clocks and the generation of its PCIe link: only readings in which it works count for
these. Which NVLinks a model has is not known: a GPU has lost some if another one of its model on this host has more.
Reasons for lower clocks: nvmlClocksEventReasons of nvml.h.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import polars as pl

from whystall.tools.collect.hardware import growth
from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.host.common.findings import finding, window
from whystall.tools.host.gpu_health.data import GpuRow, LinkRow, ProcessRow
from whystall.tools.node.xid_catalogue import recovery, severity_of_action
from whystall.tools.recording.store import Recording

COLLECTOR = "gpu_state"
BUSY_PCT = 10
THROTTLES = {
    0x8: ("hw_slowdown", "cool"),
    0x20: ("sw_thermal", "cool"),
    0x40: ("hw_thermal", "cool"),
    0x80: ("power_brake", "power"),
}
"""Reasons that mean trouble, and what to do."""
LIMITS = {0x2: ("application_clocks", "watch"), 0x4: ("power_cap", "power")}
"""Reasons that a person or the power limit sets: reported if the clock is below `_LOW` of its maximum."""
_LOW = 0.8
_OFTEN = 0.5
_LOST_ERRORS = ("GPU is lost", "Unknown Error", "GPU requires restart")
Row = dict[str, Any]


def judged(recording: Recording) -> tuple[list[Finding], list[GpuRow]]:
    """Return the findings and the rows of all GPUs."""
    readings = recording.table(f"{COLLECTOR}.readings")
    links = recording.table(f"{COLLECTOR}.links")
    window_ns = recording.manifest.window_ns
    found, rows, models = [], [], models_of(recording)
    for gpu in recording.table(f"{COLLECTOR}.gpus").sort("number").iter_rows(named=True):
        own = readings.filter(pl.col("device") == gpu["device"]).sort("at_ns").to_dicts()
        working = [row for row in own if row["busy_pct"] >= BUSY_PCT]
        found += [
            *_throttled(gpu, own, working, window_ns),
            *_memory(gpu, window_ns),
            *_pcie(gpu, own, working, window_ns),
            *_needs(recording, gpu),
        ]
        found += _nvlink(gpu["device"], link_rows(links, models, gpu["device"]), window_ns)
        rows.append(_row(gpu, own, working))
    return [*_lost(recording, window_ns), *found], rows


def models_of(recording: Recording) -> dict[str, str]:
    """Return the model of each GPU."""
    gpus = recording.table(f"{COLLECTOR}.gpus")
    return dict(zip(gpus["device"].to_list(), gpus["model"].to_list(), strict=True))


def _throttled(gpu: Row, own: list[Row], working: list[Row], window_ns: int) -> list[Finding]:
    known = [row for row in working if row["reasons"] >= 0]
    if not known:
        return []
    clock, most = _median(known, "clock_mhz"), _known(gpu["clock_max_mhz"])
    slow = clock is not None and most is not None and clock < _LOW * most
    metrics: dict[str, float | None] = {
        "throttled_pct": 0.0,
        "clock_mhz": clock,
        "clock_max_mhz": most,
        "temperature_c": _median(known, "temperature_c"),
        "power_w": _watts(_median(known, "power_mw")),
        "power_limit_w": _watts(_known(gpu["power_limit_mw"])),
        "busy_pct": _median(known, "busy_pct"),
    }
    found = []
    for bit, (reason, action) in {**THROTTLES, **LIMITS}.items():
        share = sum(bool(row["reasons"] & bit) for row in known) / len(known)
        if not share or (bit in LIMITS and (not slow or share < _OFTEN)):
            continue
        if bit == 0x8 and any(row["reasons"] & 0xC0 for row in known):
            continue  # hardware slowdown is the sum of the thermal one and the power brake, which are named
        severity = Severity.MAJOR if bit in THROTTLES and slow and share >= _OFTEN else Severity.MINOR
        attributes = {"throttle": reason, "action": action}
        numbers = metrics | {"throttled_pct": 100 * share}
        found.append(finding("gpu.throttled", _of(gpu), window(window_ns), numbers, severity, attributes))
    if found or slow or len(known) < _OFTEN * len(own):
        return found
    return [finding("gpu.throttled", _of(gpu), window(window_ns), metrics)]


def _memory(gpu: Row, window_ns: int) -> list[Finding]:
    rows = max(gpu["remapped_corrected"], 0) + max(gpu["remapped_uncorrected"], 0)
    metrics = {
        "ecc_uncorrected": _known(gpu["ecc_uncorrected"]),
        "ecc_uncorrected_ever": _known(gpu["ecc_uncorrected_ever"]),
        "ecc_corrected": _known(gpu["ecc_corrected"]),
        "remapped_rows": float(rows),
    }
    if gpu["remap_failed"] > 0:
        condition, action, severity = "remap_failed", "contact_support", Severity.MAJOR
    elif gpu["remap_pending"] > 0:
        condition, action, severity = "remap_pending", "reset_gpu", Severity.MINOR
    elif gpu["ecc_uncorrected"] > 0:
        condition, action, severity = "uncorrected", "reset_gpu", Severity.MAJOR
    elif gpu["ecc_uncorrected"] == 0 and gpu["remap_failed"] <= 0:
        return [finding("gpu.memory", _of(gpu), window(window_ns), metrics)]
    else:
        return []
    attributes = {"condition": condition, "action": action}
    return [finding("gpu.memory", _of(gpu), window(window_ns), metrics, severity, attributes)]


def _pcie(gpu: Row, own: list[Row], working: list[Row], window_ns: int) -> list[Finding]:
    width = max((row["pcie_width"] for row in working), default=-1)
    generation = max((row["pcie_generation"] for row in working), default=-1)
    narrow = 0 < width < gpu["pcie_width_max"]
    old = 0 < generation < gpu["pcie_generation_max"]
    replays = growth(own[0]["pcie_replays"], own[-1]["pcie_replays"]) if own and own[0]["pcie_replays"] >= 0 else 0
    if not narrow and not old and not replays:
        return []
    metrics = {
        "pcie_width": _known(width),
        "pcie_width_max": _known(gpu["pcie_width_max"]),
        "pcie_generation": _known(generation),
        "pcie_generation_max": _known(gpu["pcie_generation_max"]),
        "replays": float(replays),
    }
    half = (narrow and 2 * width <= gpu["pcie_width_max"]) or (old and gpu["pcie_generation_max"] - generation > 1)
    severity = Severity.MAJOR if half else Severity.MINOR
    return [finding("gpu.pcie", _of(gpu), window(window_ns), metrics, severity, {"action": "reseat"})]


def _needs(recording: Recording, gpu: Row) -> list[Finding]:
    needs = recovery(gpu["recovery"])
    if needs is None or needs.name == "none":
        return []
    severity = severity_of_action(needs.action) or Severity.MINOR
    attributes = {"recovery": needs.name, "action": needs.action}
    users = sum(row.gpu == gpu["device"] for row in process_rows(recording))
    interval = window(recording.manifest.window_ns)
    return [finding("gpu.recovery", _of(gpu), interval, {"processes": float(users)}, severity, attributes)]


def _nvlink(device: str, rows: list[LinkRow], window_ns: int) -> list[Finding]:
    bad = [row for row in rows if not row.up or row.new]
    if not bad:
        return []
    down = [row.link for row in rows if not row.up]
    metrics = {"new_errors": float(sum(row.new for row in rows)), "links_down": float(len(down))}
    attributes = {"links": ", ".join(str(row.link) for row in bad), "action": "workflow_nvlink_err"}
    severity = Severity.MAJOR if down else Severity.MINOR
    subject = Subject(type="device", device=device)
    return [finding("gpu.nvlink", subject, window(window_ns), metrics, severity, attributes)]


def _lost(recording: Recording, window_ns: int) -> list[Finding]:
    """Return a finding per GPU that does not answer NVML."""
    found: dict[str, Finding] = {}
    numbers = {str(row["number"]): row["device"] for row in recording.table(f"{COLLECTOR}.gpus").to_dicts()}
    for row in recording.table(f"{COLLECTOR}.failures").iter_rows(named=True):
        if row["error"] not in _LOST_ERRORS or not row["device"] or row["device"] in found:
            continue
        reset = row["error"] == "GPU requires restart"
        attributes = {"error": row["error"], "action": "reset_gpu" if reset else "restart_bm"}
        subject = Subject(type="device", device=numbers.get(row["device"], row["device"]))
        severity = Severity.MAJOR if reset else Severity.CRITICAL
        metrics = {"count": float(row["count"])}
        found[row["device"]] = finding("gpu.lost", subject, window(window_ns), metrics, severity, attributes)
    return list(found.values())


def link_rows(links: pl.DataFrame, models: Mapping[str, str], device: str | None = None) -> list[LinkRow]:
    """Return the NVLinks with errors, or that are down although other GPUs of the same model have more.

    Some models leave links unused by design (H100 NVL: 6 of 18): a GPU with as many links as its equals lost none.
    `models`: by GPU.
    """
    rows: list[LinkRow] = []
    for (gpu, link), group in links.sort("at_ns").group_by("device", "link", maintain_order=True):
        first, last = group.row(0, named=True), group.row(-1, named=True)
        names = ("replays", "recoveries", "crc_flits", "crc_data")
        new = sum(growth(first[name], last[name]) for name in names if first[name] >= 0 <= last[name])
        errors = sum(max(last[name], 0) for name in names)
        rows.append(LinkRow(gpu=str(gpu), link=int(str(link)), up=last["state"] == 1, errors=errors, new=new))
    up: dict[str, set[int]] = {gpu: set() for gpu in models}
    for row in rows:
        if row.up:
            up.setdefault(row.gpu, set()).add(row.link)
    return [
        row
        for row in rows
        if device in (None, row.gpu) and up.get(row.gpu) and (_lost_link(row, up, models) if not row.up else row.errors)
    ]


def _lost_link(row: LinkRow, up: Mapping[str, set[int]], models: Mapping[str, str]) -> bool:
    """Return whether the link `row`, which is down, is one of those that its GPU lacks beside its equals.

    `up`: links that are up, by GPU; one without any does not use NVLink.
    """
    model = models.get(row.gpu)
    equals = [links for gpu, links in up.items() if models.get(gpu) == model and len(links) > len(up[row.gpu])]
    most = max(equals, key=len, default=set[int]())
    return row.link in most


def process_rows(recording: Recording) -> list[ProcessRow]:
    """Return the processes on the GPUs, those with most memory first."""
    rows = [
        ProcessRow(gpu=r["device"], pid=r["pid"], comm=r["comm"], used_bytes=_count(r["used_bytes"]))
        for r in recording.table(f"{COLLECTOR}.processes").iter_rows(named=True)
    ]
    return sorted(rows, key=lambda row: -(row.used_bytes or 0))


def _row(gpu: Row, own: list[Row], working: list[Row]) -> GpuRow:
    shown = working or own
    known = [row for row in working if row["reasons"] >= 0]
    troubled = [row for row in known if row["reasons"] & sum(THROTTLES)]
    names = {name for bit, (name, _) in {**THROTTLES, **LIMITS}.items() if any(r["reasons"] & bit for r in known)}
    needs = recovery(gpu["recovery"])
    rows = [one for one in (gpu["remapped_corrected"], gpu["remapped_uncorrected"]) if one >= 0]
    last = own[-1] if own else {"pcie_generation": -1, "pcie_width": -1, "memory_used_bytes": -1}
    generation = max((row["pcie_generation"] for row in working), default=last["pcie_generation"])
    return GpuRow(
        number=gpu["number"],
        gpu=gpu["device"],
        uuid=gpu["uuid"],
        model=gpu["model"],
        busy_pct=_median(own, "busy_pct"),
        clock_mhz=_median(shown, "clock_mhz"),
        clock_max_mhz=_known(gpu["clock_max_mhz"]),
        throttled_pct=100 * len(troubled) / len(known) if known else None,
        throttle=sorted(names),
        temperature_c=_median(shown, "temperature_c"),
        power_w=_watts(_median(shown, "power_mw")),
        power_limit_w=_watts(_known(gpu["power_limit_mw"])),
        pcie=_link(generation, last["pcie_width"]),
        pcie_max=_link(gpu["pcie_generation_max"], gpu["pcie_width_max"]),
        ecc_corrected=_count(gpu["ecc_corrected"]),
        ecc_uncorrected=_count(gpu["ecc_uncorrected"]),
        remapped_rows=sum(rows) if rows else None,
        memory_used_bytes=_count(last["memory_used_bytes"]),
        memory_bytes=_count(gpu["memory_bytes"]),
        recovery=needs.name if needs is not None else "",
    )


def _of(gpu: Row) -> Subject:
    return Subject(type="device", device=gpu["device"])


def _median(rows: list[Row], name: str) -> float | None:
    values = [row[name] for row in rows if row[name] >= 0]
    return float(statistics.median(values)) if values else None


def _known(value: float) -> float | None:
    return float(value) if value >= 0 else None


def _count(value: int) -> int | None:
    return value if value >= 0 else None


def _watts(milliwatts: float | None) -> float | None:
    return milliwatts / 1000 if milliwatts is not None else None


def _link(generation: int, width: int) -> str:
    return f"{generation}x{width}" if generation > 0 and width > 0 else ""
