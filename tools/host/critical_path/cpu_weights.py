"""Whether a process gets less CPU time than those it competes with because its weight is lower. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.host.common.findings import finding, window
from whystall.tools.host.common.timelines import Timeline
from whystall.tools.host.critical_path.rows import Row
from whystall.tools.host.critical_path.world import World
from whystall.tools.recording.store import Recording

# Why a thread lacks a CPU, if weights can matter.
_COMPETES = ("others", "confined", "own", "own_pinned", "own_cpuset", "own_shared")
# Neighbours count from this ratio of their weight to the own one; they must have had the CPU in this share of the
# waits.
_HEAVIER = 2.0
# Shorter rows are not examined.
_LEAST = 0.1
_MOSTLY = 0.5


class Level(NamedTuple):
    """A cgroup on the way from the root to a process, or the process itself (`group` empty), and its weight."""

    group: str
    weight: int
    setting: str
    value: int


def weights_of(recording: Recording) -> dict[int, list[Level]]:
    """Return the levels of each process, and of each thread of the target with a weight of its own, from the root down;
    empty if unknown."""
    table = recording.find("proc.cpu_weights")
    if table is None:
        return {}
    found: dict[int, list[Level]] = {}
    for pid, *level in table.select("pid", "group", "weight", "setting", "value").iter_rows():
        found.setdefault(pid, []).append(Level(*level))
    for levels in found.values():  # the process itself comes last
        levels.sort(key=lambda level: (not level.group, level.group.count("/"), level.group))
    return found


def compete_at(own: list[Level], other: list[Level]) -> tuple[Level, Level]:
    """Return the two siblings by whose weights two processes share CPU time: the first levels that differ."""
    for one, another in zip(own, other, strict=False):
        if one.group != another.group or not one.group:
            return one, another
    return own[-1], other[-1]


def weight_findings(recording: Recording, world: World, line: Timeline, rows: Iterable[Row]) -> list[Finding]:
    """Return a finding if processes of higher weight kept thread `line`, or one at the end of its chains, from the
    CPUs."""
    found: dict[int, Finding] = {}
    for row in rows:
        root = row.root()
        if row.total_ns < _LEAST * world.window_ns:
            continue  # it must not stand for a longer wait of another row
        if row.code == "cpu" and row.detail in _COMPETES:
            who, by = line, row.by
        elif root is not None and root[0].code == "cpu" and root[0].detail in _COMPETES:
            who = world.lines[root[0].tid]
            by = Counter()
            for wait in who.waits:
                if wait.ran_pid > 0:
                    by[wait.ran_pid, wait.ran_comm] += wait.end_ns - wait.awake_ns
        else:
            continue
        if who.tid not in found and (one := outweighed(recording, who, by, world.window_ns)) is not None:
            if who is not line:
                one = one.model_copy(update={"attributes": {**one.attributes, "waiter": f"{line.comm} ({line.tid})"}})
            found[who.tid] = one
    return list(found.values())


def outweighed(recording: Recording, line: Timeline, by: Counter[tuple[int, str]], window_ns: int) -> Finding | None:
    """Return the finding that processes of higher weight had the CPUs for which thread `line` waited; None if they had
    them for less than half of that time. `by`: that time, by process."""
    known = weights_of(recording)
    single = line.tid != line.pid and line.tid in known  # other threads of its process may weigh more
    own = known.get(line.tid) or known.get(line.pid)
    if not own:
        return None
    heavier: Counter[tuple[int, str]] = Counter()
    at: dict[int, tuple[Level, Level]] = {}
    others = 0
    for (pid, comm), took in by.items():
        if pid == line.pid and not single:
            continue
        others += took
        if pid in known:
            level, other = compete_at(own, known[pid])
            if other.weight >= _HEAVIER * level.weight:
                heavier[pid, comm] += took
                at[pid] = level, other
    if not heavier or heavier.total() < _MOSTLY * others:
        return None
    (pid, comm), _ = heavier.most_common(1)[0]
    level, other = at[pid]
    attributes = {"setting": f"{level.setting} {level.value}", "neighbour": f"{comm} ({pid})"}
    attributes |= {"other_setting": f"{other.setting} {other.value}", "own_group": level.group}
    attributes |= {"other_group": other.group}
    return finding(
        "cpu.outweighed",
        Subject(type="thread", pid=line.pid, tid=line.tid, comm=line.comm, cgroup=level.group or None),
        window(window_ns),
        {"weight_ratio": other.weight / level.weight},
        Severity.MAJOR,
        {name: text for name, text in attributes.items() if text},
    )
