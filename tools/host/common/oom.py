"""Read out-of-memory kills from ``memory_use``, else from the counters in ``proc``."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import polars as pl

from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.host.common.findings import finding, window
from whystall.tools.recording.oom_kills import counted_in
from whystall.tools.recording.store import Recording

HOST = "host"
"""Name of the host's memory in fields for cgroups."""
# Least share of its limit that a cgroup used at its fullest reading, if it ran out of memory.
_FULL = 0.8
_MOST = 8
# Kills of processes of one name and cgroup that are listed.
_ALIKE = 2


@dataclass(frozen=True)
class Kill:
    """An out-of-memory kill. `pid` None: unknown. `limit_of`: the cgroup whose limit was reached, `HOST`, or empty."""

    at_ns: int
    pid: int | None
    comm: str | None
    cgroup: str
    limit_of: str
    limit_bytes: int | None
    anon_bytes: int | None


def kills(recording: Recording) -> list[Kill]:
    """Return the kills in `recording`, in order of time."""
    sizes = _peaks(recording)
    found = []
    if recording.has("memory_use"):
        for row in recording.table("memory_use.oom_kills").sort("at_ns").iter_rows(named=True):
            limit_of = row["limit_cgroup"] or (HOST if row["source"] == "log" else _fullest(row["cgroup"], sizes))
            known = row["pid"] >= 0
            found.append(
                Kill(
                    at_ns=row["at_ns"],
                    pid=row["pid"] if known else None,
                    comm=row["comm"] if known else None,
                    cgroup=row["cgroup"],
                    limit_of=limit_of,
                    limit_bytes=sizes.get(limit_of, (0, None))[1],
                    anon_bytes=row["anon_bytes"] if row["anon_bytes"] >= 0 else None,
                )
            )
        return found
    for one, group in counted_in(recording.tables()):
        limit_of = _fullest(group, sizes)
        found.append(
            Kill(
                at_ns=recording.manifest.window_ns,  # at the latest
                pid=one.pid if one else None,
                comm=one.comm if one else None,
                cgroup=group,
                limit_of=limit_of,
                limit_bytes=sizes.get(limit_of, (0, None))[1],
                anon_bytes=one.anon_bytes if one else None,
            )
        )
    return found


def findings(recording: Recording, found: list[Kill]) -> list[Finding]:
    """Return a finding per killed process, and one per cgroup whose killed processes are unknown.

    The share of the window is the time after the kill, the whole window if the target was killed; of other processes
    there is none. Of several that have the same name and cgroup, two are listed.
    """
    manifest = recording.manifest
    whole = manifest.window_ns
    made: list[Finding] = []
    listed: Counter[tuple[str | None, str]] = Counter()
    for kill in [kill for kill in found if kill.pid is not None]:
        in_target = kill.pid in manifest.target.pids
        listed[kill.comm, kill.cgroup] += 1
        if len(made) >= _MOST or (listed[kill.comm, kill.cgroup] > _ALIKE and not in_target):
            continue
        lost = 100.0 if in_target and manifest.target_exited else 100 * (whole - kill.at_ns) / max(whole, 1)
        share = {"window_pct": lost if in_target else None}
        metrics = {"anon_bytes": kill.anon_bytes, "limit_bytes": kill.limit_bytes, **share}
        subject = Subject(type="process", pid=kill.pid, comm=kill.comm, cgroup=kill.cgroup or None)
        limit = {"limit_of": kill.limit_of} if kill.limit_of else {}
        made.append(finding("memory.oom_kill", subject, window(whole), metrics, Severity.CRITICAL, limit))
    groups: dict[str, list[Kill]] = {}
    for kill in found:
        if kill.pid is None:
            groups.setdefault(kill.cgroup, []).append(kill)
    for group, unknown in list(groups.items())[:_MOST]:
        subject = Subject(type="cgroup", cgroup=group)
        counts = {"count": len(unknown), "limit_bytes": unknown[0].limit_bytes}
        limit = {"limit_of": unknown[0].limit_of} if unknown[0].limit_of else {}
        made.append(finding("memory.oom_kills", subject, window(whole), counts, Severity.MAJOR, limit))
    return made


def _peaks(recording: Recording) -> dict[str, tuple[int, int | None]]:
    """Return the largest use and the limit of each cgroup that has a limit, and of the host."""
    tables = recording.tables()
    if "memory_use.groups" in tables:
        frame, used, limit = tables["memory_use.groups"], "used_bytes", "limit_bytes"
    elif "proc.cgroups" in tables:
        frame, used, limit = tables["proc.cgroups"], "memory_bytes", "memory_limit_bytes"
    else:
        return {}
    rows = frame.filter(pl.col(limit) > 0).group_by("cgroup").agg(pl.col(used).max(), pl.col(limit).last())
    return {group or HOST: (most, bound) for group, most, bound in rows.iter_rows()}


def _fullest(cgroup: str, sizes: dict[str, tuple[int, int | None]]) -> str:
    """Return the one of `cgroup`, its ancestors and the host that was nearest to its limit; empty if none was near."""
    within = [name for name in sizes if name == HOST or f"{cgroup}/".startswith(f"{name.rstrip('/')}/")]
    shares = {name: sizes[name][0] / (sizes[name][1] or 1) for name in within}
    # cgroup v1 reports the limit of an ancestor: of equal ones use the outermost
    best = max(shares, key=lambda name: (shares[name], -len(name)), default="")
    return best if best and shares[best] >= _FULL else ""
