"""The columns of every collector's tables.

Times end in ``_ns`` and are nanoseconds: absolute CLOCK_MONOTONIC while collecting, relative to the start of the
recording once stored. Text columns are already inert (`whystall.tools.contract.text.clean`). ``file`` and ``*stack``
columns are keys into the ``files`` and ``stacks`` tables, -1 where there is none.
"""

from __future__ import annotations

import polars as pl

from whystall.tools.stacks import model as stack_samples
from whystall.tools.timeline import profile, sched
from whystall.tools.timeline.rank_data import tables as rank_tables

_Type = type[pl.DataType] | pl.DataType
_I, _S, _B = pl.Int64, pl.String, pl.Boolean
_WHO: dict[str, _Type] = {"pid": _I, "tid": _I, "comm": _S}
_SPLIT: dict[str, _Type] = {"oncpu_ns": _I, "blocked_ns": _I, "sleep_ns": _I, "runnable_ns": _I}


def _schema(columns: dict[str, _Type]) -> pl.Schema:
    return pl.Schema(columns)


# A file: full path on the host; `complete` False when the path could not be followed to its root.
FILES = _schema({"file": _I, "path": _S, "dev": _S, "ino": _I, "fstype": _S, "complete": _B, "deleted": _B})
# A stack: frames from the innermost outward, already symbolised (the host's symbols are not there later).
STACKS = _schema({"stack": _I, "kernel": _B, "frames": pl.List(_S)})

SYSCALLS = {
    # Calls slower than the collector's `min_ns`; `in_flight`: still inside when the window ended (end_ns is the
    # window's end).
    "calls": _schema(
        {
            "start_ns": _I,
            "end_ns": _I,
            **_WHO,
            "syscall": _S,
            "file": _I,
            "fd": _I,
            "asked": _I,
            "returned": _I,
            "offset": _I,
            "direct": _B,
            **_SPLIT,
            "in_flight": _B,
            "kstack": _I,
        }
    ),
    # All calls, fast ones too, per thread and system call.
    "totals": _schema({**_WHO, "syscall": _S, "count": _I, "wall_ns": _I, **_SPLIT, "max_ns": _I, "bytes": _I}),
    # All file calls per file: a log-linear histogram, low_ns <= latency < high_ns.
    "latency": _schema(
        {
            "file": _I,
            "dev": _S,
            "ino": _I,
            "pid": _I,
            "syscall": _S,
            "low_ns": _I,
            "high_ns": _I,
            "count": _I,
            "sum_ns": _I,
            "bytes": _I,
        }
    ),
    "files": FILES,
    "stacks": STACKS,
}

# state: D uninterruptible, S interruptible sleep, R preempted while runnable, other (stopped, traced, ...) by letter.
_BLOCKED: dict[str, _Type] = {"state": _S, "syscall": _S, "file": _I, "kstack": _I, "ustack": _I}
SWITCHES = {
    # Off-CPU segments longer than `min_ns`; `open`: not ended at the window's end; `seeded`: began before the window.
    "segments": _schema(
        {
            "start_ns": _I,
            "end_ns": _I,
            **_WHO,
            **_BLOCKED,
            "lock": _I,
            "waker_pid": _I,
            "waker_tid": _I,
            "waker_comm": _S,
            "woken_ns": _I,
            "open": _B,
            "seeded": _B,
        }
    ),
    "totals": _schema({**_WHO, **_BLOCKED, "count": _I, "total_ns": _I, "max_ns": _I}),
    "files": FILES,
    "stacks": STACKS,
}

BLOCK = {
    # phase: queue (insert to issue) or device (issue to complete)
    "latency": _schema({"device": _S, "operation": _S, "phase": _S, "low_ns": _I, "high_ns": _I, "count": _I}),
    "totals": _schema(
        {
            "device": _S,
            "operation": _S,
            "count": _I,
            "bytes": _I,
            "queue_ns": _I,
            "device_ns": _I,
            "max_ns": _I,
        }
    ),
    # Requests slower than `min_ns`; `in_flight`: not completed at the window's end (end_ns), issue_ns 0: still queued.
    "slow": _schema(
        {
            "start_ns": _I,
            "issue_ns": _I,
            "end_ns": _I,
            "device": _S,
            "operation": _S,
            "bytes": _I,
            "sector": _I,
            "pid": _I,
            "comm": _S,
            "in_flight": _B,
        }
    ),
}

