"""Judge accelerators of Ascend and AMD by what their vendors' programs state.

Limits of temperature differ between models and are not stated there: temperature, power and memory are shown, and only
the vendor's own word about health or throttling, error counts and the PCIe link are judged. An idle card may lower the
speed of its PCIe link, hence only its width counts unless it works.
"""

from __future__ import annotations

from typing import Any

from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.host.common.findings import finding, window
from whystall.tools.host.gpu_health.data import CardRow
from whystall.tools.host.gpu_health.gpus import BUSY_PCT
from whystall.tools.recording.store import Recording

COLLECTOR = "card_state"
# Words of npu-smi's column Health (hiascend.com, npu-smi 2520, npusmi_027, read 2026-11): a minor,
# an important and an urgent alarm; unknown: the chip does not exist or has not started.
_HEALTH = {"warning": Severity.MINOR, "alarm": Severity.MAJOR, "critical": Severity.CRITICAL, "unknown": Severity.MINOR}
_GENERATIONS = {2_500: 1, 5_000: 2, 8_000: 3, 16_000: 4, 32_000: 5, 64_000: 6}
"""Generations of PCIe by transfers per second and lane, in millions."""
Row = dict[str, Any]


def judged(recording: Recording) -> tuple[list[Finding], list[CardRow]]:
    """Return the findings and the rows of all cards."""
    window_ns = recording.manifest.window_ns
    found: list[Finding] = []
    rows = []
    for card in recording.table(f"{COLLECTOR}.cards").sort("vendor", "number", "chip").iter_rows(named=True):
        found += [*_health(card, window_ns), *_memory(card, window_ns), *_pcie(card, window_ns)]
        rows.append(_row(card))
    return found, rows


def _health(card: Row, window_ns: int) -> list[Finding]:
    severity, condition, action = None, "", "contact_support"
    if card["health"] not in ("", "ok"):
        severity, condition = _HEALTH.get(card["health"], Severity.MAJOR), "not_healthy"
    elif card["link_errors"] > 0:
        severity, condition, action = Severity.MINOR, "link_errors", "watch"
    elif card["throttle"] not in ("", "none"):
        severity, condition, action = Severity.MINOR, "throttled", "cool"
    elif not card["health"] and not card["throttle"] and card["link_errors"] < 0:
        return []  # nothing is stated by which it could be judged
    metrics = {
        "temperature_c": _known(card["temperature_c"]),
        "power_w": _known(card["power_mw"], 1e-3),
        "memory_pct": _share(card),
        "link_errors": _known(card["link_errors"]),
    }
    words = {"health": card["health"], "condition": condition, "model": card["model"]}
    attributes = {name: value for name, value in words.items() if value}
    if severity is None:
        return [finding("gpu.health", _of(card), window(window_ns), metrics)]
    return [finding("gpu.health", _of(card), window(window_ns), metrics, severity, {**attributes, "action": action})]


def _memory(card: Row, window_ns: int) -> list[Finding]:
    if card["ecc_uncorrected"] < 0:
        return []
    metrics = {"ecc_uncorrected": float(card["ecc_uncorrected"]), "ecc_corrected": _known(card["ecc_corrected"])}
    if not card["ecc_uncorrected"]:
        return [finding("gpu.memory", _of(card), window(window_ns), metrics)]
    attributes = {"condition": "uncorrected", "action": "contact_support"}
    return [finding("gpu.memory", _of(card), window(window_ns), metrics, Severity.MAJOR, attributes)]


def _pcie(card: Row, window_ns: int) -> list[Finding]:
    narrow = 0 < card["pcie_width"] < card["pcie_width_max"]
    slow = card["busy_pct"] >= BUSY_PCT and 0 < card["pcie_mts"] < card["pcie_mts_max"]
    if not narrow and not slow:
        return []
    metrics = {
        "pcie_width": _known(card["pcie_width"]),
        "pcie_width_max": _known(card["pcie_width_max"]),
        "pcie_generation": _generation(card["pcie_mts"]),
        "pcie_generation_max": _generation(card["pcie_mts_max"]),
    }
    half = narrow and 2 * card["pcie_width"] <= card["pcie_width_max"]
    severity = Severity.MAJOR if half else Severity.MINOR
    return [finding("gpu.pcie", _of(card), window(window_ns), metrics, severity, {"action": "reseat"})]


def _row(card: Row) -> CardRow:
    return CardRow(
        vendor=card["vendor"],
        card=name_of(card),
        device=card["device"],
        model=card["model"],
        health=card["health"],
        throttle=card["throttle"],
        temperature_c=_known(card["temperature_c"]),
        power_w=_known(card["power_mw"], 1e-3),
        busy_pct=_known(card["busy_pct"]),
        memory_pct=_share(card),
        ecc_uncorrected=card["ecc_uncorrected"] if card["ecc_uncorrected"] >= 0 else None,
        pcie=_link(card["pcie_mts"], card["pcie_width"]),
        pcie_max=_link(card["pcie_mts_max"], card["pcie_width_max"]),
    )


def name_of(card: Row) -> str:
    """Return a card's name: ``ascend 5.0`` (NPU and chip), ``amd 3``."""
    return f"{card['vendor']} {card['number']}" + (f".{card['chip']}" if card["vendor"] == "ascend" else "")


def _of(card: Row) -> Subject:
    return Subject(type="device", device=card["device"] or name_of(card))


def _share(card: Row) -> float | None:
    used, total = card["memory_used_bytes"], card["memory_bytes"]
    return min(100.0, 100.0 * used / total) if used >= 0 < total else None


def _known(value: int, scale: float = 1.0) -> float | None:
    return value * scale if value >= 0 else None


def _generation(mts: int) -> float | None:
    known = _GENERATIONS.get(mts)
    return float(known) if known is not None else None


def _link(mts: int, width: int) -> str:
    known = _GENERATIONS.get(mts)
    return f"{known}x{width}" if known is not None and width > 0 else f"x{width}" if width > 0 else ""
