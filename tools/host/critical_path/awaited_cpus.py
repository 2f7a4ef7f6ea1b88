"""Why threads that another one waits for had no CPU: the quota of their cgroup, or who ran instead. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import polars as pl

from whystall.tools.contract.findings import Finding, Subject
from whystall.tools.host.common.findings import finding, severity, window
from whystall.tools.host.common.path_codes import RUNNING
from whystall.tools.host.common.timelines import Timeline
from whystall.tools.host.critical_path.cpu_waits import throttled_ns, who_had_cpus
from whystall.tools.host.critical_path.rows import PINNED, Row
from whystall.tools.host.critical_path.walk import THROTTLED_NS, Step
from whystall.tools.host.critical_path.world import World
from whystall.tools.recording.store import Recording

# Share of a thread's long waits for a CPU that the throttled time of its cgroup must cover.
_COVERS = 0.5
# Details of waits for one of the few CPUs that a thread may use.
_NARROW = (PINNED, "own_pinned", "own_cpuset")
# Share of the window in which the chain must end in a quota for a finding.
_LEAST_PCT = 3.0


class Bound(NamedTuple):
    """What may keep a process outside of the target from the CPUs; counters are of the window. `cgroup` empty: no
    quota. `cpus`: the only ones that it may use; empty: all."""

    cgroup: str
    throttled_ns: int
    periods: int
    throttled_periods: int
    quota_cpus: float | None
    cpus: str


def bounds_of(recording: Recording) -> dict[int, Bound]:
    """Return the bounds of processes outside of the target, by pid."""
    table = recording.find("proc.cpu_bounds")
    if table is None:
        return {}
    found: dict[int, Bound] = {}
    counters = ("throttled_ns", "periods", "throttled_periods")
    grown = [(pl.col(name).last() - pl.col(name).first()).alias(name) for name in counters]
    last = [pl.col(name).last() for name in ("quota_us", "period_us", "cpus")]
    for row in table.sort("at_ns").group_by("pid", "cgroup").agg(*grown, *last).iter_rows(named=True):
        quota = row["quota_us"] / row["period_us"] if row["quota_us"] > 0 and row["period_us"] > 0 else None
        throttled, periods, hit = (int(row[name]) for name in counters)
        bound = Bound(row["cgroup"], throttled, periods, hit, quota, row["cpus"])
        if row["pid"] not in found or bound.throttled_ns > found[row["pid"]].throttled_ns:
            found[row["pid"]] = bound
    return found


def throttled_processes(recording: Recording, world: World, bounds: dict[int, Bound]) -> frozenset[int]:
    """Return the processes whose throttled time covers the long waits of their threads for a CPU."""
    own = throttled_ns(recording)
    longest: Counter[int] = Counter()
    for line in world.lines.values():
        waited = (wait.end_ns - wait.awake_ns for wait in line.waits)
        longest[line.pid] = max(longest[line.pid], sum(took for took in waited if took >= THROTTLED_NS))
    found = set()
    for pid, took in longest.items():
        counted = max(own if pid in world.target else 0, bounds[pid].throttled_ns if pid in bounds else 0)
        if counted > 0 and counted >= _COVERS * took:
            found.add(pid)
    return frozenset(found)


def explain_chain_ends(recording: Recording, world: World, rows: Sequence[Row], bounds: dict[int, Bound]) -> None:
    """Set `detail` and `object` of the steps of the rows' chains that lack a CPU: why, and who ran instead, or the only
    CPUs that the thread may use."""
    known: dict[int, tuple[str, str]] = {}
    for row in rows:
        for chain in [chain for chain in row.chains if chain and chain[-1].code == "cpu"]:
            line = world.lines.get(chain[-1].tid)
            if line is None:
                continue
            if line.tid not in known:
                known[line.tid] = _why(recording, world, line, bounds)
            detail, object = known[line.tid]
            took = row.chains.pop(chain)
            named = (*chain[:-1], chain[-1]._replace(detail=detail, object=object))
            row.chains[named] += took
    for row in rows:
        _spread_over_workers(recording, world, row, known, bounds)


def _spread_over_workers(
    recording: Recording, world: World, row: Row, known: dict[int, tuple[str, str]], bounds: dict[int, Bound]
) -> None:
    """Let workers that count as one, and share CPUs to which they are bound while others idle, lack a CPU as long as
    they do together: who ends a wait runs before it, while the others wait for their turn."""
    lines = [world.lines[tid] for tid in row.workers() if tid in world.lines]
    if len(lines) < 2 or row.code == "events":
        return
    for line in lines:
        known.setdefault(line.tid, _why(recording, world, line, bounds))
    lacks = sum(_runnable_ns(line) for line in lines if known[line.tid][0] == PINNED)
    share = lacks / max(lacks + sum(line.running_ns for line in lines), 1)
    tids = {line.tid for line in lines}
    ends = {chain: took for chain, took in row.chains.items() if chain and chain[-1].tid in tids}
    runs = {chain: took for chain, took in ends.items() if chain[-1].code == RUNNING}
    lacking = sum(took for chain, took in ends.items() if chain[-1].detail == PINNED)
    moved = share * (sum(runs.values()) + lacking) - lacking
    for chain, took in runs.items() if moved > 0 else ():
        part = int(took * moved / sum(runs.values()))
        step = chain[-1]._replace(code="cpu", mode="", detail=PINNED, object=known[chain[-1].tid][1])
        if known[step.tid][0] == PINNED:
            row.chains[chain] -= part
            lacked: tuple[Step, ...] = (*chain[:-1], step)
            row.chains[lacked] += part


def _runnable_ns(line: Timeline) -> int:
    return sum(wait.end_ns - wait.awake_ns for wait in line.waits)


def _why(recording: Recording, world: World, line: Timeline, bounds: dict[int, Bound]) -> tuple[str, str]:
    waits = [wait for wait in line.waits if wait.end_ns > wait.awake_ns]
    row = Row("cpu", total_ns=sum(wait.end_ns - wait.awake_ns for wait in waits))
    for wait in waits:
        if wait.ran_pid > 0:
            row.by[wait.ran_pid, wait.ran_comm] += wait.end_ns - wait.awake_ns
    detail = who_had_cpus(recording, world, line, row)
    if detail in _NARROW:
        return detail, f"CPU {row.cpus}"
    bound = bounds.get(line.pid)
    if detail == "others" and bound is not None and bound.cpus:
        detail = "confined"
    others: Counter[tuple[int, str]] = Counter(
        {key: took for key, took in row.by.items() if key[0] not in world.ranks.job(line.pid)}
    )
    if detail in ("", "own") or not others:
        return detail, ""
    (pid, comm), _ = others.most_common(1)[0]
    return detail, f"{comm} ({pid})"


def quota_findings(world: World, line: Timeline, rows: Iterable[Row], bounds: dict[int, Bound]) -> list[Finding]:
    """Return a finding for each cgroup whose quota holds back a process at the end of a chain of thread `line`.

    Its share of the window is the time in which the chain ends in that process: throttled, or running at last.
    """
    held: Counter[int] = Counter()
    for row in rows:
        root = row.root()
        if root is not None and root[0].code == "quota" and (other := world.lines.get(root[0].tid)) is not None:
            held[other.pid] += root[1]
    found = []
    for pid, took in held.items():
        share = 100.0 * took / world.window_ns
        bound = bounds.get(pid)
        if share < _LEAST_PCT or bound is None:
            continue
        comm = next((one.comm for one in world.lines.values() if one.tid == pid), "")
        metrics = {
            "throttled_s": bound.throttled_ns / 1e9,
            "window_pct": min(share, 100.0),
            "throttled_periods": float(bound.throttled_periods),
            "periods": float(bound.periods),
            "quota_cpus": bound.quota_cpus,
        }
        found.append(
            finding(
                "cgroup.cpu_throttled",
                Subject(type="cgroup", cgroup=bound.cgroup, pid=pid, comm=comm or None),
                window(world.window_ns),
                metrics,
                severity(share),
                {"waiter": f"{line.comm} ({line.tid})"},
            )
        )
    return found
