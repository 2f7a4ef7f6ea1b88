"""Groups of events on kernels that have more and less of them."""

from __future__ import annotations

import pytest

from whystall.tools.collect.ftrace.events import EVENTS, choose
from whystall.tools.collect.ftrace.options import GROUPS
from whystall.tools.contract.errors import ErrorCode, ToolError

ALL = {event for group in EVENTS.values() for event in group}


def test_every_group_has_events() -> None:
    assert set(EVENTS) == set(GROUPS)
    chosen = choose(GROUPS, ALL.__contains__)
    assert set(chosen.events) == ALL - set(EVENTS["futex"])  # all system calls are traced, these among them
    assert set(chosen.events.values()) == {""}
    assert chosen.missing == ()


def test_switches_are_always_traced() -> None:
    assert set(choose(["irq"], ALL.__contains__).events) == {*EVENTS["sched"], *EVENTS["irq"]}
    assert choose([], ALL.__contains__).events == choose(["sched"], ALL.__contains__).events


def test_events_that_are_not_there_are_named() -> None:
    without = ALL - {"irq/softirq_raise", "task/task_rename"}
    chosen = choose(["softirq"], without.__contains__)
    assert set(chosen.missing) == {"irq/softirq_raise", "task/task_rename"}
    assert set(chosen.missing).isdisjoint(chosen.events)


def test_newer_futex_calls_are_no_loss_where_they_do_not_exist() -> None:
    old = {event for event in ALL if not event.startswith("syscalls/") or event.endswith("_futex")}
    chosen = choose(["futex"], old.__contains__)
    assert {"syscalls/sys_enter_futex", "syscalls/sys_exit_futex"} <= set(chosen.events)
    assert chosen.missing == ()


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 202), ("aarch64", 98)])
def test_without_events_per_call_the_futex_calls_are_picked_by_number(machine: str, number: int) -> None:
    raw = {event for event in ALL if not event.startswith("syscalls/")}
    chosen = choose(["futex"], raw.__contains__, machine)
    assert chosen.events["raw_syscalls/sys_enter"].startswith(f"id == {number} || id == 449 ")
    assert chosen.events["raw_syscalls/sys_exit"] == chosen.events["raw_syscalls/sys_enter"]
    whole = choose(["futex", "syscalls"], raw.__contains__, machine)
    assert whole.events["raw_syscalls/sys_enter"] == ""


def test_an_unknown_machine_without_events_per_call_misses_futexes() -> None:
    raw = {event for event in ALL if not event.startswith("syscalls/")}
    assert "syscalls/sys_enter_futex" in choose(["futex"], raw.__contains__, "pdp11").missing


def test_a_kernel_without_switches_is_refused() -> None:
    with pytest.raises(ToolError) as caught:
        choose(["irq"], (ALL - {"sched/sched_switch"}).__contains__)
    assert caught.value.code is ErrorCode.PROBE_FAILED


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(ToolError, match=r"'memory'.*valid: sched, irq"):
        choose(["sched", "memory"], ALL.__contains__)
