"""From the columns about the page cache to who did what: per process and series of files, per cgroup, for the host.

Everything is counted in base pages, as the kernel does. A *series* are the files of one process whose paths differ in
numbers only (shards, checkpoints). A *scope* is what shares memory: the innermost cgroup with a limit that a process is
in, or the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from whystall.tools.contract.text import path_pattern, path_series
from whystall.tools.host.page_cache_data import CgroupRow, Host
from whystall.tools.recording.store import Recording

CACHE, RESIDENCY = "page_cache", "residency"
HOST = "/"
_KSWAPD = re.compile(r"kswapd\d+")
_PAGE = 4096
_Row = dict[str, Any]
UNKNOWN_FILE = "[file]"


@dataclass
class Use:
    """What a process did with a series of files, and what became of those files' pages.

    What kernels do not tell (see `tables.PAGE_CACHE`): without `known`, what was asked for; without `mapped_known`,
    what mappings touched (before 6.12); without `once_known`, how often pages were used. `faulted`: it had page faults
    that read from storage, or that is not known. `recent`: of the added pages, those that must have been evicted
    shortly before the window by the kernel's own account. `parts`: what a sum is made of."""

    pid: int
    comm: str
    path: str = ""
    example: str = ""
    filesystem: str = ""
    files: set[int] = field(default_factory=set)
    known: bool = True
    mapped_known: bool = True
    once_known: bool = True
    faulted: bool = True
    accessed: int = 0
    mapped: int = 0
    again: int = 0
    added: int = 0
    refaulted: int = 0
    dirtied: int = 0
    direct_bytes: int = 0
    reclaimed: int = 0
    dropped: int = 0
    judged: int = 0
    one_pass: int = 0
    touched_once: int = 0
    tracked: int = 0
    untracked: int = 0
    recent: int = 0
    cached_bytes: int | None = None
    parts: list[Use] = field(default_factory=list)

    @property
    def touched(self) -> int:
        """Pages that it asked for and that its mappings touched."""
        return self.accessed + self.mapped

    @property
    def distinct(self) -> int | None:
        """Different pages it touched; None where not known."""
        return max(0, self.touched - self.again) if self.known and self.mapped_known else None

    @property
    def hit_pct(self) -> float | None:
        """Of the pages touched, those that were in the cache. None where it wrote too: what writing brought in cannot
        be told from what reading did; and where what mappings touch is not told, but they may have brought in pages.
        Readahead may bring in more than is asked for. Of a sum: of its parts of which it is known, if they are most."""
        if self.parts:
            known = [(part.touched, hit) for part in self.parts if (hit := part.hit_pct) is not None]
            touched = sum(pages for pages, _ in known)
            if not touched or 2 * touched < self.touched:
                return None
            return sum(pages * hit for pages, hit in known) / touched
        if not self.known or not self.touched or (self.dirtied and self.added):
            return None
        if not self.mapped_known and self.faulted and self.added:
            return None
        return 100 * (1 - min(self.added, self.touched) / self.touched)

    @property
    def judged_pct(self) -> float | None:
        """Of what was added to these files, the share whose touches were followed."""
        followed = self.tracked + self.untracked
        return 100 * self.tracked / followed if self.once_known and followed else None

    @property
    def one_pass_pct(self) -> float | None:
        """Of what was added and followed, the share that was touched at most once: until it left, or so far."""
        if not self.once_known or not self.tracked:
            return None
        return min(100.0, 100 * (self.one_pass + self.touched_once) / self.tracked)

    @property
    def back(self) -> int:
        """Pages that surely had been evicted shortly before they were added: within the window, or before it."""
        return min(self.added, max(self.refaulted, self.recent))

    @property
    def refault_pct(self) -> float | None:
        """`back` in percent of what it added."""
        return 100 * self.back / self.added if self.added else None

    @property
    def operations(self) -> str:
        """read, write, mapped: by which it used the cache."""
        parts = [("read", self.accessed), ("write", self.dirtied), ("mapped", self.mapped)]
        return "+".join(name for name, pages in parts if pages > 0) or ("read" if self.added else "")


@dataclass(frozen=True)
class Cgroup:
    """A memory cgroup over the window. None: not told."""

    path: str
    row: CgroupRow
    limit_hits: int | None
    refaults: int | None
    reclaimed: int | None


