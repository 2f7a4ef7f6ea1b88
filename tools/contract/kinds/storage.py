"""Kinds of findings about file operations, the page cache, system calls and block devices."""

from __future__ import annotations

from whystall.tools.contract.kinds.spec import KindSpec, Mechanism, kind

# Slow calls on one file, or on one numbered series of files (checkpoints). An episode is a run of calls on the
# same file by the same thread; its latency is what the caller suffered, its period the time between starts. `max_ms` is
# of a single call, `episode_max_ms` of an episode.
_FILE = (
    "count total_ms p50_ms p99_ms max_ms bytes window_pct oncpu_pct blocked_pct sleep_pct runnable_pct"
    " period_s episodes episode_ms episode_max_ms episode_bytes"
)
# `example`: the full path of the slowest file of a series; `device`, `mount`: its disk, and where this is mounted.
_FILE_ATTRIBUTES = "example operations in_flight direct filesystem kernel_path device mount"
# Shares are of the finding's pages. `one_pass_pct`: of those added in the window and judged, touched at most once;
# `refault_pct`: of those added, evicted by reclaim within the window before; `of_added_pct`: of all that was added to
# the cache on this host. `operations`: read, write, mapped.
_CACHE = (
    "accessed_bytes added_bytes evicted_bytes dirtied_bytes hit_pct one_pass_pct refault_pct of_added_pct"
    " rate:bytes/s judged_pct"
)
_CACHE_ATTRIBUTES = "operations example files reason"
_WAITED = "window_pct total_ms max_ms count"

KINDS: dict[str, KindSpec] = {
    **{
        f"file.slow_{operation}": kind(Mechanism.CALLS, "file", _FILE, _FILE_ATTRIBUTES, share="window_pct")
        for operation in ("read", "write", "sync", "metadata")
    },
    "cache.streaming": kind(Mechanism.PAGES, "file", _CACHE, _CACHE_ATTRIBUTES),
    "cache.thrash": kind(Mechanism.PAGES, "file", _CACHE, _CACHE_ATTRIBUTES),
    # what one process does with the cache as a whole: normal unless one of the above
    "cache.use": kind(Mechanism.PAGES, "process", _CACHE, _CACHE_ATTRIBUTES),
    # a memory cgroup whose limit is what evicts, while the host has memory left
    "cache.limit_small": kind(
        Mechanism.COUNTERS,
        "cgroup",
        "limit_bytes usage_bytes anon_bytes file_bytes refault_rate reclaim_rate refault_pct limit_hit_rate"
        " psi_some_pct host_available_bytes",
    ),
    # time that a thread lost; `what`: direct_reclaim, cgroup_reclaim, throttled_reclaim
    "memory.reclaim_stall": kind(Mechanism.PAGES, "thread", f"{_WAITED} pages", "what in_flight", share="window_pct"),
    "writeback.throttled": kind(
        Mechanism.PAGES,
        "thread",
        f"{_WAITED} dirtied_bytes dirty_bytes dirty_limit_bytes",
        "example in_flight",
        share="window_pct",
    ),
    # many writers (or readers and a writer) of one file wait for its lock
    "file.lock_contention": kind(
        Mechanism.PAGES, "file", f"{_WAITED} threads", "operations in_flight", share="window_pct"
    ),
    # CPU time of the kernel's reclaim thread, and of everything that works on the page cache (sampled)
    "memory.kswapd": kind(Mechanism.COUNTERS, "host", "cpu_pct scan_rate steal_rate"),
    "cache.cpu": kind(Mechanism.SAMPLES, "process", "cpu_pct reclaim_pct copy_pct low_pct high_pct samples"),
    # How a file should be read or written. `advice`: buffered, direct, dontneed, readahead; `reason`: a code. ratio and
    # cpu_ratio: throughput and CPU time of the advised mode over the present one's, as tried here; never 0.
    "io.advice": kind(
        Mechanism.TRIAL,
        "file",
        "request_bytes bytes count reread_pct one_pass_pct crossover_bytes ratio cpu_ratio low_ratio high_ratio"
        " spared_rate:bytes/s",
        "advice reason operation example filesystem",
    ),
    # all system calls of one name
    "syscall.cpu_time": kind(
        Mechanism.CALLS, "thread", "count oncpu_s wall_s max_ms mean_us window_pct", "syscall", share="window_pct"
    ),
    # calls of a thread that failed with one error; `path`: of the first one
    "syscall.failed": kind(Mechanism.CALLS, "thread", "count rate", "syscall error path object"),
    # a file system that the target writes to
    "filesystem.full": kind(
        Mechanism.COUNTERS, "file", "free_bytes size_bytes free_pct free_inodes free_inodes_pct", "filesystem"
    ),
    "block.slow_io": kind(
        Mechanism.BLOCK,
        "device",
        "count total_ms p50_ms p99_ms max_ms queue_pct queue_p99_ms bytes",
        "operation in_flight",
    ),
}
