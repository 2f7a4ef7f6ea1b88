"""Waits that were too short to be recorded singly: only their totals by place are known. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from whystall.tools.host.common.places import Place
from whystall.tools.host.common.timelines import Timeline, Wait

if TYPE_CHECKING:
    from whystall.tools.host.critical_path.world import World

_MOSTLY = 0.5


def futex_codes(world: World, line: Timeline) -> dict[Place, str]:
    """Return what most of the recorded futex waits of each place are for; of short waits, the word is not known."""
    found: dict[Place, Counter[str]] = {}
    for wait in line.waits:
        if wait.syscall.startswith("futex"):
            found.setdefault(wait.place, Counter())[world.kind(line, wait).code] += 1
    return {place: counts.most_common(1)[0][0] for place, counts in found.items()}


def brief_waits(world: World, line: Timeline) -> tuple[Wait, str] | None:
    """Return one of the short waits of a thread, and what they are for, if they take most of its time between the
    recorded waits; else None: it ran. A thread that competes for the interpreter lock wakes up at every release."""
    total = sum(short.total_ns for short in line.short)
    if total <= _MOSTLY * (total + line.running_ns):
        return None
    wait = max(line.short, key=lambda short: short.total_ns).wait
    code = futex_codes(world, line).get(wait.place) if wait.syscall.startswith("futex") else None
    return wait, code or world.kind(line, wait).code
