"""Read JSON of ``amd-smi metric``, ``amd-smi static`` and ``rocm-smi``, of AMD's GPUs. Pure.

amd-smi, a list in older versions::

    {"gpu_data": [{"gpu": 0, "power": {"socket_power": {"value": 158, "unit": "W"}, "throttle_status": "UNTHROTTLED"},
                   "temperature": {"hotspot": {"value": 45, "unit": "C"}}, "pcie": {"width": 16},
                   "ecc": {"total_correctable_count": 0, "total_uncorrectable_count": 0}}]}
    [{"gpu": 0, "bus": {"bdf": "0000:05:00.0", "max_pcie_width": 16, "max_pcie_speed": {"value": 32}}}]

rocm-smi::

    {"card0": {"PCI Bus": "0000:05:00.0", "Temperature (Sensor junction) (C)": "45.0",
               "Current Socket Graphics Package Power (W)": "159.0", "VRAM Total Memory (B)": "205822885888"}}
"""

from __future__ import annotations

import re
from typing import Any

from whystall.tools.collect.cards.card import MOST_CARDS, UNKNOWN, Card, number
from whystall.tools.contract.text import clean

_CARD = re.compile(r"card(\d{1,4})")
_BUS = re.compile(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d")
_THROTTLED = {"UNTHROTTLED": "none", "THROTTLED": "throttled"}
_UNIT_BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
Json = dict[str, Any]


def parse(content: Any) -> list[Card]:
    """Return the GPUs that `content`, decoded JSON, states; empty if it is of another kind."""
    if isinstance(content, dict) and isinstance(content.get("gpu_data"), list):
        content = content["gpu_data"]
    if isinstance(content, list):
        known = [one for one in content[:MOST_CARDS] if isinstance(one, dict) and number(one.get("gpu")) >= 0]
        return [_amd_smi(one) for one in known]
    if not isinstance(content, dict):
        return []
    pairs = [(match, one) for name, one in content.items() if (match := _CARD.fullmatch(str(name)))]
    return [_rocm_smi(int(match[1]), one) for match, one in pairs[:MOST_CARDS] if isinstance(one, dict)]


def _amd_smi(one: Json) -> Card:
    power, heat, pcie, ecc = (_part(one, name) for name in ("power", "temperature", "pcie", "ecc"))
    bus, asic, use, memory = (_part(one, name) for name in ("bus", "asic", "usage", "mem_usage"))
    return Card(
        vendor="amd",
        number=number(one["gpu"]),
        device=_address(bus.get("bdf")),
        model=_word(asic.get("market_name")),
        throttle=_THROTTLED.get(_word(power.get("throttle_status")), ""),
        temperature_c=max(number(heat.get(name)) for name in ("hotspot", "edge", "mem")),
        power_mw=number(power.get("socket_power"), 1000),
        busy_pct=number(use.get("gfx_activity")),
        memory_used_bytes=_bytes(memory.get("used_vram")),
        memory_bytes=_bytes(memory.get("total_vram")),
        ecc_corrected=number(ecc.get("total_correctable_count")),
        ecc_uncorrected=number(ecc.get("total_uncorrectable_count")),
        pcie_width=number(pcie.get("width")),
        pcie_width_max=number(bus.get("max_pcie_width")),
        pcie_mts=number(pcie.get("speed"), 1000),
        pcie_mts_max=number(bus.get("max_pcie_speed"), 1000),
    )


def _rocm_smi(place: int, one: Json) -> Card:
    heat = [number(value) for name, value in one.items() if str(name).startswith("Temperature (Sensor ")]
    power = [value for name, value in one.items() if re.fullmatch(r"(?:Current|Average) .{0,30}Power \(W\)", str(name))]
    return Card(
        vendor="amd",
        number=place,
        device=_address(one.get("PCI Bus")),
        model=_word(one.get("Card Series") or one.get("Card series")),
        temperature_c=max(heat, default=UNKNOWN),
        power_mw=number(power[0], 1000) if power else UNKNOWN,
        busy_pct=number(one.get("GPU use (%)")),
        memory_used_bytes=number(one.get("VRAM Total Used Memory (B)")),
        memory_bytes=number(one.get("VRAM Total Memory (B)")),
        link_errors=number(one.get("XGMI Error count")),
    )


def _part(one: Json, name: str) -> Json:
    found = one.get(name)
    return found if isinstance(found, dict) else {}


def _word(value: Any) -> str:
    return clean(value, 64) if isinstance(value, str) and value != "N/A" else ""


def _address(value: Any) -> str:
    return value.lower() if isinstance(value, str) and _BUS.fullmatch(value) else ""


def _bytes(value: Any) -> int:
    unit = value.get("unit") if isinstance(value, dict) else None
    return number(value, _UNIT_BYTES.get(unit if isinstance(unit, str) else "", 1))
