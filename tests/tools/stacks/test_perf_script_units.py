"""What ``perf script`` writes and what we write like it: units, clocks, names of events."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.readers.perf_script import read
from whystall.tools.stacks.writers.text import perf_script


@pytest.mark.parametrize("at", [1_795_321_985_151_487_196, 99_151_487_196])
def test_what_we_write_of_an_accelerator_is_read_again(tmp_path: Path, at: int) -> None:
    """Instants of the wall clock have ten digits of seconds; perf has no event in which a device's work is counted."""
    made = Builder()
    event, thread = made.event("device", "ns"), made.thread(7, 7, "train")
    for number in range(5):
        stack = made.stack([made.frame("step"), made.frame("GPU:gemm", kind="device")])
        made.sample(stack, event, 1000.0 + number, at_ns=at + 5000 * number, thread=thread)
    path = tmp_path / "x.perf.txt"
    perf_script(made.profile("kineto"), 0, path)
    again = read(path)
    assert again.events.row(0)[1:] == ("device", "ns", 0.0)
    assert again.samples["weight"].sum() == 5010
    assert again.samples["at_ns"].max() - again.samples["at_ns"].min() == 20_000


def test_how_exactly_the_place_is_reported_is_not_what_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "x.perf.txt"
    path.write_text("a 1/1 1.000001: 10101010 cpu-clock:pppH: \n\t  1f work (/bin/a)\n\n", encoding="utf-8")
    assert read(path).events.row(0)[1:] == ("cpu-clock", "ns", 10101010.0)
