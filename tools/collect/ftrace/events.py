"""Groups of events, and which of them this host has. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from whystall.tools.collect.ftrace.options import GROUPS
from whystall.tools.contract.errors import ErrorCode, ToolError

_CALLS = ("raw_syscalls/sys_enter", "raw_syscalls/sys_exit")
_FUTEX = ("futex", "futex_waitv", "futex_wait", "futex_wake", "futex_requeue")
EVENTS: dict[str, tuple[str, ...]] = {
    "sched": (
        "sched/sched_switch",
        "sched/sched_waking",
        "sched/sched_wakeup",
        "sched/sched_wakeup_new",
        "sched/sched_migrate_task",
        "sched/sched_process_fork",
        "sched/sched_process_exec",
        "sched/sched_process_exit",
        "task/task_rename",
    ),
    "irq": ("irq/irq_handler_entry", "irq/irq_handler_exit"),
    "softirq": ("irq/softirq_entry", "irq/softirq_exit", "irq/softirq_raise"),
    "futex": tuple(f"syscalls/sys_{side}_{call}" for call in _FUTEX for side in ("enter", "exit")),
    "syscalls": _CALLS,
    "block": ("block/block_rq_insert", "block/block_rq_issue", "block/block_rq_complete"),
    "power": ("power/cpu_idle", "power/cpu_frequency"),
}
# Calls that older kernels lack; they are not reported as missing, since no program can make them.
_NEWER = frozenset(f"syscalls/sys_{side}_{call}" for call in _FUTEX[1:] for side in ("enter", "exit"))
# Number of futex per architecture, for kernels without events per system call. The newer calls have equal numbers.
_FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "loongarch64": 98}
_NEWER_NUMBERS = (449, 454, 455, 456)


@dataclass(frozen=True)
class Chosen:
    """Events to enable, as ``system/event``, each with a kernel filter or "". `missing`: not on this host."""

    events: dict[str, str]
    missing: tuple[str, ...]


def check_groups(groups: Collection[str]) -> None:
    """Raise `ToolError` (bad_argument) for an unknown group."""
    for group in groups:
        if group not in GROUPS:
            raise ToolError(
                ErrorCode.BAD_ARGUMENT, f"no group of events is called {group!r}", f"valid: {', '.join(GROUPS)}"
            )


def choose(groups: Collection[str], has: Callable[[str], bool], machine: str | None = None) -> Chosen:
    """Return the events of `groups` and ``sched``; `has` returns whether the host has an event.

    Raises `ToolError`: bad_argument for an unknown group, probe_failed if the kernel has no event for switches.
    """
    check_groups(groups)
    events: dict[str, str] = {}
    missing: list[str] = []
    for group in (g for g in GROUPS if g in groups or g == "sched"):
        if group == "futex":
            _choose_futex(has, "syscalls" in groups, machine or os.uname().machine, events, missing)
        else:
            _add(EVENTS[group], has, events, missing)
    if "sched/sched_switch" not in events:
        raise ToolError(
            ErrorCode.PROBE_FAILED, "this kernel does not report context switches", "use a kernel with event tracing"
        )
    return Chosen(events, tuple(missing))


def _choose_futex(
    has: Callable[[str], bool], all_calls: bool, machine: str, events: dict[str, str], missing: list[str]
) -> None:
    if all_calls and has(_CALLS[0]):  # already recorded
        return
    number = _FUTEX_NUMBER.get(machine)
    if not has(EVENTS["futex"][0]) and has(_CALLS[0]) and number is not None:
        chosen = " || ".join(f"id == {n}" for n in (number, *_NEWER_NUMBERS))
        events.update(dict.fromkeys(_CALLS, chosen))
    else:
        _add(EVENTS["futex"], has, events, missing)


def _add(names: Iterable[str], has: Callable[[str], bool], events: dict[str, str], missing: list[str]) -> None:
    for name in names:
        if has(name):
            events[name] = ""
        elif name not in _NEWER:
            missing.append(name)
