"""The closed vocabulary of findings: every kind, the metrics it carries with their units, and how it was measured.

A `mechanism` names an independent way of measuring. Two findings confirm each other only if their mechanisms differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType


class Mechanism(str, Enum):
    """Independent ways to observe the host."""

    COUNTERS = "counters"  # the kernel's own accounting, read from /proc and cgroup files
    CALLS = "calls"  # system call entry and exit
    SWITCHES = "switches"  # the scheduler switching a thread out and in
    BLOCK = "block"  # block device requests
    INTERRUPTS = "interrupts"  # entry and exit of interrupts and softirqs
    COLLECTIVES = "collectives"  # how long each rank stayed in operations that all leave together
    WORK = "work"  # what each rank did between them: its operators, kernels and gaps
    SAMPLES = "samples"  # what was on a CPU, or on a device, at regular instants
    PAGES = "pages"  # the page cache: what is added, touched and evicted, and who waits for that
    TRIAL = "trial"  # what we tried ourselves, on that very file system
    DEVICE = "device"  # what the accelerator did by its own clock, as its profiler recorded it


@dataclass(frozen=True)
class KindSpec:
    """What a finding of one kind means.

    `metrics` maps a metric's name to its unit (``ms``, ``s``, ``pct``, ``count``, ``bytes``, ``bytes/s``, ``1/s``,
    ``ratio``, ``cpus``); `attributes` are its allowed words (operation, state, ...). `share` names the metric that
    says which share of the window, in percent of one thread's time, the finding accounts for.
    """

    mechanism: Mechanism
    subject: str
    metrics: MappingProxyType[str, str]
    attributes: frozenset[str] = field(default_factory=frozenset)
    share: str | None = None


def _kind(
    mechanism: Mechanism,
    subject: str,
    metrics: dict[str, str],
    attributes: tuple[str, ...] = (),
    share: str | None = None,
) -> KindSpec:
    if share is not None and share not in metrics:
        raise ValueError(f"share metric {share} is not declared")
    return KindSpec(mechanism, subject, MappingProxyType(metrics), frozenset(attributes), share)


_LATENCY = {"count": "count", "total_ms": "ms", "p50_ms": "ms", "p99_ms": "ms", "max_ms": "ms"}
# Slow calls on one file, or on one numbered series of files (checkpoints). An episode is a run of calls on the
# same file by the same thread; its latency is what the caller suffered, its period the time between starts. `max_ms` is
# of a single call, `episode_max_ms` of an episode.
_FILE = {
    **_LATENCY,
    "bytes": "bytes",
    "window_pct": "pct",
    "oncpu_pct": "pct",
    "blocked_pct": "pct",
    "sleep_pct": "pct",
    "runnable_pct": "pct",
    "period_s": "s",
    "episodes": "count",
    "episode_ms": "ms",
    "episode_max_ms": "ms",
    "episode_bytes": "bytes",
}
_RANK_SLOW = {
    "window_pct": "pct",
    "excess_ms": "ms",
    "own_ms": "ms",
    "peers_ms": "ms",
    "compute_excess_ms": "ms",
    "gap_excess_ms": "ms",
    "loader_excess_ms": "ms",
    "ratio": "ratio",
}
_TRANSFER = {
    "window_pct": "pct",
    "transfer_ms": "ms",
    "peers_ms": "ms",
    "ratio": "ratio",
    "count": "count",
    "bytes": "bytes",
}
_WAITED = {"window_pct": "pct", "total_ms": "ms", "max_ms": "ms", "count": "count"}
_CACHE = {
    "accessed_bytes": "bytes",
    "added_bytes": "bytes",
    "evicted_bytes": "bytes",
    "dirtied_bytes": "bytes",
    "hit_pct": "pct",
    "one_pass_pct": "pct",
    "refault_pct": "pct",
    "of_added_pct": "pct",
    "rate": "bytes/s",
    "judged_pct": "pct",
}
_CACHE_WORDS = ("operations", "example", "files", "reason")
# `example`: the full path of the slowest file of a series.
_FILE_WORDS = ("example", "operations", "in_flight", "direct", "filesystem", "kernel_path")

KINDS: MappingProxyType[str, KindSpec] = MappingProxyType(
    {
        # first look
        "thread.time": _kind(
            Mechanism.COUNTERS,
            "thread",
            {
                "user_pct": "pct",
                "system_pct": "pct",
                "runnable_pct": "pct",
                "blocked_pct": "pct",
                "block_io_pct": "pct",
            },
        ),
        "process.io_wait": _kind(
            Mechanism.COUNTERS, "process", {"block_io_s": "s", "window_pct": "pct"}, share="window_pct"
        ),
        "process.system_time": _kind(
            Mechanism.COUNTERS,
            "thread",
            {"system_s": "s", "user_s": "s", "window_pct": "pct"},
            share="window_pct",
        ),
        "process.major_faults": _kind(Mechanism.COUNTERS, "process", {"count": "count", "rate": "1/s"}),
        "sched.runqueue_delay": _kind(
            Mechanism.COUNTERS,
            "thread",
            {"wait_s": "s", "run_s": "s", "window_pct": "pct"},
            share="window_pct",
        ),
        "cpu.saturated": _kind(
            Mechanism.COUNTERS,
            "host",
            {"busy_pct": "pct", "runnable_per_cpu": "ratio", "psi_some_pct": "pct"},
        ),
        "cpu.neighbour": _kind(Mechanism.COUNTERS, "process", {"cpu_pct": "pct"}),
        "cgroup.cpu_throttled": _kind(
            Mechanism.COUNTERS,
            "cgroup",
            {
                "throttled_s": "s",
                "window_pct": "pct",
                "throttled_periods": "count",
                "periods": "count",
                "quota_cpus": "cpus",
            },
            share="window_pct",
        ),
        "memory.reclaim": _kind(
            Mechanism.COUNTERS,
            "host",
            {
                "direct_scan_rate": "1/s",
                "kswapd_scan_rate": "1/s",
                "steal_rate": "1/s",
                "psi_some_pct": "pct",
                "refault_pct": "pct",
            },
        ),
        "memory.cgroup_limit": _kind(
            Mechanism.COUNTERS,
            "cgroup",
            {
                "usage_bytes": "bytes",
                "limit_bytes": "bytes",
                "limit_hits": "count",
                "limit_hit_rate": "1/s",
                "refault_pct": "pct",
            },
        ),
        "memory.swap": _kind(Mechanism.COUNTERS, "host", {"swap_in_rate": "1/s", "swap_out_rate": "1/s"}),
        "disk.saturated": _kind(
            Mechanism.COUNTERS,
            "device",
            {
                "util_pct": "pct",
                "await_ms": "ms",
                "iops": "1/s",
                "read_rate": "bytes/s",
                "write_rate": "bytes/s",
            },
        ),
        # file operations
        "file.slow_read": _kind(Mechanism.CALLS, "file", _FILE, _FILE_WORDS, share="window_pct"),
        "file.slow_write": _kind(Mechanism.CALLS, "file", _FILE, _FILE_WORDS, share="window_pct"),
        "file.slow_sync": _kind(Mechanism.CALLS, "file", _FILE, _FILE_WORDS, share="window_pct"),
        "file.slow_metadata": _kind(Mechanism.CALLS, "file", _FILE, _FILE_WORDS, share="window_pct"),
        # The page cache. Shares are of the pages the finding is about; `one_pass_pct`: of those added in the window
        # and judged, touched at most once; `refault_pct`: of those added, evicted by reclaim within the window before;
        # `of_added_pct`: of all that was added to the cache on this host. `operations`: read, write, mapped.
        "cache.streaming": _kind(Mechanism.PAGES, "file", _CACHE, _CACHE_WORDS),
        "cache.thrash": _kind(Mechanism.PAGES, "file", _CACHE, _CACHE_WORDS),
        # what one process does with the cache as a whole: normal unless one of the above
        "cache.use": _kind(Mechanism.PAGES, "process", _CACHE, _CACHE_WORDS),
        # a memory cgroup whose limit is what evicts, while the host has memory left
        "cache.limit_small": _kind(
            Mechanism.COUNTERS,
            "cgroup",
            {
                "limit_bytes": "bytes",
                "usage_bytes": "bytes",
                "anon_bytes": "bytes",
                "file_bytes": "bytes",
                "refault_rate": "1/s",
                "reclaim_rate": "1/s",
                "refault_pct": "pct",
                "limit_hit_rate": "1/s",
                "psi_some_pct": "pct",
                "host_available_bytes": "bytes",
            },
        ),
        # time that a thread lost; `what`: direct_reclaim, cgroup_reclaim, throttled_reclaim
        "memory.reclaim_stall": _kind(
            Mechanism.PAGES, "thread", {**_WAITED, "pages": "count"}, ("what", "in_flight"), share="window_pct"
        ),
        "writeback.throttled": _kind(
            Mechanism.PAGES,
            "thread",
            {**_WAITED, "dirtied_bytes": "bytes", "dirty_bytes": "bytes", "dirty_limit_bytes": "bytes"},
            ("example", "in_flight"),
            share="window_pct",
        ),
        # many writers (or readers and a writer) of one file wait for its lock
        "file.lock_contention": _kind(
            Mechanism.PAGES, "file", {**_WAITED, "threads": "count"}, ("operations", "in_flight"), share="window_pct"
        ),
        # CPU time of the kernel's reclaim thread, and of everything that works on the page cache (sampled)
        "memory.kswapd": _kind(Mechanism.COUNTERS, "host", {"cpu_pct": "pct", "scan_rate": "1/s", "steal_rate": "1/s"}),
        "cache.cpu": _kind(
            Mechanism.SAMPLES,
            "process",
            {
                "cpu_pct": "pct",
                "reclaim_pct": "pct",
                "copy_pct": "pct",
                "low_pct": "pct",
                "high_pct": "pct",
                "samples": "count",
            },
        ),
        # What a file should be read or written with. `advice`: buffered, direct, dontneed, readahead; `reason`: a code.
        # ratio and cpu_ratio: the other way's throughput and CPU time over today's, as tried here; 0 is never said.
        "io.advice": _kind(
            Mechanism.TRIAL,
            "file",
            {
                "request_bytes": "bytes",
                "bytes": "bytes",
                "count": "count",
                "reread_pct": "pct",
                "one_pass_pct": "pct",
                "crossover_bytes": "bytes",
                "ratio": "ratio",
                "cpu_ratio": "ratio",
                "low_ratio": "ratio",
                "high_ratio": "ratio",
                "spared_rate": "bytes/s",
            },
            ("advice", "reason", "operation", "example", "filesystem"),
        ),
        # system calls as a whole
        "syscall.cpu_time": _kind(
            Mechanism.CALLS,
            "thread",
            {
                "count": "count",
                "oncpu_s": "s",
                "wall_s": "s",
                "max_ms": "ms",
                "mean_us": "us",
                "window_pct": "pct",
            },
            ("syscall",),
            share="window_pct",
        ),
        # block devices
        "block.slow_io": _kind(
            Mechanism.BLOCK,
            "device",
            {**_LATENCY, "queue_pct": "pct", "queue_p99_ms": "ms", "bytes": "bytes"},
            ("operation", "in_flight"),
        ),
        # blocked time; `code`: the line of the program that waits
        "offcpu.blocked": _kind(
            Mechanism.SWITCHES,
            "thread",
            {"count": "count", "total_ms": "ms", "max_ms": "ms", "window_pct": "pct"},
            ("syscall", "state", "kernel_path", "user_path", "code", "waker", "open"),
            share="window_pct",
        ),
        "offcpu.lock_wait": _kind(
            Mechanism.SWITCHES,
            "thread",
            {"count": "count", "total_ms": "ms", "max_ms": "ms", "window_pct": "pct"},
            ("syscall", "state", "kernel_path", "user_path", "code", "waker", "open", "lock"),
            share="window_pct",
        ),
        "offcpu.preempted": _kind(
            Mechanism.SWITCHES,
            "thread",
            {"count": "count", "total_ms": "ms", "max_ms": "ms", "window_pct": "pct"},
            ("state",),
            share="window_pct",
        ),
        # what keeps a thread that feeds an accelerator from doing so
        "sched.preempted_by": _kind(
            Mechanism.SWITCHES,
            "thread",
            _WAITED,
            ("neighbour", "processes", "own", "cpus"),
            share="window_pct",
        ),
        "sched.wakeup_latency": _kind(
            Mechanism.SWITCHES,
            "thread",
            {
                "count": "count",
                "p50_ms": "ms",
                "p99_ms": "ms",
                "max_ms": "ms",
                "late": "count",
                "window_pct": "pct",
            },
            ("mostly",),
            share="window_pct",
        ),
        # `forced`: how often others gave it other CPUs
        "sched.migrations": _kind(
            Mechanism.SWITCHES,
            "thread",
            {
                "count": "count",
                "rate": "1/s",
                "cross_core": "count",
                "cross_node": "count",
                "forced": "count",
                "window_pct": "pct",
            },
            ("moves",),
            share="window_pct",
        ),
        "sched.throttled": _kind(Mechanism.SWITCHES, "thread", {**_WAITED, "throttled_s": "s"}, share="window_pct"),
        # pinned to CPUs that others use
        "sched.affinity_crowded": _kind(
            Mechanism.SWITCHES,
            "thread",
            {"allowed_cpus": "count", "others_pct": "pct"},
            ("cpus", "neighbour"),
        ),
        # every wait for a CPU, from runnable to running; quantiles of its process where that has one thread
        "sched.queue_latency": _kind(
            Mechanism.SWITCHES, "thread", {**_LATENCY, "window_pct": "pct"}, share="window_pct"
        ),
        # what handlers take of one CPU; count, total_ms and max_ms of `interrupt`, which takes most
        "irq.load": _kind(
            Mechanism.INTERRUPTS,
            "host",
            {"cpu_pct": "pct", "rate": "1/s", "count": "count", "total_ms": "ms", "max_ms": "ms"},
            ("interrupt", "cpus"),
        ),
        "irq.steal": _kind(Mechanism.INTERRUPTS, "thread", _WAITED, ("interrupt", "cpus"), share="window_pct"),
        # `idle_pct` of the time between its first and last work; the other shares are of that idle time
        "accel.idle": _kind(
            Mechanism.DEVICE,
            "accelerator",
            {
                "idle_pct": "pct",
                "host_pct": "pct",
                "ahead_pct": "pct",
                "launch_pct": "pct",
                "unknown_pct": "pct",
                "count": "count",
                "total_ms": "ms",
                "max_ms": "ms",
            },
        ),
        # the device waited for this thread, which did `reason` meanwhile (`by` whom it was kept)
        "accel.host_bound": _kind(
            Mechanism.DEVICE,
            "thread",
            {"window_pct": "pct", "of_idle_pct": "pct", "total_ms": "ms", "count": "count"},
            ("reason", "by", "accelerator"),
            share="window_pct",
        ),
        # ranks of a job; `window_pct`: of the steps' time
        # the others waited for it: `votes` of `steps`, and how likely that is by chance
        "rank.late": _kind(
            Mechanism.COLLECTIVES,
            "rank",
            {
                "window_pct": "pct",
                "lost_ms": "ms",
                "votes": "count",
                "steps": "count",
                "p_value": "ratio",
                "began_step": "count",
            },
            share="window_pct",
        ),
        # excess over its median peer per step; `name`: the operator that makes most of it
        "rank.compute_slow": _kind(Mechanism.WORK, "rank", _RANK_SLOW, ("name", "peers"), share="window_pct"),
        "rank.host_slow": _kind(Mechanism.WORK, "rank", _RANK_SLOW, ("name", "peers"), share="window_pct"),
        "rank.unattributed": _kind(Mechanism.WORK, "rank", _RANK_SLOW, ("name", "peers"), share="window_pct"),
        "rank.communication_slow": _kind(
            Mechanism.COLLECTIVES, "rank", _TRANSFER, ("name", "peers"), share="window_pct"
        ),
        # measured and normal: none of the ranks stands out
        "rank.even": _kind(
            Mechanism.COLLECTIVES, "job", {"ranks": "count", "steps": "count", "lost_pct": "pct"}, ("ranks",)
        ),
        # others wait in an operation that it has not entered
        "rank.not_entered": _kind(
            Mechanism.COLLECTIVES,
            "rank",
            {"seq": "count", "waiting": "count", "waiting_s": "s", "window_pct": "pct"},
            ("name", "operation"),
            share="window_pct",
        ),
        # it has not finished operations that others of their groups finished: its device, or what watches it, stopped
        "rank.not_finished": _kind(
            Mechanism.COLLECTIVES,
            "rank",
            {"seq": "count", "count": "count", "window_pct": "pct"},
            ("name", "operation"),
            share="window_pct",
        ),
        # ranks of a group entered operations that do not fit: `what` differs
        "rank.mismatch": _kind(
            Mechanism.COLLECTIVES, "rank", {"seq": "count"}, ("name", "operation", "what", "expected", "found")
        ),
        "stage.slow": _kind(
            Mechanism.WORK,
            "job",
            {"window_pct": "pct", "own_ms": "ms", "peers_ms": "ms", "ratio": "ratio", "lost_ms": "ms"},
            ("ranks", "name"),
            share="window_pct",
        ),
        "rank.moving": _kind(
            Mechanism.COLLECTIVES,
            "job",
            {"window_pct": "pct", "lost_ms": "ms", "ranks": "count", "steps": "count"},
            ("ranks",),
            share="window_pct",
        ),
        # `ranks`: the pair or group whose transfers take longer than equal ones elsewhere
        "link.slow": _kind(Mechanism.COLLECTIVES, "job", _TRANSFER, ("ranks", "name", "operation"), share="window_pct"),
        # jobs without collectives: a replica beside the others
        "replica.slow": _kind(
            Mechanism.WORK,
            "rank",
            {
                "window_pct": "pct",
                "p50_ms": "ms",
                "peers_ms": "ms",
                "ratio": "ratio",
                "steps": "count",
                "p_value": "ratio",
            },
            ("name",),
            share="window_pct",
        ),
        # two runs of one job; `what`: step, compute, gap, loader, communication, transfer, operator; per step
        "run.step_time": _kind(
            Mechanism.WORK, "job", {"before_ms": "ms", "after_ms": "ms", "change_pct": "pct", "p_value": "ratio"}
        ),
        "run.difference": _kind(
            Mechanism.WORK,
            "job",
            {
                "before_ms": "ms",
                "after_ms": "ms",
                "change_ms": "ms",
                "of_change_pct": "pct",
                "count_before": "count",
                "count_after": "count",
            },
            ("what", "name", "ranks"),
        ),
        # Stack samples. A share has the bounds within which it lies with 95 %; `name`: the frame, `code`: its file and
        # line, `path`: the frames around it, innermost first; `event`: what was counted.
        "profile.frame": _kind(
            Mechanism.SAMPLES,
            "profile",
            {
                "self_pct": "pct",
                "total_pct": "pct",
                "low_pct": "pct",
                "high_pct": "pct",
                "samples": "count",
                # live: of one thread's time
                "window_pct": "pct",
            },
            ("name", "code", "path", "event", "frame_kind"),
            share="window_pct",
        ),
        # shares of two profiles; `direction`: grew, shrank, appeared, vanished
        "profile.change": _kind(
            Mechanism.SAMPLES,
            "profile",
            {
                "before_pct": "pct",
                "after_pct": "pct",
                "change_pct": "pct",
                "low_pct": "pct",
                "high_pct": "pct",
                "ratio": "ratio",
                "p_value": "ratio",
            },
            ("name", "callee", "code", "path", "event", "direction"),
        ),
        # two profiles differ by no more than chance makes two of one thing differ; a change above `bound_pct` would
        # have been seen
        "profile.alike": _kind(
            Mechanism.SAMPLES,
            "profile",
            {"bound_pct": "pct", "samples_before": "count", "samples": "count"},
            ("event",),
        ),
        # what was sampled comes and goes with a period; `what`: quiet or busy
        "profile.period": _kind(
            Mechanism.SAMPLES,
            "profile",
            {
                "period_s": "s",
                "max_ms": "ms",
                "total_ms": "ms",
                "count": "count",
                "window_pct": "pct",
                "p_value": "ratio",
            },
            ("what", "event"),
            share="window_pct",
        ),
    }
)
