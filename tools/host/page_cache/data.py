"""The result tables of page_cache."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from whystall.tools.contract.result import Model
from whystall.tools.host.common.cache_measures import CgroupRow, Host

Verdict = Literal[
    "streaming",
    "thrash",
    "dirty_throttling",
    "limit_small",
    "lock_contention",
    "reclaim_stalls",
    "healthy",
    "idle",
    "cannot_tell",
]


class FileRow(Model):
    """What one process did in the cache with a file, or a numbered series of files.

    Bytes of whole pages. `evicted`: reclaimed, `dropped`: dropped on request, truncated or deleted; both count for the
    file whoever used it. `hit_pct`: share of requested and mapped pages found in the cache; null if the process also
    wrote the file or the kernel does not report requests. `one_pass_pct`: share of the added pages used at most once,
    among those tracked (`judged_pct`). `refault_pct`: share of the added pages evicted shortly before. `written_back`:
    by any process. `cached_bytes`: at the end, if the file was open then.
    """

    pid: int
    comm: str
    filesystem: str
    files: int
    operations: str
    accessed_bytes: int | None
    added_bytes: int
    dirtied_bytes: int
    written_back_bytes: int | None
    direct_bytes: int
    evicted_bytes: int
    dropped_bytes: int
    hit_pct: float | None
    one_pass_pct: float | None
    judged_pct: float | None
    refault_pct: float | None
    cached_bytes: int | None
    path: str


class ProcessRow(Model):
    """What one process did with the cache, and the time its threads lost to memory management, summed."""

    pid: int
    comm: str
    in_target: bool
    accessed_bytes: int | None
    added_bytes: int
    dirtied_bytes: int
    direct_bytes: int
    hit_pct: float | None
    refault_pct: float | None
    of_added_pct: float | None
    reclaim_ms: float
    throttled_ms: float
    lock_ms: float
    cgroup: str


class StallRow(Model):
    """Time one thread lost. `what`: direct_reclaim, cgroup_reclaim, throttled_reclaim, dirty_throttle, file_lock."""

    at_ms: float
    pid: int
    tid: int
    comm: str
    what: str
    count: int
    total_ms: float
    max_ms: float
    window_pct: float
    pages: int
    in_flight: bool
    path: str


class CpuRow(Model):
    """Sampled CPU time in the page cache, in percent of one CPU, with 95 % bounds; parts: reclaiming and copying."""

    pid: int
    comm: str
    cpu_pct: float
    low_pct: float
    high_pct: float
    reclaim_pct: float
    copy_pct: float
    samples: int


class Data(Model):
    """`verdicts`: healthy, idle and cannot_tell occur alone. Files and processes with most pages added or requested
    first."""

    verdicts: list[Verdict] = Field(default_factory=list)
    host: Host = Field(default_factory=Host)
    files: list[FileRow] = Field(default_factory=list)
    processes: list[ProcessRow] = Field(default_factory=list)
    stalls: list[StallRow] = Field(default_factory=list)
    cgroups: list[CgroupRow] = Field(default_factory=list)
    cpu: list[CpuRow] = Field(default_factory=list)
