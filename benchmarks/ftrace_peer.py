"""The peer of `ftrace_read`: a straightforward parser with regular expressions, line by line.

It returns the same tables and columns, without detecting holes or hostile text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl

from whystall.tools.timeline.sched import TABLES

_HEAD = re.compile(r"^ *(.+)-(\d+) +(?:\( *(\d+|-+)\) +)?\[(\d+)\] +(?:(\S+) +)?(\d+)\.(\d+): (\w+): (.*)$")
_SWITCH = re.compile(
    r"prev_comm=(.*) prev_pid=(\d+) prev_prio=(-?\d+) prev_state=(\S+) ==> "
    r"next_comm=(.*) next_pid=(\d+) next_prio=(-?\d+)"
)
_WAKE = re.compile(r"comm=(.*) pid=(\d+) prio=(-?\d+)(?: success=\d)? target_cpu=(\d+)")
_MIGRATE = re.compile(r"comm=(.*) pid=(\d+) prio=(-?\d+) orig_cpu=(\d+) dest_cpu=(\d+)")
_IRQ = re.compile(r"irq=(\d+) (?:name=(.*)|ret=.*)")
_SOFTIRQ = re.compile(r"vec=(\d+) \[action=(\w+)\]")
_ENTER = re.compile(r"NR (-?\d+) \((\w+), (\w+), (\w+)")
_EXIT = re.compile(r"NR (-?\d+) = (-?\d+)")
_CONTEXT = {".": "task", "s": "softirq", "h": "hardirq", "H": "hardirq", "z": "nmi", "Z": "nmi"}
_KINDS = {"sched_waking": "waking", "sched_wakeup": "wakeup", "sched_wakeup_new": "new"}
_INTERRUPTS = {"softirq_entry", "softirq_exit", "irq_handler_entry", "irq_handler_exit"}


def read(path: Path) -> dict[str, pl.DataFrame]:
    """Return the tables of a trace in the kernel's plain format, with times of six decimals."""
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES}
    switches, wakeups, interrupts, calls = (rows[n] for n in ("switches", "wakeups", "interrupts", "syscalls"))
    names, latest = rows["names"], dict[int, str]()
    with path.open(errors="backslashreplace") as file:
        for line in file:
            head = _HEAD.match(line)
            if head is None:
                continue
            _, tid_text, group, cpu_text, flags, seconds, fraction, event, rest = head.groups()
            at = int(seconds) * 1_000_000_000 + int(fraction) * 1000
            tid, cpu = int(tid_text), int(cpu_text)
            if event == "sched_switch":
                if (found := _SWITCH.match(rest)) is None:
                    continue
                comm, prev, prio, state, next_comm, following, next_prio = found.groups()
                prev_tid, next_tid = int(prev), int(following)
                letter = state[0]
                switches.append((at, cpu, prev_tid, int(prio), letter, letter == "R", 0, next_tid, int(next_prio)))
                named = ((prev_tid, comm), (next_tid, next_comm))
            elif event in _KINDS:
                if (found := _WAKE.match(rest)) is None:
                    continue
                comm, woken, prio, target = found.groups()
                context = _CONTEXT.get(flags[2], "") if flags else ""
                wakeups.append((at, cpu, _KINDS[event], tid, context, int(woken), int(prio), int(target)))
                named = ((int(woken), comm),)
            elif event in _INTERRUPTS:
                soft, entry = event.startswith("soft"), event.endswith("entry")
                if (found := (_SOFTIRQ if soft else _IRQ).match(rest)) is None:
                    continue
                interrupts.append((at, cpu, tid, soft, entry, int(found[1]), found[2] or ""))
                continue
            elif event == "sys_enter":
                if (found := _ENTER.match(rest)) is None:
                    continue
                values = [int(value, 16) for value in found.groups()[1:]]
                values = [value - (value >> 63 << 64) for value in values]
                calls.append((at, cpu, tid, True, int(found[1]), "", *values, -1))
                continue
            elif event == "sys_exit":
                if (found := _EXIT.match(rest)) is None:
                    continue
                calls.append((at, cpu, tid, False, int(found[1]), "", -1, -1, -1, int(found[2])))
                continue
            elif event == "sched_migrate_task":
                if (found := _MIGRATE.match(rest)) is None:
                    continue
                comm, moved, _, source, target = found.groups()
                rows["migrations"].append((at, cpu, int(moved), int(source), int(target)))
                named = ((int(moved), comm),)
            else:
                continue
            for one, comm in named:
                if latest.get(one) != comm:
                    latest[one] = comm
                    names.append((at, one, int(group) if group and group.isdecimal() and one == tid else -1, comm))
    return {name: pl.DataFrame(rows[name], schema=schema, orient="row") for name, schema in TABLES.items()}