@dataclass(frozen=True)
class Stall:
    """Time that one thread lost to one thing, on one file where it is about one. Nanoseconds."""

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
    """What the window measured. `added`, `reclaimed`: pages of all files on this host; `evicted`: of them, by file;
    `short`: pages reclaimed because the host, not a cgroup, was short of memory (None: not told)."""

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
    place: dict[int, str]
    untracked: int
    followed: int

    def scope(self, pid: int) -> str:
        """What the process shares memory with: a cgroup with a limit, its own cgroup where limits are not known of it,
        or the host."""
        mine = self.place.get(pid, HOST)
        limited = [c.path for c in self.cgroups if c.row.limit_bytes is not None and _below(mine, c.path)]
        if limited:
            return max(limited, key=len)
        known = any(_below(mine, c.path) and c.path != HOST for c in self.cgroups)
        return HOST if known or mine in ("", HOST) else mine

    def room_bytes(self, scope: str) -> int | None:
        """What `scope` leaves for files: its limit less what is the processes' own; None where not known."""
        for cgroup in self.cgroups:
            if cgroup.path == scope and cgroup.row.limit_bytes is not None:
                return max(0, cgroup.row.limit_bytes - (cgroup.row.anon_bytes or 0))
        if scope != HOST or self.memory_bytes is None:
            return None
        return max(0, self.memory_bytes - (self.anon_bytes or 0))

    def of_added_pct(self, pages: int) -> float | None:
        """`pages` in percent of all that entered the cache of this host."""
        return 100 * pages / self.added if self.added else None


def measure(recording: Recording) -> Measures:
    """What is in `recording`; its counters may be missing, the page cache may not."""
    uses = recording.table(f"{CACHE}.use")
    evictions = recording.table(f"{CACHE}.evictions")
    files = {r["file"]: r for r in recording.table(f"{CACHE}.files").iter_rows(named=True)}
    counters = _Counters(recording)
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
        uses=_uses(uses, evictions, files, _residency(recording), _faults(processes), page),
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
        place={r["pid"]: r["cgroup"] for r in processes.iter_rows(named=True)},
        untracked=_sum(evictions["untracked"]),
        followed=_sum(evictions["tracked"]),
    )


class _Counters:
    """The host's named counters; none where a recording has no `proc`."""

    def __init__(self, recording: Recording) -> None:
        self._values: dict[str, list[float]] = {}
        self._span_s = 0.0
        host = recording.tables().get("proc.host")
        if host is None or host.is_empty():
            return
        first, last = host["at_ns"].min(), host["at_ns"].max()
        self._span_s = (last - first) / 1e9 if isinstance(first, int) and isinstance(last, int) else 0.0
        for name, value in host.sort("at_ns", maintain_order=True).select("name", "value").iter_rows():
            self._values.setdefault(name, []).append(value)

    def last(self, name: str) -> float | None:
        values = self._values.get(name)
        return values[-1] if values else None

    def most(self, name: str) -> float | None:
        return max(self._values.get(name, ()), default=None)

    def delta(self, *names: str) -> float | None:
        """Growth of those that are there, together."""
        known = [self._values[n] for n in names if len(self._values.get(n, ())) > 1]
        return sum(max(0.0, v[-1] - v[0]) for v in known) if known else None

    def rate(self, *names: str) -> float | None:
        grown = self.delta(*names)
        return grown / self._span_s if grown is not None and self._span_s else None


