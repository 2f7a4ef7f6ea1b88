"""With which weights processes share the CPUs: of the cgroups that they are in, and their own.

Siblings share CPU time in proportion to their weights: cgroups by cpu.shares (version 1) or cpu.weight (version 2),
threads by nice. Documentation/scheduler/sched-design-CFS.rst and admin-guide/cgroup-v2.rst of the kernel, sched(7).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.proc_cgroup import Hierarchies, Place, read_number

_MOST_PROCESSES = 64
_MOST_THREADS = 64
# One that used less of a CPU than this kept nobody waiting.
_LEAST_SHARE = 0.02
_NICE_0 = 1024
# kernel/sched/sched.h: WEIGHT_IDLEPRIO, of SCHED_IDLE and of cgroups with cpu.idle
_IDLE = 3
_IDLE_POLICY = 5
# A step of nice changes the weight by 25 % (kernel/sched/core.c, sched_prio_to_weight).
_STEP = 1.25
# cpu.weight 100 is cpu.shares 1024
_DEFAULT_WEIGHT = 100
Row = tuple[object, ...]


def nice_weight(nice: int) -> int:
    """Return the weight of a thread by its nice value; 1024 for 0."""
    return max(round(_NICE_0 / _STEP**nice), 1)


class WeightReader:
    """Rows of ``proc.cpu_weights``; call `look` at the start and at the end of a window."""

    def __init__(self, hierarchies: Hierarchies, read: Callable[[str], bytes], clock: Callable[[], int]) -> None:
        """`read`: a file below /proc, by its path."""
        self._hierarchies = hierarchies
        self._read = read
        self._clock = clock
        self._before: dict[int, tuple[int, int]] = {}
        self._began = 0

    def look(
        self,
        processes: Iterable[parse.PidStat],
        memberships: Mapping[int, Mapping[str, bytes]],
        target: Collection[int],
        threads: Mapping[int, tuple[int, parse.PidStat]],
    ) -> list[Row]:
        """Return the rows, none at the first look: of `target`, and of other processes that used CPU time since then.

        `memberships`: the cgroups of processes by pid (see `CgroupView.membership`); `threads`: of the target, those
        whose policy or nice value differs from that of their process, with its pid, by tid.
        """
        found = {stat.pid: stat for stat in processes if stat.pid in memberships}
        used = {pid: (stat.start_ticks, stat.user_ns + stat.system_ns) for pid, stat in found.items()}
        before, self._before = self._before, used
        if not before:
            self._began = self._clock()
            return []
        least = _LEAST_SHARE * (self._clock() - self._began)
        grown = {
            pid: used_ns - (before[pid][1] if pid in before and before[pid][0] == start else 0)
            for pid, (start, used_ns) in used.items()
        }
        chosen = [pid for pid in target if pid in found]
        chosen += sorted((p for p in grown if grown[p] >= least and p not in target), key=lambda p: -grown[p])
        grouped = self._read_number("sys/kernel/sched_autogroup_enabled") == 1
        rows: list[Row] = []
        for pid in chosen[:_MOST_PROCESSES]:
            rows += self._rows(found[pid], memberships[pid], grouped=grouped)
        for pid, stat in list(threads.values())[:_MOST_THREADS]:
            if pid in found:
                rows += self._rows(stat, memberships[pid], grouped=grouped)
        return rows

    def _rows(self, stat: parse.PidStat, membership: Mapping[str, bytes], *, grouped: bool) -> list[Row]:
        now, levels = self._clock(), []
        for place in self._hierarchies.places([membership]):
            if place.path and place.cpu is not None and (known := _of_cgroup(place)) is not None:
                levels.append((place.name, *known))
        if not levels and grouped and (session := self._session(stat.pid)) is not None:
            levels.append(session)
        idle = stat.policy == _IDLE_POLICY
        own = ("", _IDLE if idle else nice_weight(stat.nice), "SCHED_IDLE" if idle else "nice", stat.nice)
        return [(now, stat.pid, stat.comm, *level) for level in (*levels, own)]

    def _session(self, pid: int) -> tuple[str, int, str, int] | None:
        """Return the group of a session, which the kernel makes for processes in no cgroup of their own (sched(7)).

        ``/autogroup-42 nice 0``
        """
        try:
            words = self._read(f"{pid}/autogroup").split()
            name, nice = words[0].decode("ascii"), int(words[2])
        except (OSError, ValueError, IndexError):
            return None
        return name, nice_weight(nice), "autogroup nice", nice

    def _read_number(self, name: str) -> int:
        try:
            return int(self._read(name))
        except (OSError, ValueError):
            return parse.UNKNOWN


def _of_cgroup(place: Place) -> tuple[int, str, int] | None:
    """Return weight, name and value of the setting; None if the cgroup has none."""
    base = place.cpu or b""
    if read_number(base + b"/cpu.idle") == 1:
        return _IDLE, "cpu.idle", 1
    name = "cpu.shares" if place.version == 1 else "cpu.weight"
    value = read_number(base + b"/" + name.encode())
    if value <= 0:
        return None
    return (value if place.version == 1 else max(value * _NICE_0 // _DEFAULT_WEIGHT, 1)), name, value
