"""What the tool page_cache answers: its tables."""

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
    """What one process did with a file, or with a numbered series of files, in the cache.

    Bytes of whole pages. `evicted`: taken by reclaim, `dropped`: given back, truncated or deleted; both are of the
    file, whoever used it. `hit_pct`: of what reads asked for and mappings touched, found in the cache; null where the
    same process also wrote it, or the kernel does not tell what is asked for. `one_pass_pct`: of what it brought in,
    used at most once, of the part that could be followed (`judged_pct`). `refault_pct`: of what it brought in, evicted
    shortly before. `written_back`: sent to the storage, by whomever. `cached_bytes`: there at the end, where the file
    was open then.
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
    """What one process did with the cache, and the time its threads lost to memory (summed over threads)."""

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
    """CPU time in the page cache, sampled, in per cent of one CPU: all of it within its bounds (95 %), and of it
    reclaiming and copying."""

    pid: int
    comm: str
    cpu_pct: float
    low_pct: float
    high_pct: float
    reclaim_pct: float
    copy_pct: float
    samples: int


class Data(Model):
    """`verdicts`: what was found; healthy, idle and cannot_tell stand alone. Files and processes by what they brought
    into the cache or asked of it, the largest first."""

    verdicts: list[Verdict] = Field(default_factory=list)
    host: Host = Field(default_factory=Host)
    files: list[FileRow] = Field(default_factory=list)
    processes: list[ProcessRow] = Field(default_factory=list)
    stalls: list[StallRow] = Field(default_factory=list)
    cgroups: list[CgroupRow] = Field(default_factory=list)
    cpu: list[CpuRow] = Field(default_factory=list)
