"""Aggregate the page cache tables of a recording per process and series of files, per cgroup and for the host.

Counts are base pages, as in the kernel. A *scope* is the set of processes that share memory: the innermost cgroup with
a limit, or the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import polars as pl

from whystall.tools.contract.result import Model
from whystall.tools.host.common.cache_uses import Use, faults_of, residency_of, uses_of
from whystall.tools.host.common.host_counters import HostCounters
from whystall.tools.recording.store import Recording

CACHE = "page_cache"
HOST = "/"
_KSWAPD = re.compile(r"kswapd\d+")
_PAGE = 4096
_Row = dict[str, Any]


class CgroupRow(Model):
    """A memory cgroup at the end of the window, and rates over it. Null: not reported, or no limit."""

    version: int
    usage_bytes: int | None
    limit_bytes: int | None
    anon_bytes: int | None
    file_bytes: int | None
    dirty_bytes: int | None
    limit_hit_rate: float | None
    refault_rate: float | None
    reclaim_rate: float | None
    psi_some_pct: float | None
    oom_kills: int | None
    cgroup: str


class Host(Model):
    """The host. Rates are pages per second: `reclaim_rate` for host memory, `cgroup_reclaim_rate` at cgroup limits.

    `dirty_bytes`: the largest reading.
    """

    kswapd_cpu_pct: float | None = None
    reclaim_rate: float | None = None
    cgroup_reclaim_rate: float | None = None
    refault_rate: float | None = None
    psi_some_pct: float | None = None
    available_bytes: int | None = None
    dirty_bytes: int | None = None
    dirty_limit_bytes: int | None = None


@dataclass(frozen=True)
class Cgroup:
    """A memory cgroup over the window. None: not reported."""

    path: str
    row: CgroupRow
    limit_hits: int | None
    refaults: int | None
    reclaimed: int | None


@dataclass(frozen=True)
class Stall:
    """Time that one thread lost to one cause (`what`), on one file if the cause is about a file. Nanoseconds."""

    pid: int
    tid: int
    comm: str
    what: str
    path: str
    count: int
    total_ns: int
    max_ns: int
    pages: int
    at_ns: int
    in_flight: bool


@dataclass(frozen=True)
class Measures:
    """What the window measured.

    `added`, `reclaimed`: pages of all files on this host. `evicted`: reclaimed pages by file. `short`: pages reclaimed
    because the host, not a cgroup, was short of memory (None: unknown).
    """

    window_ns: int
    page: int
    uses: list[Use]
    stalls: list[Stall]
    cgroups: list[Cgroup]
    host: Host
    kswapd_scan_rate: float | None
    memory_bytes: int | None
    anon_bytes: int | None
    added: int
    reclaimed: int
    evicted: dict[int, int]
    short: int | None
    members: frozenset[int]
    cgroup_of: dict[int, str]
    untracked: int
    tracked: int

    def scope(self, pid: int) -> str:
        """Return what the process shares memory with: a cgroup with a limit, its own, or the host."""
        own = self.cgroup_of.get(pid, HOST)
        limited = [c.path for c in self.cgroups if c.row.limit_bytes is not None and _below(own, c.path)]
        if limited:
            return max(limited, key=len)
        known = any(_below(own, c.path) and c.path != HOST for c in self.cgroups)
        return HOST if known or own in ("", HOST) else own

    def space_bytes(self, scope: str) -> int | None:
        """Return the memory that `scope` has for files: its limit minus anonymous memory. None if unknown."""
        for cgroup in self.cgroups:
            if cgroup.path == scope and cgroup.row.limit_bytes is not None:
                return max(0, cgroup.row.limit_bytes - (cgroup.row.anon_bytes or 0))
        if scope != HOST or self.memory_bytes is None:
            return None
        return max(0, self.memory_bytes - (self.anon_bytes or 0))

    def of_added_pct(self, pages: int) -> float | None:
        """Return `pages` in percent of all pages added to the cache of this host."""
        return 100 * pages / self.added if self.added else None


def measure(recording: Recording) -> Measures:
    """Return what `recording` measured; it must hold the page cache, the host's counters are optional."""
    uses = recording.table(f"{CACHE}.use")
    evictions = recording.table(f"{CACHE}.evictions")
    files = {r["file"]: r for r in recording.table(f"{CACHE}.files").iter_rows(named=True)}
    counters = HostCounters(recording.tables().get("proc.host"))
    page = int(counters.last("mem_page_bytes") or _PAGE)
    target = recording.manifest.target
    processes = recording.tables().get("proc.processes", pl.DataFrame())
    threads = recording.tables().get("proc.threads", pl.DataFrame())
    members = frozenset(target.pids) | (frozenset(threads["pid"]) if threads.height else frozenset())
    cgroups = _cgroups(recording)
    host, short = _host(counters, processes, recording.manifest.window_ns)
    return Measures(
        window_ns=recording.manifest.window_ns,
        page=page,
        uses=uses_of(uses, evictions, files, residency_of(recording), faults_of(processes), page),
        stalls=_stalls(recording.table(f"{CACHE}.stalls"), files),
        cgroups=cgroups,
        host=host,
        kswapd_scan_rate=counters.rate("vm_pgscan_kswapd"),
        memory_bytes=_whole(counters.last("mem_total_bytes")),
        anon_bytes=_whole(counters.last("mem_anon_bytes")),
        added=_sum(uses["added"]),
        reclaimed=_sum(evictions["reclaimed"]),
        evicted={file: max(0, pages) for file, pages in evictions.select("file", "reclaimed").iter_rows()},
        short=short,
        members=members,
        cgroup_of={r["pid"]: r["cgroup"] for r in processes.iter_rows(named=True)},
        untracked=_sum(evictions["untracked"]),
        tracked=_sum(evictions["tracked"]),
    )


