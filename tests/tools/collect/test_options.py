"""Options of collectors: defaults, merging, and what a manifest stores of them."""

from __future__ import annotations

import pytest

from whystall.tools.collect.engines import ENGINES
from whystall.tools.collect.options import (
    SAMPLE_NS,
    BlockOptions,
    FtraceOptions,
    SampleOptions,
    SwitchOptions,
    SyscallOptions,
)
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.recording.collector import Need, Options, merge_needs


@pytest.mark.parametrize(
    ("one", "other", "merged"),
    [
        (SyscallOptions(min_ns=5), SyscallOptions(min_ns=7), SyscallOptions(min_ns=5)),
        (SyscallOptions(min_ns=10**9), Options(), SyscallOptions()),
        (SwitchOptions(9, wakers=True), SwitchOptions(8, python=True), SwitchOptions(8, wakers=True, python=True)),
        (SampleOptions(10**9), SampleOptions(), SampleOptions(SAMPLE_NS)),
        (FtraceOptions(cpus=0b0011), FtraceOptions(cpus=0b0110), FtraceOptions(cpus=0b0111)),
        (FtraceOptions(frozenset({"irq"}), 1), FtraceOptions(), FtraceOptions(frozenset({"irq"}))),
        (FtraceOptions(only_target=True), FtraceOptions(), FtraceOptions()),
        (FtraceOptions(only_target=True), FtraceOptions(only_target=True), FtraceOptions(only_target=True)),
        (FtraceOptions(buffer_kb=64), FtraceOptions(buffer_kb=128), FtraceOptions(buffer_kb=128)),
    ],
)
def test_merging_serves_both(one: Options, other: Options, merged: Options) -> None:
    assert merge_needs([Need("a", one), Need("a", other)]) == {"a": merged}
    assert merge_needs([Need("a", other), Need("a", one)]) == {"a": merged}


def test_a_manifest_stores_numbers() -> None:
    assert SwitchOptions(wakers=True).as_dict() == {"min_ns": 1_000_000, "wakers": 1}
    assert SyscallOptions(min_ns=0).as_dict() == {"min_ns": 0}
    assert FtraceOptions(frozenset({"irq", "block"}), cpus=2).as_dict() == {"block": 1, "irq": 1, "cpus": 2}
    assert Options().as_dict() == {}


def test_options_of_another_collector_are_the_defaults() -> None:
    assert BlockOptions.of({"block": Options()}, "block") == BlockOptions()
    assert BlockOptions.of({}, "block") == BlockOptions()
    assert BlockOptions.of({"block": BlockOptions(7)}, "block").min_ns == 7


def test_every_engine_serves_collectors_with_tables() -> None:
    assert {name for make in ENGINES for name in make().serves} <= COLLECTORS.keys()
