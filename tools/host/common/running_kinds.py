"""Classify how a thread runs, by the stacks of a sample. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from whystall.tools.host.common.places import Place
from whystall.tools.host.common.wait_kinds import SWAPS, Kind, kernel_names

_ENTRY = re.compile(r"__(?:x64|arm64|se|do)_sys_(?P<call>\w+)")
# mm/memory.c, mm/huge_memory.c
_FAULT_MODES = (("swap_in", SWAPS), ("copy", ("wp_page_copy", "do_wp_page", "do_huge_pmd_wp_page")))
_FAULTS = frozenset(
    {"handle_mm_fault", "do_user_addr_fault", "asm_exc_page_fault", "do_page_fault", "__handle_mm_fault"}
)
# pthread_spin_lock, SpinLock::Lock; not spin_unlock
_SPIN_LOCK = re.compile(r"spin_?lock", re.I)
_INTERRUPTS = ("asm_sysvec_", "asm_common_interrupt", "common_interrupt", "handle_softirqs", "__do_softirq", "irq_exit")


def spinning_wait(place: Place) -> str:
    """Return what a running thread waits for (`path_codes.WAITS`): synchronising calls of accelerators poll the device
    in a loop; a spin lock is tried in a loop. Empty: it does not wait."""
    if place.in_device_call:
        return "device"
    return "lock" if place.native and _SPIN_LOCK.search(place.native[0]) else ""


def running_kind(place: Place, kernel: Sequence[str]) -> Kind:
    """Return how a thread runs in a sample: its mode (`path_codes.MODES`), and the system call it is in."""
    names = kernel_names(kernel)
    entry = next((found["call"] for name in names if (found := _ENTRY.fullmatch(name))), "")
    if entry == "sched_yield":
        return Kind("spin", entry)
    if not entry and any(name in _FAULTS for name in names):
        return Kind(next((mode for mode, marks in _FAULT_MODES if any(name in marks for name in names)), "fault"))
    if not entry and any(name.startswith(_INTERRUPTS) for name in names):
        return Kind("interrupt")
    if entry:
        return Kind("system", entry)
    if place.in_collector:
        return Kind("garbage_collection")
    return Kind("user")
