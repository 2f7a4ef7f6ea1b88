"""Processes and threads that are kept from running: stopped by a signal, by a debugger, or in a frozen cgroup. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

HELD_STATES = MappingProxyType({"T": "stopped", "t": "traced", "F": "frozen"})
"""Kinds of waits (`path_codes.WAITS`) by state: of /proc/PID/stat, and F for a thread in a frozen cgroup."""
ENDED = "Z"
"""State of a process that has ended, and of whose end its parent has not taken note."""
HELD_WAITS = frozenset(HELD_STATES.values())


def held_state(row: Mapping[str, Any]) -> str:
    """Return the state, a key of `HELD_STATES`, of a row of ``objects.threads``; empty if the thread may run."""
    state = str(row["state"]).strip()
    if row["frozen"]:
        return "F"
    if state == "T" and row["tracer_pid"] > 0:
        return "t"
    return state if state in HELD_STATES else ""


def held_processes(rows: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Return why each process cannot run (a value of `HELD_STATES`), of those whose threads in `rows` are all held.

    A process some of whose threads are held by a debugger and some by a signal counts as traced.
    """
    states: dict[int, set[str]] = {}
    for row in rows:
        states.setdefault(row["pid"], set()).add(held_state(row))
    found = {}
    for pid, known in states.items():
        if "" not in known:
            found[pid] = HELD_STATES[next(state for state in ("F", "t", "T") if state in known)]
    return found