# Counters read at the start, at the end, and every `period_ns` between; every row carries the time it was read at.
PROC = {
    # name: psi_cpu_some_us, cpu_user_ns, runnable, vm_pgscan_direct, mem_total_bytes ... (see proc_counters)
    "host": _schema({"at_ns": _I, "name": _S, "value": pl.Float64}),
    "processes": _schema(
        {
            "at_ns": _I,
            "pid": _I,
            "ppid": _I,
            "comm": _S,
            "start_ticks": _I,
            "user_ns": _I,
            "system_ns": _I,
            "block_io_ns": _I,
            "major_faults": _I,
            "minor_faults": _I,
            "rss_bytes": _I,
            "read_bytes": _I,
            "write_bytes": _I,
            "threads": _I,
            "cgroup": _S,
        }
    ),
    # Threads of the target only. run_ns and wait_ns (runnable without a CPU) from schedstat; block_io_ns from delay
    # accounting.
    "threads": _schema(
        {
            "at_ns": _I,
            **_WHO,
            "state": _S,
            "user_ns": _I,
            "system_ns": _I,
            "run_ns": _I,
            "wait_ns": _I,
            "block_io_ns": _I,
            "voluntary": _I,
            "involuntary": _I,
        }
    ),
    "disks": _schema(
        {
            "at_ns": _I,
            "device": _S,
            "dev": _S,
            "reads": _I,
            "read_bytes": _I,
            "read_ms": _I,
            "writes": _I,
            "write_bytes": _I,
            "write_ms": _I,
            "busy_ms": _I,
            "in_flight": _I,
        }
    ),
    # -1 where the controller has no such limit or file
    "cgroups": _schema(
        {
            "at_ns": _I,
            "cgroup": _S,
            "version": _I,
            "periods": _I,
            "throttled_periods": _I,
            "throttled_ns": _I,
            "quota_us": _I,
            "period_us": _I,
            "memory_bytes": _I,
            "memory_limit_bytes": _I,
            "memory_limit_hits": _I,
        }
    ),
    # Memory of the target's cgroups in full (of version 1: memory.stat's total_*), -1 where it is not told. Absent in
    # recordings before page_cache. psi_*: microseconds, this cgroup's own.
    "memory": _schema(
        {
            "at_ns": _I,
            "cgroup": _S,
            "version": _I,
            "usage_bytes": _I,
            "limit_bytes": _I,
            "high_bytes": _I,
            "anon_bytes": _I,
            "file_bytes": _I,
            "active_file_bytes": _I,
            "inactive_file_bytes": _I,
            "dirty_bytes": _I,
            "writeback_bytes": _I,
            "refaults_file": _I,
            "scanned": _I,
            "reclaimed": _I,
            "limit_hits": _I,
            "oom_kills": _I,
            "psi_some_us": _I,
            "psi_full_us": _I,
        }
    ),
    # Where each CPU sits; -1 where the kernel does not say. Read once. Absent in recordings of version 0.1.
    "cpus": _schema({"cpu": _I, "node": _I, "core": _I, "package": _I, "online": _B}),
    # On which CPUs a target thread may run (a list like 0-3,8), when first seen and whenever it has changed. Absent in
    # recordings of version 0.1.
    "affinity": _schema({"at_ns": _I, **_WHO, "cpus": _S}),
}

# The page cache as its own tracepoints tell it. Pages are base pages: a folio of order n counts 2^n. `file` is a key
# into `files`, -1: not known whose. `pid` 0: on behalf of nobody (writeback, kswapd).
PAGE_CACHE = {
    # Per file and process. accessed: pages that read(2) and the like asked for; mapped: pages that faults mapped or
    # asked for; added: read into, or written anew into, the cache by this process (readahead included); dirtied:
    # pages this process made dirty. refaulted: of the added ones, evicted by reclaim before, within this window.
    # `again`: of the accessed and mapped ones, touched before within this window. Two processes may share a page.
    # accessed, mapped: -1 where the kernel does not tell. What a process uses again through a mapping that stands
    # makes no fault and is never seen; nor are huge mappings. read_bytes, write_bytes: moved by calls, direct_bytes
    # of both through O_DIRECT. On the whole host, whatever the target; `file` -1 where there were too many.
    "use": _schema(
        {
            "file": _I,
            "pid": _I,
            "comm": _S,
            "accessed": _I,
            "mapped": _I,
            "again": _I,
            "added": _I,
            "refaulted": _I,
            "dirtied": _I,
            "direct_bytes": _I,
            "read_bytes": _I,
            "write_bytes": _I,
        }
    ),
    # Per file: what left the cache, and how. reclaimed: by kswapd or by somebody's direct or cgroup reclaim; dropped:
    # truncated, deleted, invalidated or advised away. Of the reclaimed and dropped ones `one_pass` were touched at most
    # once since they were added, as far as they were added within the window (`judged`). `touched_once`: pages that
    # were added in this window, are still there at its end, and were touched at most once. tracked: pages added in
    # this window whose touches were followed; the rest of those (untracked) only counted. -1: not known; a write is
    # a touch. written_back: pages that went to the disk.
    "evictions": _schema(
        {
            "file": _I,
            "reclaimed": _I,
            "dropped": _I,
            "judged": _I,
            "one_pass": _I,
            "touched_once": _I,
            "tracked": _I,
            "untracked": _I,
            "written_back": _I,
        }
    ),
    # Time threads lost to memory. what: direct_reclaim, cgroup_reclaim, throttled_reclaim (mm_vmscan_throttled: a
    # part of one of these), dirty_throttle (balance_dirty_pages: its pauses, in ticks), file_lock (the inode's lock of
    # `file`, while reading or writing it; waits that were spinning are not told).
    # pages: reclaimed, or dirtied since the last pause. `longest_at_ns`: when the longest began.
    "stalls": _schema(
        {
            **_WHO,
            "what": _S,
            "file": _I,
            "count": _I,
            "total_ns": _I,
            "max_ns": _I,
            "pages": _I,
            "longest_at_ns": _I,
            "in_flight": _B,
        }
    ),
    # Sizes of read and write calls on regular files, by what they moved: low <= bytes < high (powers of two); direct:
    # O_DIRECT.
    "sizes": _schema(
        {
            "file": _I,
            "pid": _I,
            "operation": _S,
            "direct": _B,
            "low_bytes": _I,
            "high_bytes": _I,
            "count": _I,
            "bytes": _I,
        }
    ),
    "files": FILES,
}