def _stalls(frame: pl.DataFrame, files: dict[int, _Row]) -> list[Stall]:
    found = [
        Stall(
            **{name: row[name] for name in ("pid", "tid", "comm", "what", "count", "total_ns", "max_ns", "in_flight")},
            path=files[row["file"]]["path"] if row["file"] in files else "",
            pages=row["pages"],
            at_ns=max(0, row["longest_at_ns"]),
        )
        for row in frame.iter_rows(named=True)
    ]
    return sorted(found, key=lambda s: (-s.total_ns, s.tid, s.what, s.path))


def _cgroups(recording: Recording) -> list[Cgroup]:
    frame = recording.tables().get("proc.memory")  # recordings before page_cache have none
    if frame is None:
        return []
    series: dict[tuple[str, int], list[_Row]] = {}
    for row in frame.sort("at_ns", maintain_order=True).iter_rows(named=True):
        series.setdefault((row["cgroup"], row["version"]), []).append(row)
    found = []
    for (path, version), rows in series.items():
        first, last = rows[0], rows[-1]
        span_s = (last["at_ns"] - first["at_ns"]) / 1e9

        def grown(name: str, first: _Row = first, last: _Row = last) -> int | None:
            known = first["at_ns"] < last["at_ns"] and first[name] >= 0 and last[name] >= 0
            return max(0, last[name] - first[name]) if known else None

        def rate(name: str, span_s: float = span_s, grown: Any = grown) -> float | None:
            count = grown(name)
            return None if count is None else count / span_s

        limits = [last[name] for name in ("limit_bytes", "high_bytes") if last[name] >= 0]
        psi = rate("psi_some_us")
        shown = CgroupRow(
            cgroup=path,
            version=version,
            # Both drop with every reclaim, so the peak is what to compare with a limit.
            usage_bytes=_known(max(r["usage_bytes"] for r in rows)),
            limit_bytes=min(limits, default=None),
            anon_bytes=_known(max(r["anon_bytes"] for r in rows)),
            file_bytes=_known(last["file_bytes"]),
            dirty_bytes=_known(max(r["dirty_bytes"] for r in rows)),
            limit_hit_rate=rate("limit_hits"),
            refault_rate=rate("refaults_file"),
            reclaim_rate=rate("reclaimed"),
            psi_some_pct=None if psi is None else min(100.0, psi / 1e4),
            oom_kills=grown("oom_kills"),
        )
        found.append(Cgroup(path, shown, grown("limit_hits"), grown("refaults_file"), grown("reclaimed")))
    return sorted(found, key=lambda c: (c.row.limit_bytes is None, c.path))


def _host(counters: HostCounters, processes: pl.DataFrame, window_ns: int) -> tuple[Host, int | None]:
    # These two count reclaim for the host's memory only; pgsteal_file also counts reclaim at cgroup limits.
    short = counters.delta("vm_pgsteal_kswapd", "vm_pgsteal_direct")
    every, global_rate = counters.rate("vm_pgsteal_file"), counters.rate("vm_pgsteal_kswapd", "vm_pgsteal_direct")
    limit, page = counters.last("vm_nr_dirty_threshold"), counters.last("mem_page_bytes") or _PAGE
    psi = counters.rate("psi_memory_some_us")
    host = Host(
        kswapd_cpu_pct=_kswapd_pct(processes, window_ns),
        reclaim_rate=global_rate,
        cgroup_reclaim_rate=None if every is None or global_rate is None else max(0.0, every - global_rate),
        refault_rate=counters.rate("vm_workingset_refault_file"),
        psi_some_pct=None if psi is None else min(100.0, psi / 1e4),
        available_bytes=_whole(counters.last("mem_available_bytes")),
        dirty_bytes=_whole(max(counters.all("mem_dirty_bytes"), default=None)),
        dirty_limit_bytes=None if limit is None else int(limit * page),
    )
    return host, _whole(short)


def _kswapd_pct(processes: pl.DataFrame, window_ns: int) -> float | None:
    """Return the CPU time of all kswapd threads (one per NUMA node), in percent of one CPU; None if unknown."""
    if processes.is_empty() or not window_ns:
        return None
    spent: dict[int, list[int]] = {}
    for row in processes.sort("at_ns").iter_rows(named=True):
        if row["ppid"] == 2 and _KSWAPD.fullmatch(row["comm"]):  # 2: kthreadd, the parent of all kernel threads
            spent.setdefault(row["pid"], []).append(row["user_ns"] + row["system_ns"])
    known = [times for times in spent.values() if len(times) > 1]
    return 100 * sum(times[-1] - times[0] for times in known) / window_ns if known else None


def _below(path: str, above: str) -> bool:
    return above == HOST or path == above or path.startswith(above.rstrip("/") + "/")


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _sum(values: Iterable[int]) -> int:
    return sum(max(0, value) for value in values)