def _uses(
    uses: pl.DataFrame,
    evictions: pl.DataFrame,
    files: dict[int, _Row],
    cached: dict[tuple[str, int], _Row],
    faults: dict[int, int],
    page: int,
) -> list[Use]:
    """Per process and series, those that brought most in first."""
    left = {r["file"]: r for r in evictions.iter_rows(named=True)}
    found: dict[tuple[int, str], Use] = {}
    most: dict[tuple[int, str], tuple[int, str]] = {}
    paths: dict[tuple[int, str], set[str]] = {}
    for row in uses.iter_rows(named=True):
        file = files.get(row["file"])
        path = file["path"] if file else UNKNOWN_FILE
        key = (row["pid"], path_pattern(path))
        use = found.setdefault(key, Use(row["pid"], row["comm"], filesystem=file["fstype"] if file else ""))
        first_seen = row["file"] not in use.files
        use.files.add(row["file"])
        paths.setdefault(key, set()).add(path)
        use.known &= row["accessed"] >= 0
        use.mapped_known &= row["mapped"] >= 0
        use.faulted = faults.get(row["pid"], 1) > 0
        for name in ("accessed", "mapped", "again", "added", "refaulted", "dirtied", "direct_bytes"):
            setattr(use, name, getattr(use, name) + max(0, row[name]))
        gone = left.get(row["file"])
        if gone and first_seen:
            use.once_known &= min(gone["one_pass"], gone["touched_once"], gone["tracked"]) >= 0
            for name in ("reclaimed", "dropped", "judged", "one_pass", "touched_once", "tracked", "untracked"):
                setattr(use, name, getattr(use, name) + max(0, gone[name]))
        resident = cached.get((file["dev"], file["ino"])) if file else None
        if resident and first_seen:
            if resident["end"] is not None:
                use.cached_bytes = (use.cached_bytes or 0) + resident["end"]
            use.recent += min(row["added"], max(0, row["added"] - resident["fresh"] // page))
        size = max(row["added"], row["accessed"], row["dirtied"], row["direct_bytes"] // page)
        most[key] = max(most.get(key, (-1, "")), (size, path))
    for key, use in found.items():
        use.path, use.example = path_series(paths[key]), most[key][1]
    return sorted(found.values(), key=lambda u: (-max(u.added, u.touched, u.dirtied), u.pid, u.path))


def _faults(processes: pl.DataFrame) -> dict[int, int]:
    """Page faults that read from storage, per process that was counted twice."""
    counts: dict[int, list[int]] = {}
    for row in processes.iter_rows(named=True):
        counts.setdefault(row["pid"], []).append(row["major_faults"])
    return {pid: max(faults) - min(faults) for pid, faults in counts.items() if len(faults) > 1}


def _residency(recording: Recording) -> dict[tuple[str, int], _Row]:
    """By device and inode: bytes cached at the end (`end`), and bytes not cached at the start of which the kernel did
    not say that they had been evicted lately (`fresh`): whatever is read beyond those had been."""
    tables = recording.tables()
    rows, files = tables.get(f"{RESIDENCY}.open_files"), tables.get(f"{RESIDENCY}.files")
    if rows is None or files is None or rows.is_empty():
        return {}
    places = {r["file"]: (r["dev"], r["ino"]) for r in files.iter_rows(named=True)}
    half = recording.manifest.window_ns // 2  # looked at twice, at the start and at the end; a file may be open at one
    found: dict[tuple[str, int], _Row] = {}
    for row in rows.sort("at_ns").iter_rows(named=True):
        place = places.get(row["file"])
        if place is None or row["cached_bytes"] < 0:
            continue
        known = found.setdefault(place, {"end": None, "fresh": 1 << 62})
        if row["at_ns"] <= half and row["recently_evicted_bytes"] >= 0:
            known["fresh"] = max(0, row["size_bytes"] - row["cached_bytes"] - row["recently_evicted_bytes"])
        if row["at_ns"] > half:
            known["end"] = row["cached_bytes"]
    return found


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
            # usage falls with every reclaim: the most seen is what counts beside a limit
            usage_bytes=_told(max(r["usage_bytes"] for r in rows)),
            limit_bytes=min(limits, default=None),
            anon_bytes=_told(last["anon_bytes"]),
            file_bytes=_told(last["file_bytes"]),
            dirty_bytes=_told(max(r["dirty_bytes"] for r in rows)),
            limit_hit_rate=rate("limit_hits"),
            refault_rate=rate("refaults_file"),
            reclaim_rate=rate("reclaimed"),
            psi_some_pct=None if psi is None else min(100.0, psi / 1e4),
            oom_kills=grown("oom_kills"),
        )
        found.append(Cgroup(path, shown, grown("limit_hits"), grown("refaults_file"), grown("reclaimed")))
    return sorted(found, key=lambda c: (c.row.limit_bytes is None, c.path))


def _host(counters: _Counters, processes: pl.DataFrame, window_ns: int) -> tuple[Host, int | None]:
    # These two count reclaim for want of the host's memory only; pgsteal_file counts that at cgroups' limits as well.
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
        dirty_bytes=_whole(counters.most("mem_dirty_bytes")),
        dirty_limit_bytes=None if limit is None else int(limit * page),
    )
    return host, _whole(short)


def _kswapd_pct(processes: pl.DataFrame, window_ns: int) -> float | None:
    """CPU time of the threads of that name (one per NUMA node) in percent of one CPU; None where none is known."""
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


def _told(value: int) -> int | None:
    return value if value >= 0 else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _sum(values: Iterable[int]) -> int:
    return sum(max(0, value) for value in values)
