"""Counts of interrupts as kernels write them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whystall.tools.collect.proc_interrupts import HARD, SOFT, InterruptCounts, action_names, lines

X86 = b"""           CPU0       CPU2
  0:         41          0   IO-APIC   2-edge      timer
 24:          0          7   PCI-MSI 512000-edge      nvme0q0
 16:          3          4   IO-APIC  16-fasteoi   ehci_hcd:usb1, uhci_hcd:usb2
 28:          0          0   PCI-MSIX-0000:00:01.0   0-edge      virtio0-config
 29:          1          0   PCI-MSIX-0000:00:01.0   1-edge
LOC:        100        200   Local timer interrupts
TLB:          5          6   TLB shootdowns
ERR:          9
"""
ARM = b"""           CPU0       CPU1
 11:       1000       2000     GICv3  27 Level     arch_timer
 47:          1          2     GICv3  79 Edge      eth0-rx-0
IPI0:        10         20       Rescheduling interrupts
"""
SOFTIRQS = b"""                    CPU0       CPU2
          HI:          1          0
      NET_RX:         10         20
"""
STAT = b"cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 1 2 3 4 5 %d %d 0 0 0\ncpu2 1 2 3 4 5 0 0 0 0 0\n"


def counts(*readings: dict[str, bytes]) -> InterruptCounts:
    """Read twice; what is missing cannot be read."""
    left = list(readings)
    now: dict[str, bytes] = {}

    def read(name: str) -> bytes:
        if name == "interrupts":  # read first of a look
            now.clear()
            now.update(left.pop(0))
        if name not in now:
            raise PermissionError(13, "denied")
        return now[name]

    made = InterruptCounts(read)
    made.stop()
    return made


def test_lines_have_a_count_per_cpu_that_is_online() -> None:
    found = {line.label: line for line in lines(X86)}
    assert found["24"].counts == {0: 0, 2: 7}
    assert found["LOC"].counts == {0: 100, 2: 200}
    assert "ERR" not in found


@pytest.mark.parametrize(
    ("raw", "label", "names"),
    [
        (X86, "0", "timer"),
        (X86, "24", "nvme0q0"),
        (X86, "16", "ehci_hcd:usb1, uhci_hcd:usb2"),
        (X86, "28", "virtio0-config"),
        (X86, "29", ""),
        (ARM, "11", "arch_timer"),
        (ARM, "47", "eth0-rx-0"),
    ],
)
def test_an_interrupt_is_called_after_its_actions(raw: bytes, label: str, names: str) -> None:
    (line,) = [line for line in lines(raw) if line.label == label]
    assert action_names(line.rest) == names


def test_what_grew_is_told_per_handler_and_cpu_and_what_shrank_is_not() -> None:
    later = X86.replace(b"  7   PCI", b"507   PCI").replace(b"100        200", b"150         10")
    made = counts(
        {"interrupts": X86, "softirqs": SOFTIRQS, "stat": STAT % (0, 0)},
        {"interrupts": later, "softirqs": SOFTIRQS.replace(b"20", b"23"), "stat": STAT % (2, 3)},
    )
    assert made.grown() == {(HARD, "nvme0q0"): {2: 500}, (HARD, "LOC"): {0: 50}, (SOFT, "NET_RX"): {2: 3}}
    assert made.softirqs() == 3
    assert made.architecture_rows() == [(HARD, "LOC", 0, 50, -1, -1)]
    assert made.denied == []
    tables = made.tables()
    assert sorted(tables["totals"].rows()) == [
        (HARD, "LOC", 0, 50, -1, -1),
        (HARD, "nvme0q0", 2, 500, -1, -1),
        (SOFT, "NET_RX", 2, 3, -1, -1),
    ]
    assert tables["cpus"].rows() == [(0, 20_000_000, 30_000_000), (2, 0, 0)]
    assert tables["latency"].is_empty()


def test_what_a_container_hides_is_said_and_not_counted_as_nothing() -> None:
    made = counts({"interrupts": b""}, {"interrupts": b""})
    assert made.denied == ["interrupts", "softirqs"]
    assert made.softirqs() is None
    assert made.tables()["totals"].is_empty()


def test_a_hostile_name_is_made_inert() -> None:
    raw = X86.replace(b"nvme0q0", b"evil\x1b[31m")
    (line,) = [line for line in lines(raw) if line.label == "24"]
    assert "\x1b" not in line.rest


@settings(derandomize=True, max_examples=200)
@given(st.binary(max_size=300))
def test_anything_can_be_read(junk: bytes) -> None:
    for line in lines(b"     CPU0  CPU1\n" + junk):
        assert set(line.counts) == {0, 1}
        action_names(line.rest)