# What is in the cache of the files a target has open, by cachestat(2), at the start and at the end; bytes.
# -1 where the kernel has no cachestat (before 6.5), and then only `cached_bytes`, by mincore(2), where it can be mapped
RESIDENCY = {
    "open_files": _schema(
        {
            "at_ns": _I,
            "pid": _I,
            "file": _I,
            "size_bytes": _I,
            "cached_bytes": _I,
            "dirty_bytes": _I,
            "writeback_bytes": _I,
            "evicted_bytes": _I,
            "recently_evicted_bytes": _I,
        }
    ),
    "files": FILES,
}

# Handlers of interrupts. kind: hardirq (`name`: the action's, as /proc/interrupts shows it) or softirq (NET_RX, BLOCK,
# TIMER ...). What an interrupt took while it interrupted a softirq counts for both.
INTERRUPTS = {
    # cpu -1: all CPUs together, where the engine does not tell them apart; total_ns, max_ns -1: not told
    "totals": _schema({"kind": _S, "name": _S, "cpu": _I, "count": _I, "total_ns": _I, "max_ns": _I}),
    "latency": _schema({"kind": _S, "name": _S, "low_ns": _I, "high_ns": _I, "count": _I}),
    # What handlers took of a target's threads while these had a CPU; of a softirq without the interrupts within it.
    # in_call_ns: of it while the thread was in a system call, and so maybe on its own behalf (packets it sent to its
    # own host). Empty where the engine does not tell.
    "stolen": _schema({**_WHO, "kind": _S, "name": _S, "count": _I, "total_ns": _I, "max_ns": _I, "in_call_ns": _I}),
    # The kernel's own account of CPU time in handlers (/proc/stat: in ticks, by the tick, without
    # CONFIG_IRQ_TIME_ACCOUNTING). Empty where the engine does not tell.
    "cpus": _schema({"cpu": _I, "hardirq_ns": _I, "softirq_ns": _I}),
}

# Time between becoming runnable (woken, or switched away while still runnable) and getting a CPU.
RUN_QUEUE = {
    # pid -1: everybody together, where the engine does not tell processes apart; the idle tasks are nobody
    "latency": _schema({"pid": _I, "comm": _S, "low_ns": _I, "high_ns": _I, "count": _I}),
    # tid -1: all threads together; total_ns, max_ns -1: not told
    "totals": _schema({**_WHO, "count": _I, "total_ns": _I, "max_ns": _I}),
}

# Buffered beside direct I/O on one file system, tried by ourselves: one row per trial, interleaved, on a temporary file
# of our own. way, of reads: buffered (its pages dropped before), warm (the same at once again), direct, uncached,
# readahead; of writes: buffered (until the last call returned), synced (the same with fdatasync), direct (with
# fdatasync). `trial` numbers the rounds: rows of one round and size are compared. cpu_ns: user and system time of the
# process that tried, which did nothing else.
CALIBRATION = {
    "trials": _schema(
        {
            "directory": _S,
            "dev": _S,
            "fstype": _S,
            "operation": _S,
            "way": _S,
            "request_bytes": _I,
            "bytes": _I,
            "wall_ns": _I,
            "cpu_ns": _I,
            "trial": _I,
        }
    ),
    # why there are none, or fewer: a code and a detail
    "refusals": _schema({"directory": _S, "dev": _S, "fstype": _S, "code": _S, "detail": _S}),
}

COLLECTORS: dict[str, dict[str, pl.Schema]] = {
    "syscalls": SYSCALLS,
    "switches": SWITCHES,
    "block": BLOCK,
    "interrupts": INTERRUPTS,
    "run_queue": RUN_QUEUE,
    "proc": PROC,
    "page_cache": PAGE_CACHE,
    "residency": RESIDENCY,
    "calibration": CALIBRATION,
    "ftrace": sched.TABLES,
    "profile": profile.TABLES,
    # the ranks of one job, and of an earlier run of it
    "ranks": rank_tables.TABLES,
    "ranks_before": rank_tables.TABLES,
    # stacks that were sampled, and those of an earlier profile
    "samples": stack_samples.TABLES,
    "samples_before": stack_samples.TABLES,
}
