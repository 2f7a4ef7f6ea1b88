"""The collector hardware, on a directory in place of /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystall.tools.collect.ethtool import statistics
from whystall.tools.collect.hardware import Hardware, growth


def write(root: Path, files: dict[str, object]) -> None:
    for name, value in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n", encoding="ascii")


PORT = "class/infiniband/mlx5_0/ports/1"
FIRST: dict[str, object] = {
    "devices/system/edac/mc/mc0/ce_count": 4,
    "devices/system/edac/mc/mc0/ue_count": 0,
    "devices/system/edac/mc/mc0/dimm2/dimm_ce_count": 4,
    "devices/system/edac/mc/power/control": "auto",
    "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": 0,
    f"{PORT}/counters/symbol_error": 65_535,
    f"{PORT}/counters/port_xmit_wait": "not a number",
    f"{PORT}/hw_counters/out_of_sequence": 1,
    f"{PORT}/hw_counters/lifespan": 10,
    f"{PORT}/state": "4: ACTIVE",
    f"{PORT}/rate": "400 Gb/sec (4X NDR)",
    f"{PORT}/link_layer": "InfiniBand",
    "class/net/eth0/device/vendor": "0x15b3",
    "class/net/eth0/statistics/rx_crc_errors": 0,
    "class/net/eth0/speed": -1,
    "class/net/eth0/operstate": "down",
    "class/net/lo/statistics/rx_crc_errors": 9,
}
LAST = {
    "devices/system/edac/mc/mc0/ce_count": 9,
    "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": 3,
    f"{PORT}/hw_counters/out_of_sequence": 5,
}


def test_counters_are_read_twice_and_ports_once(tmp_path: Path) -> None:
    write(tmp_path / "sys", FIRST)
    write(tmp_path, {"proc/interrupts": "           CPU0       CPU1\nMCE:   0   2   Machine check exceptions"})
    clock = iter(range(1, 9))
    reader = Hardware(tmp_path / "sys", tmp_path / "proc", lambda: next(clock), lambda device: {"rx_prio3_pause": 7})
    reader.sample()
    write(tmp_path / "sys", LAST)
    reader.sample()
    capture = reader.read()
    found: dict[tuple[object, ...], list[int]] = {}
    for at_ns, *counter, value in capture.tables["counters"].sort("at_ns").iter_rows():
        assert at_ns in (1, 2)
        found.setdefault(tuple(counter), []).append(value)
    assert found == {
        ("memory", "mc0", -1, "ce_count"): [4, 9],
        ("memory", "mc0", 2, "dimm_ce_count"): [4, 4],
        ("machine_check", "cpu1", -1, "exceptions"): [2, 2],
        ("thermal", "cpu0", -1, "core_throttle_count"): [0, 3],
        ("rdma", "mlx5_0", 1, "symbol_error"): [65_535, 65_535],
        ("rdma", "mlx5_0", 1, "out_of_sequence"): [1, 5],
        ("ethernet", "eth0", -1, "rx_prio3_pause"): [7, 7],
    }
    assert sorted(capture.tables["ports"].rows()) == [
        ("ethernet", "eth0", -1, "down", -1, "ethernet"),
        ("rdma", "mlx5_0", 1, "active", 400_000, "infiniband"),
    ]
    assert dict(capture.tables["kinds"].rows())["memory"] == 3  # also those that are 0
    assert capture.proven
    assert capture.not_seen == []


def test_what_a_host_does_not_have_is_stated(tmp_path: Path) -> None:
    reader = Hardware(tmp_path, tmp_path, driver_counts=lambda device: {})
    reader.sample()
    capture = reader.read()
    assert not capture.proven  # one reading shows no growth
    assert capture.not_seen == [("counters_absent", "memory, machine_check, thermal, rdma, ethernet")]


@pytest.mark.parametrize(
    ("before", "after", "grown"),
    [
        (5, 9, 4),
        (7, 7, 0),
        ((1 << 32) - 3, 4, 7),  # wrapped
        ((1 << 64) - 1, 0, 1),
        (900, 4, 4),  # reset: has counted from 0 since
        (1 << 31, 4, 4),
    ],
)
def test_wrapped_and_reset_counters(before: int, after: int, grown: int) -> None:
    assert growth(before, after) == grown


def test_a_device_without_counters_of_its_own_is_no_error() -> None:
    assert statistics("lo") == {}
    assert statistics("no-such-device") == {}
