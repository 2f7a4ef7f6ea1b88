"""Kinds of findings from the kernel's own counters: threads, CPUs, memory, disks."""

from __future__ import annotations

from whystall.tools.contract.kinds.spec import KindSpec, Mechanism, kind

_COUNTERS = Mechanism.COUNTERS

KINDS: dict[str, KindSpec] = {
    "thread.time": kind(_COUNTERS, "thread", "user_pct system_pct runnable_pct blocked_pct block_io_pct"),
    "process.io_wait": kind(_COUNTERS, "process", "block_io_s window_pct", share="window_pct"),
    "process.system_time": kind(_COUNTERS, "thread", "system_s user_s window_pct", share="window_pct"),
    "process.major_faults": kind(_COUNTERS, "process", "count rate"),
    # page faults that read nothing; `grown_bytes`: of resident memory in the window, if it grew
    "process.minor_faults": kind(_COUNTERS, "process", "count rate grown_bytes"),
    "sched.runqueue_delay": kind(_COUNTERS, "thread", "wait_s run_s window_pct", share="window_pct"),
    # `cpus`, `allowed_cpus`: those that the target may use, if it may not use all; the values are then about these
    "cpu.saturated": kind(_COUNTERS, "host", "busy_pct allowed_cpus runnable_per_cpu:ratio psi_some_pct", "cpus"),
    "cpu.neighbour": kind(_COUNTERS, "process", "cpu_pct"),
    # other processes, `neighbour` above all, have `weight_ratio` times the weight when CPU time is shared; `own_group`:
    # whose weight decides, if it is not the process's own. `setting`: cpu.shares 10, nice 19. `waiter`: the thread that
    # waits for the subject
    "cpu.outweighed": kind(
        _COUNTERS, "thread", "weight_ratio", "setting own_group neighbour other_setting other_group waiter"
    ),
    # a thread with a real-time policy (fifo, rr, deadline) that ran on the target's CPUs; `cpu_pct`: of one CPU
    "sched.real_time": kind(_COUNTERS, "thread", "cpu_pct priority", "policy cpus"),
    # `waiter`: the thread that waits for a throttled process of another job, in `window_pct` of the time
    "cgroup.cpu_throttled": kind(
        _COUNTERS,
        "cgroup",
        "throttled_s window_pct throttled_periods periods quota_cpus:cpus",
        "waiter",
        share="window_pct",
    ),
    # A limit of block I/O above the device, set in `limit_file` of the cgroup `limit_of`. `window_pct`: the time that
    # it takes for what was moved; `used_pct`: of what it allows, at most within 0.3 s. Normal: no limit holds the
    # process back, or none is set.
    "cgroup.io_limit": kind(
        _COUNTERS,
        "cgroup",
        "window_pct used_pct rate:bytes/s limit_rate:bytes/s iops:1/s limit_iops:1/s",
        "operation limit_of limit_file",
        share="window_pct",
    ),
    # the cgroup holds as many processes and threads as it may
    "cgroup.task_limit": kind(_COUNTERS, "cgroup", "tasks task_limit"),
    "memory.reclaim": kind(_COUNTERS, "host", "direct_scan_rate kswapd_scan_rate steal_rate psi_some_pct refault_pct"),
    "memory.cgroup_limit": kind(_COUNTERS, "cgroup", "usage_bytes limit_bytes limit_hits limit_hit_rate refault_pct"),
    "memory.swap": kind(_COUNTERS, "host", "swap_in_rate swap_out_rate"),
    # `rate`: of anonymous, shared and swapped-out memory; `limit_of`: the cgroup whose limit comes first, or host;
    # `window_pct`: all of the window, over which it grows; none of it if it does not
    "memory.growth": kind(
        _COUNTERS,
        "process",
        "rate:bytes/s grown_bytes rss_bytes until_limit_s p_value window_pct",
        "limit_of",
        share="window_pct",
    ),
    # `rate`: of memory that the kernel cannot free by itself: without page cache
    "memory.group_growth": kind(
        _COUNTERS,
        "cgroup",
        "rate:bytes/s used_bytes limit_bytes until_limit_s anon_rate:bytes/s shmem_rate:bytes/s file_rate:bytes/s"
        " slab_rate:bytes/s",
    ),
    # memory that a process and its descendants shared after a fork, copied since; `window_pct`: all of the window
    "memory.copies": kind(
        _COUNTERS, "process", "processes copied_bytes rate:bytes/s remaining_bytes window_pct", share="window_pct"
    ),
    # killed by the kernel for lack of memory; `window_pct`: from the kill to the end of the window; 100 if it killed
    # the target
    "memory.oom_kill": kind(_COUNTERS, "process", "window_pct anon_bytes limit_bytes", "limit_of", share="window_pct"),
    # the same where only the cgroup is known
    "memory.oom_kills": kind(_COUNTERS, "cgroup", "count limit_bytes", "limit_of"),
    # another process that reads from or writes to storage while the target waits for I/O; `bytes_pct`: of the bytes of
    # all processes
    "disk.neighbour": kind(_COUNTERS, "process", "read_rate:bytes/s write_rate:bytes/s bytes_pct"),
    # a disk that processes beside the target keep busy; `others_pct`: of the bytes that it moved
    "disk.contended": kind(_COUNTERS, "device", "util_pct others_pct rate:bytes/s"),
    "disk.saturated": kind(_COUNTERS, "device", "util_pct await_ms iops:1/s read_rate:bytes/s write_rate:bytes/s"),
}
