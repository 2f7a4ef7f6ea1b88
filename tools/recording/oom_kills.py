"""Find which processes were killed for lack of memory, by the counters of their cgroups alone. Pure but `exit_signal`.

A cgroup counts the kills of its processes (``oom_kill`` of memory.events, in version 1 of memory.oom_control). A
process that vanished while the counter of its cgroup rose was killed if there are no more of them than kills; else
it is unknown which ones were.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

_EXIT_CODE = 49
"""Field of /proc/PID/stat after the name and its parenthesis: 52 of proc(5)."""
_MOST = 64
"""Most kills per cgroup that are listed."""


class Vanished(NamedTuple):
    """A process that was read and has ended. `cgroup`: of the memory controller; `anon_bytes`: when last read."""

    pid: int
    comm: str
    cgroup: str
    anon_bytes: int


def exit_signal(stat: Path) -> int | None:
    """Return the signal that ended a process which its parent has not waited for; 0: it exited; None: unknown."""
    try:
        fields = stat.read_bytes().rpartition(b")")[2].split()
        code = int(fields[_EXIT_CODE])
    except (OSError, IndexError, ValueError):
        return None
    # without permission the field is 0, as after exit(0)
    return code & 0x7F if code else None


def counted_kills(
    vanished: Sequence[Vanished],
    signals: Mapping[int, int | None],
    risen: Mapping[str, int],
    named: Iterable[str],
) -> list[tuple[Vanished | None, str]]:
    """Return the killed processes with their cgroups; None for a process that is unknown.

    Args:
        vanished: processes that have ended, without those in `named`.
        signals: of `exit_signal`, by pid; who was not ended by SIGKILL was not killed.
        risen: by how much the counters of the cgroups rose.
        named: the cgroup of each kill that the kernel's log names: these are left out.
    """
    left = dict(risen)
    for group in named:
        left[group] = left.get(group, 0) - 1
    found: list[tuple[Vanished | None, str]] = []
    for group, kills in sorted(left.items()):
        if kills <= 0:
            continue
        there = [one for one in vanished if one.cgroup == group and signals.get(one.pid) in (None, signal.SIGKILL)]
        known: list[Vanished | None] = list(there) if len(there) <= kills else []
        known += [None] * (kills - len(known))
        found += [(one, group) for one in known[:_MOST]]
    return found


def counted_in(tables: Mapping[str, pl.DataFrame]) -> list[tuple[Vanished | None, str]]:
    """Return the killed processes by the tables ``proc.processes`` and ``proc.memory``; none without them."""
    processes, groups = tables.get("proc.processes"), tables.get("proc.memory")
    if processes is None or groups is None or processes.is_empty() or groups.is_empty():
        return []
    counters = groups.filter(pl.col("oom_kills") >= 0).sort("at_ns", maintain_order=True).group_by("cgroup")
    risen = dict(counters.agg(pl.col("oom_kills").last() - pl.col("oom_kills").first()).iter_rows())
    risen = {group: kills for group, kills in risen.items() if kills > 0}
    if not risen:
        return []
    there = processes.filter(pl.col("cgroup").is_in(list(risen))).sort("at_ns", maintain_order=True)
    times = processes["at_ns"].sort().to_list()
    middle = (times[0] + times[-1]) // 2  # read at the start and at the end
    rss = pl.col("rss_bytes")
    by_pid = there.group_by("pid", maintain_order=True)
    ends = by_pid.agg(pl.all().exclude("rss_bytes").last(), rss.first(), left=rss.last())
    # missing at the end, or there as a zombie, which has no memory
    gone = ends.filter((pl.col("at_ns") < middle) | ((pl.col("left") == 0) & (rss > 0)))
    vanished = [Vanished(r["pid"], r["comm"], r["cgroup"], r["rss_bytes"]) for r in gone.iter_rows(named=True)]
    return counted_kills(vanished, {}, risen, ())


def killed(tables: Mapping[str, pl.DataFrame], pids: Collection[int]) -> str:
    """Return ``pid N (comm), cgroup PATH`` for a process of `pids` killed for lack of memory; empty for none."""
    found = [(one.pid, one.comm, group) for one, group in counted_in(tables) if one is not None]
    logged = tables.get("memory_use.oom_kills")
    if logged is not None:
        found = [(r["pid"], r["comm"], r["cgroup"]) for r in logged.iter_rows(named=True)] + found
    named = [f"pid {pid} ({comm}), cgroup {group or '/'}" for pid, comm, group in found if pid in pids]
    return named[0] if named else ""
