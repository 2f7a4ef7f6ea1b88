"""Page caches made by hand, as columns: who read what, what was evicted, who waited. Sizes are MiB."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from recordings import COMM, PID, Scene

from whystall.tools.host.page_cache import tool as page_cache
from whystall.tools.host.page_cache.data import Data
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target

PAGES = 256
"""Pages of 4 KiB in a MiB."""
OTHER, OTHER_COMM = 5000, "neighbour"
DATA, HOT = "/data/train.bin", "/data/hot.bin"
GIB = 1 << 30


@dataclass
class Cache:
    """A host of 16 GiB with a target (`PID`) and a neighbour (`OTHER`), and what its page cache did."""

    scene: Scene = field(default_factory=lambda: Scene(window_s=10.0))
    places: dict[int, str] = field(default_factory=lambda: {PID: "/job", OTHER: "/other"})
    counters: dict[str, tuple[float, float]] = field(default_factory=dict)
    kswapd: float = 0.0
    _files: dict[str, int] = field(default_factory=dict)

    def use(
        self,
        path: str = DATA,
        *,
        pid: int = PID,
        comm: str = "",
        accessed: float = 0,
        mapped: float = 0,
        again: float = 0,
        added: float = 0,
        refaulted: float = 0,
        dirtied: float = 0,
        direct: float = 0,
        known: bool = True,
    ) -> Cache:
        """What a process did with a file; without `known`, on a kernel that does not tell what mappings touch."""
        asked = {"accessed": accessed, "again": again} | ({"mapped": mapped} if known else {})
        self._add(
            "use",
            file=self.file(path),
            pid=pid,
            comm=comm or (COMM if pid == PID else OTHER_COMM),
            **{"mapped": -1} | {name: int(size * PAGES) for name, size in asked.items()},
            added=int(added * PAGES),
            refaulted=int(refaulted * PAGES),
            dirtied=int(dirtied * PAGES),
            direct_bytes=int(direct * PAGES * 4096),
            read_bytes=0,
            write_bytes=0,
        )
        return self

    def gone(
        self,
        path: str = DATA,
        *,
        reclaimed: float = 0,
        dropped: float = 0,
        one_pass: float = 0,
        once: float = 0,
        tracked: float = 0,
        untracked: float = 0,
        written: float = -1,
        known: bool = True,
    ) -> Cache:
        """What became of a file's pages; `once`: still there and touched once."""
        sizes = {"one_pass": one_pass, "touched_once": once}
        self._add(
            "evictions",
            file=self.file(path),
            reclaimed=int(reclaimed * PAGES),
            dropped=int(dropped * PAGES),
            **{name: int(size * PAGES) if known else -1 for name, size in sizes.items()},
            judged=int((reclaimed + dropped) * PAGES),
            tracked=int(tracked * PAGES),
            untracked=int(untracked * PAGES),
            written_back=int(written * PAGES) if written >= 0 else -1,
        )
        return self

    def stall(
        self,
        what: str,
        ms: float,
        path: str = "",
        *,
        pid: int = PID,
        tid: int = 0,
        count: int = 10,
        longest: float = 0,
        pages: int = 320,
        still: bool = False,
    ) -> Cache:
        """Time a thread lost."""
        self._add(
            "stalls",
            pid=pid,
            tid=tid or pid,
            comm=COMM if pid == PID else OTHER_COMM,
            what=what,
            file=self.file(path),
            count=count,
            total_ns=int(ms * 1e6),
            max_ns=int((longest or ms / count) * 1e6),
            pages=pages,
            longest_at_ns=1_000_000_000,
            in_flight=still,
        )
        return self

    def memory(
        self,
        cgroup: str = "/job",
        *,
        limit: float = -1,
        usage: float = 100,
        anon: float = 10,
        hits: int = 0,
        refaults: float = -1,
        reclaimed: float = -1,
        psi_pct: float = -1,
        version: int = 2,
    ) -> Cache:
        """A memory cgroup, over the window."""
        mib = PAGES * 4096
        for share, at_ns in ((0.0, 0), (0.5, self.scene.window_ns // 2), (1.0, self.scene.window_ns)):
            self.scene._add(
                "proc.memory",
                at_ns=at_ns,
                cgroup=cgroup,
                version=version,
                usage_bytes=int(usage * mib),
                limit_bytes=int(limit * mib) if limit >= 0 else -1,
                high_bytes=-1,
                anon_bytes=int(anon * mib),
                file_bytes=int((usage - anon) * mib),
                active_file_bytes=0,
                inactive_file_bytes=0,
                dirty_bytes=0,
                writeback_bytes=0,
                refaults_file=int(refaults * PAGES * share) if refaults >= 0 else -1,
                scanned=-1,
                reclaimed=int(reclaimed * PAGES * share) if reclaimed >= 0 else -1,
                limit_hits=int(hits * share),
                oom_kills=0,
                psi_some_us=int(psi_pct / 100 * share * self.scene.window_ns / 1e3) if psi_pct >= 0 else -1,
                psi_full_us=-1,
            )
        return self

    def resident(
        self,
        path: str,
        *,
        size: float,
        cached: float,
        recent: float,
        pid: int = PID,
        opened: bool = False,
        grows: float = 0,
    ) -> Cache:
        """Of an open file, at the start of the window (unless it was `opened` in it) and at its end, when it has grown
        by so much."""
        file, mib = self.file(path), PAGES * 4096
        for at_ns in (0, self.scene.window_ns)[opened:]:
            self.scene._add(
                "residency.open_files",
                at_ns=at_ns,
                pid=pid,
                file=file,
                size_bytes=int((size + (grows if at_ns else 0)) * mib),
                cached_bytes=int(cached * mib),
                dirty_bytes=0,
                writeback_bytes=0,
                evicted_bytes=int(recent * mib),
                recently_evicted_bytes=int(recent * mib),
            )
        return self

    def short(self, mib: float, *, kswapd: float = 1.0) -> Cache:
        """The host runs short of memory: so much is reclaimed, and kswapd takes this share of a CPU."""
        self.counters["vm_pgsteal_kswapd"] = (0.0, mib * PAGES)
        self.counters["vm_pgscan_kswapd"] = (0.0, 2 * mib * PAGES)
        self.kswapd = kswapd
        return self

    def file(self, path: str) -> int:
        """Number of a file; -1 for none."""
        if not path:
            return -1
        if path not in self._files:
            number = self._files[path] = len(self._files)
            row = {"path": path, "dev": "7:0", "ino": 100 + number, "fstype": "ext4"}
            for collector in ("page_cache", "residency"):
                self.scene._add(f"{collector}.files", file=number, **row, complete=True, deleted=False)
        return self._files[path]

    def build(self, **how: Any) -> Recording:
        """The recording; see `Scene.build`."""
        scene = self.scene
        for pid, comm in ((PID, COMM), (OTHER, OTHER_COMM)):
            scene.process(pid, comm, cpu=20, cgroup=self.places[pid])
        scene.process(60, "kswapd0", cpu=self.kswapd, cgroup="/", ppid=2)
        scene.host(
            **{
                "mem_page_bytes": (4096.0, 4096.0),
                "mem_total_bytes": (16.0 * GIB, 16.0 * GIB),
                "mem_available_bytes": (12.0 * GIB, 12.0 * GIB),
                "mem_anon_bytes": (2.0 * GIB, 2.0 * GIB),
                "mem_dirty_bytes": (0.0, 1.0 * GIB),
                "vm_nr_dirty_threshold": (500_000.0, 500_000.0),
                "vm_pgsteal_kswapd": (0.0, 0.0),
                "vm_pgsteal_direct": (0.0, 0.0),
            }
            | self.counters
        )
        target = Target(everything=False, pid=PID, comm=COMM, pids=[PID])
        return scene.build(**({"target": target} | how))

    def judged(self, **how: Any) -> page_cache.Judgement[Data]:
        """The tool's answer."""
        return page_cache.judge(self.build(**how), page_cache.Params(pid=PID))

    def _add(self, table: str, **row: Any) -> None:
        self.scene._add(f"page_cache.{table}", **row)


def streaming(cache: Cache | None = None, *, pid: int = PID, mib: float = 4000, path: str = DATA) -> Cache:
    """A process reads a large file once; most of it has been evicted by the end."""
    cache = cache or Cache()
    cache.use(path, pid=pid, accessed=mib, added=mib)
    return cache.gone(path, reclaimed=0.8 * mib, one_pass=0.79 * mib, once=0.19 * mib, tracked=mib)


def rereading(
    cache: Cache, *, pid: int = OTHER, path: str = HOT, size: float = 300, back: float = 0.0, times: int = 10
) -> Cache:
    """A process reads a set many times, of which `back` had to be read back."""
    cache.use(path, pid=pid, accessed=times * size, again=(times - 1) * size, added=back, refaulted=back)
    return cache.gone(path, reclaimed=back, one_pass=0.1 * back, tracked=back)
