"""Exclude interrupts: their number depends on the host, not on the program.

On a busy host the scheduler's interrupts (reschedule IPIs, timers) were 5 % of the samples of a program that had none
on an idle host. They hit all functions in proportion, so the other shares stay the same. Page faults and other
exceptions belong to the program.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.tools.stacks.tree import Part

# The kernel's entries for interrupts: arch/x86/include/asm/idtentry.h since 5.8, arch/x86/entry/entry_64.S before,
# arch/arm64/kernel/entry.S since 5.14 and before.
_ENTRY = re.compile(
    r"asm_sysvec_\w+|sysvec_\w+|asm_common_interrupt|asm_spurious_interrupt|common_interrupt|do_IRQ|ret_from_intr|"
    r"(apic_timer|reschedule|call_function|call_function_single|irq_work)_interrupt|"
    r"el0t_(64|32)_irq(_handler)?|el1[ht]_64_irq(_handler)?|el[01]_irq(_naked)?|gic_handle_irq"
)
# The return from an interrupt, after its entry left the stack; within an exception it belongs to the exception.
_EXIT = re.compile(r"irqentry_exit(_to_user_mode)?")


def without_interrupts(part: Part) -> tuple[Part, float]:
    """Return `part` without the samples in interrupts, and their share of the event's weight in percent."""
    profile = part.profile
    kernel = (profile.frames["kind"] == "kernel").to_numpy()
    entries, exits = (kernel & _matches(profile.frames["name"], what) for what in (_ENTRY, _EXIT))
    if not (entries | exits).any():
        return part, 0.0
    parent, frame = profile.stacks["parent"].to_numpy(), profile.stacks["frame"].to_numpy()
    outermost = (parent < 0) | ~kernel[frame[np.maximum(parent, 0)]]
    inside = entries[frame] | (exits[frame] & outermost)
    while True:  # one round per level of calls
        more = inside | (inside[np.maximum(parent, 0)] & (parent >= 0))
        if (more == inside).all():
            break
        inside = more
    samples = profile.samples
    stack = samples["stack"].to_numpy()
    away = (stack >= 0) & inside[np.maximum(stack, 0)] & (samples["event"].to_numpy() == part.event)
    whole = float(samples.filter(pl.col("event") == part.event)["weight"].sum())
    taken = float(samples.filter(pl.Series(away))["weight"].sum())
    if not taken or taken == whole:
        return part, 100.0 * taken / whole if whole else 0.0
    tables = {**profile.tables, "samples": samples.filter(pl.Series(~away))}
    return replace(part, profile=replace(profile, tables=tables)), 100.0 * taken / whole


def _matches(names: pl.Series, what: re.Pattern[str]) -> NDArray[np.bool_]:
    return np.array([what.fullmatch(name) is not None for name in names], dtype=np.bool_)
