"""Output of npu-smi, amd-smi and rocm-smi, as files and judged.

The samples are shortened and changed from published ones: npu-smi 23.0.3, 24.1.rc3.7, 25.5.2 and 22.0.0 in logs and
guides of public repositories; amd-smi of the metrics exporter's documentation and of MI210 and MI300X hosts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from whystall.tools.collect.cards.card import Card, number
from whystall.tools.collect.cards.read import cards_in, recording_of_cards
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Finding, Polarity, Severity
from whystall.tools.host.gpu_health.tool import Params, judge

NPU = """+--------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc3                 Version: 24.1.rc3                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 178.9       36                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 60          0    / 0          3412 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | Alarm         | -           91                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          52675/ 65536         |
+===========================+===============+====================================================+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
| 0       0                 | 812           | python                   | 3000                    |
"""
OLD_NPU = """| npu-smi 22.0.0                       Version:22.0.2                                        |
| NPU     Name      | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device    | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
+===================+=================+======================================================+
| 0       310P3     | OK              | 16.2         42                0    / 0              |
| 0       0         | 0000:86:00.0    | 0            994  / 21534                            |
"""


def metric(gpu: int = 0, **changed: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "gpu": gpu,
        "usage": {"gfx_activity": {"value": 90, "unit": "%"}},
        "power": {"socket_power": {"value": 158, "unit": "W"}, "throttle_status": "UNTHROTTLED"},
        "temperature": {"edge": "N/A", "hotspot": {"value": 45, "unit": "C"}, "mem": {"value": 38, "unit": "C"}},
        "pcie": {"width": 16, "speed": {"value": 32, "unit": "GT/s"}},
        "ecc": {"total_correctable_count": 3, "total_uncorrectable_count": 0},
        "mem_usage": {"total_vram": {"value": 1024, "unit": "MB"}, "used_vram": {"value": 512, "unit": "MB"}},
    }
    return {**known, **changed}


STATIC = {
    "gpu": 0,
    "asic": {"market_name": "AMD Instinct MI300X"},
    "bus": {"bdf": "0000:05:00.0", "max_pcie_width": 16, "max_pcie_speed": {"value": 32, "unit": "GT/s"}},
}
ROCM = {
    "card0": {
        "PCI Bus": "0000:05:00.0",
        "Temperature (Sensor junction) (C)": "45.0",
        "Temperature (Sensor memory) (C)": "61.0",
        "Max Graphics Package Power (W)": "750.0",
        "Current Socket Graphics Package Power (W)": "159.0",
        "GPU use (%)": "0",
        "VRAM Total Memory (B)": "2000",
        "VRAM Total Used Memory (B)": "1000",
        "XGMI Error count": "2",
    },
    "system": {"Driver version": "6.7.0"},
}


def found(tmp_path: Path, *outputs: str) -> list[Finding]:
    folder = tmp_path / "cards"
    folder.mkdir()
    for place, output in enumerate(outputs):
        (folder / f"{place}.txt").write_text(output, encoding="utf-8")
    return judge(recording_of_cards(folder), Params(cards=str(folder))).findings


def test_the_table_of_npu_smi_is_read() -> None:
    one, two = cards_in(NPU.encode())
    assert (one.device, one.model, one.health, one.power_mw, one.temperature_c) == (
        *("0000:9d:00.0", "Ascend910", "ok", 178_900, 36),
    )
    assert (one.busy_pct, one.memory_used_bytes >> 20, one.memory_bytes >> 20) == (60, 3412, 65536)
    assert (two.chip, two.health, two.power_mw, two.temperature_c) == (1, "alarm", -1, 91)
    (old,) = cards_in(OLD_NPU.encode())
    assert (old.model, old.memory_used_bytes >> 20, old.memory_bytes >> 20) == ("310P3", 994, 21534)


def test_json_of_amd_is_read_in_old_and_new_form() -> None:
    for content in ([metric()], {"gpu_data": [metric()]}):
        (card,) = cards_in(b"WARNING: something\n" + json.dumps(content).encode())
        assert (card.temperature_c, card.power_mw, card.throttle, card.ecc_corrected) == (45, 158_000, "none", 3)
        assert (card.pcie_width, card.pcie_mts, card.memory_bytes) == (16, 32_000, 1 << 30)
    (rocm,) = cards_in(json.dumps(ROCM).encode())
    assert (rocm.temperature_c, rocm.power_mw, rocm.device, rocm.link_errors) == (61, 159_000, "0000:05:00.0", 2)


def test_an_unhealthy_npu_is_reported_and_a_healthy_one_measured(tmp_path: Path) -> None:
    bad, good = found(tmp_path, NPU)
    assert (bad.kind, bad.severity, bad.subject.device) == ("gpu.health", Severity.MAJOR, "0000:9f:00.0")
    assert (bad.attributes["health"], bad.metrics["temperature_c"]) == ("alarm", 91)
    assert (good.polarity, good.metrics["power_w"]) == (Polarity.NORMAL, 178.9)


@pytest.mark.parametrize(
    ("changed", "kinds"),
    [
        ({}, set()),
        ({"ecc": {"total_uncorrectable_count": 1}}, {"gpu.memory"}),
        ({"pcie": {"width": 8, "speed": {"value": 32}}}, {"gpu.pcie"}),
        ({"pcie": {"width": "16", "speed": {"value": 16}}}, {"gpu.pcie"}),
        ({"pcie": {"width": 16, "speed": {"value": 16}}, "usage": {"gfx_activity": {"value": 0}}}, set()),  # idle
        ({"power": {"throttle_status": "THROTTLED"}}, {"gpu.health"}),
    ],
)
def test_faults_of_amd_gpus(tmp_path: Path, changed: dict[str, Any], kinds: set[str]) -> None:
    findings = found(tmp_path, json.dumps([STATIC]), json.dumps({"gpu_data": [metric(**changed)]}))
    assert {one.kind for one in findings if one.polarity is Polarity.ABNORMAL} == kinds
    assert {one.subject.device for one in findings} == {"0000:05:00.0"}


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\0" * 4096, b"[" * 100_000, b"{" * 100_000, b"| npu-smi \xff\xfe\n" + b"| 0 " * 100_000),
        *(NPU.encode()[: NPU.index("0000:9D")], b'{"gpu_data": [{"gpu": true}]}', b'{"gpu_data": "x"}', b"[1, 2]"),
        *(json.dumps({"gpu_data": [metric()]}).encode()[:-9], b'{"card0": [], "card1": "x"}'),
    ],
)
def test_hostile_and_truncated_output_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "output"
    path.write_bytes(data)
    with pytest.raises(ToolError) as error:
        recording_of_cards(path)
    assert error.value.code is ErrorCode.BAD_TRACE
    assert "\n" not in error.value.message


def test_odd_values_are_unknown_and_text_is_inert(tmp_path: Path) -> None:
    odd = metric(power={"socket_power": {"value": "1e9W\x1b[31m"}}, ecc={"total_uncorrectable_count": "N/A"}, pcie=3)
    (card,) = cards_in(json.dumps([odd | {"asic": {"market_name": "MI\x1b[31m"}}]).encode())
    assert (card.ecc_uncorrected, card.pcie_width) == (-1, -1)
    assert "\x1b" not in card.model
    for value in ("N/A", "-", None, True, -3, 1e300, {"value": None}, [], float("nan")):
        assert number(value) == -1


def test_a_long_table_is_bounded() -> None:
    first = "| 0     910B3               | OK            | 90.4        32                0    / 0             |"
    second = "| 0                         | 0000:C1:00.0  | 0           0    / 0          41697/ 65536         |"
    assert len(cards_in("\n".join(["| npu-smi 25", *[first, second] * 5000]).encode())) == 256


def test_cards_of_one_kind_are_joined_and_none_is_guessed() -> None:
    assert Card("amd", 0, power_mw=5).filled(Card("amd", 0, power_mw=7, busy_pct=3)) == Card(
        "amd", 0, power_mw=5, busy_pct=3
    )
