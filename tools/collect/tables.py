"""The columns of every collector's tables.

Times end in ``_ns`` and are nanoseconds: absolute CLOCK_MONOTONIC while collecting, relative to the start of the
recording once stored. Text columns are already inert (`whystall.tools.contract.text.clean`). ``file`` and ``*stack``
columns are keys into the ``files`` and ``stacks`` tables, -1 if there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from whystall.tools.recording.store import TableSchema
from whystall.tools.stacks import model as stack_samples
from whystall.tools.timeline import profile, sched
from whystall.tools.timeline.rank_data import tables as rank_tables

_TYPES: dict[str, pl.DataType] = {
    "str": pl.String(),
    "bool": pl.Boolean(),
    "float": pl.Float64(),
    "strs": pl.List(pl.String),
}
_THREAD = "pid tid comm:str"
_TIME_SPLIT = "oncpu_ns blocked_ns sleep_ns runnable_ns"


def _schema(*columns: str, added: str = "") -> TableSchema:
    """Return the schema of the columns ``name:type``, separated by spaces; without a type they are integers. `added`:
    further columns, which older recordings lack."""
    pairs = [column.partition(":") for text in (*columns, added) for column in text.split()]
    names = [column.partition(":")[0] for column in added.split()]
    return TableSchema({name: _TYPES[kind] if kind else pl.Int64() for name, _, kind in pairs}, names)


def filled(schemas: Mapping[str, TableSchema], **rows: Iterable[Any]) -> dict[str, pl.DataFrame]:
    """Return a table per schema from its `rows`; those without rows are empty. Rows may lack the added columns."""
    return {name: table(schema, list(rows.get(name, ()))) for name, schema in schemas.items()}


def table(schema: TableSchema, rows: list[Any]) -> pl.DataFrame:
    """Return a table of `rows`, all of which may lack the last added columns: these are then unknown."""
    least = len(schema) - len(schema.added)
    names = schema.names()[: max(len(rows[0]), least)] if rows else schema.names()
    return schema.completed(pl.DataFrame(rows, {name: schema[name] for name in names}, orient="row"))


# A file: full path on the host; `complete` False when the path could not be followed to its root.
FILES = _schema("file path:str dev:str ino fstype:str complete:bool deleted:bool")
# A stack: frames from the innermost outward, already symbolised (the host's symbols are not there later).
STACKS = _schema("stack kernel:bool frames:strs")

SYSCALLS = {
    # Calls slower than the collector's `min_ns`; `in_flight`: still inside when the window ended (end_ns is the
    # window's end).
    "calls": _schema(
        f"start_ns end_ns {_THREAD} syscall:str file fd asked returned offset direct:bool {_TIME_SPLIT}",
        "in_flight:bool kstack",
    ),
    # All calls, fast ones too, per thread and system call.
    "totals": _schema(f"{_THREAD} syscall:str count wall_ns {_TIME_SPLIT} max_ns bytes"),
    # All file calls per file: a log-linear histogram, low_ns <= latency < high_ns.
    "latency": _schema("file dev:str ino pid syscall:str low_ns high_ns count sum_ns bytes"),
    # Calls that failed, by thread, system call and error (`whystall.bpf.collectors.syscalls.ERRORS`), without time-outs
    # of futex calls. first_ns, last_ns: when they returned. file, object (as in `switches.segments`): of the first one.
    # Filled by the engine ebpf; absent in recordings of older versions.
    "failures": _schema(f"{_THREAD} syscall:str error:str count first_ns last_ns file object:str"),
    "files": FILES,
    "stacks": STACKS,
}

FD_UNREAD = -2
"""Value of ``switches.segments.fd``: a poll or select waits for descriptors, but which was not read."""

# state: D uninterruptible, S interruptible sleep, R preempted while runnable, other (stopped, traced, ...) by letter.
_WAIT = "state:str syscall:str file kstack ustack"
SWITCHES = {
    # Off-CPU segments longer than `min_ns`; `open`: not ended at the window's end; `seeded`: began before the window.
    # runnable_ns: its last part, awake and waiting for a CPU. context: what ended the wait: task, timer, block (a
    # request's completion), network, signal, interrupt (another one); with another than task, the waker is whoever the
    # interrupt ran on top of. waker_syscall: the system call in which the waker was. object: what the call waits for,
    # as /proc/PID/fd names it (pipe:[123], socket:[456], anon_inode:[eventpoll]), of poll and select the first
    # descriptor; fd: its number, or `FD_UNREAD`. asked_ns: time-out or sleep that it asked for. ran_pid, ran_comm:
    # the thread's predecessor on the CPU, if it waited for one. sightings: of a sampling engine, how many scans found
    # the thread in this wait: of one the length is the time until the next scan, right on average only. -1 or empty:
    # unknown.
    "segments": _schema(
        f"start_ns end_ns {_THREAD} {_WAIT} lock waker_pid waker_tid waker_comm:str woken_ns open:bool seeded:bool",
        added="runnable_ns context:str waker_syscall:str object:str fd asked_ns ran_pid ran_comm:str sightings",
    ),
    "totals": _schema(f"{_THREAD} {_WAIT} count total_ns max_ns"),
    # Processes recorded from `at_ns` on because they woke (`tid`, `comm`) a thread of a target or of another such
    # process (`woken_pid`): only their switches and samples are recorded. Absent in older recordings.
    "followed": _schema(f"at_ns {_THREAD} woken_pid"),
    "files": FILES,
    "stacks": STACKS,
}

BLOCK = {
    # phase: queue (insert to issue) or device (issue to complete)
    "latency": _schema("device:str operation:str phase:str low_ns high_ns count"),
    "totals": _schema("device:str operation:str count bytes queue_ns device_ns max_ns"),
    # Requests slower than `min_ns`; `in_flight`: not completed at the window's end (end_ns), issue_ns 0: still queued.
    "slow": _schema("start_ns issue_ns end_ns device:str operation:str bytes sector pid comm:str in_flight:bool"),
}

# Counters read at the start, at the end, and every `period_ns` between; every row has the time of its reading.
PROC = {
    # name: psi_cpu_some_us, cpu_user_ns, runnable, vm_pgscan_direct, mem_total_bytes ... (see proc_counters)
    "host": _schema("at_ns name:str value:float"),
    # state: as in /proc/PID/stat, Z: it has ended and its parent has not taken note. exit_code: then, as wait(2)
    # reports it, a signal's number in the lowest 7 bits; -1: unknown, 0: unknown or none.
    "processes": _schema(
        "at_ns pid ppid comm:str start_ticks user_ns system_ns block_io_ns major_faults minor_faults rss_bytes",
        "read_bytes write_bytes threads cgroup:str",
        added="state:str exit_code",
    ),
    # Threads of the target only. run_ns and wait_ns (runnable without a CPU) from schedstat; block_io_ns from delay
    # accounting.
    "threads": _schema(f"at_ns {_THREAD} state:str user_ns system_ns run_ns wait_ns block_io_ns voluntary involuntary"),
    "disks": _schema("at_ns device:str dev:str reads read_bytes read_ms writes write_bytes write_ms busy_ms in_flight"),
    # -1 if the controller has no such limit or file
    "cgroups": _schema(
        "at_ns cgroup:str version periods throttled_periods throttled_ns quota_us period_us",
        "memory_bytes memory_limit_bytes memory_limit_hits",
    ),
    # Memory of the target's cgroups in full (of version 1: memory.stat's total_*), -1 if unknown. psi_*: microseconds,
    # of this cgroup alone. Absent in recordings before page_cache.
    "memory": _schema(
        "at_ns cgroup:str version usage_bytes limit_bytes high_bytes anon_bytes file_bytes active_file_bytes",
        "inactive_file_bytes dirty_bytes writeback_bytes refaults_file scanned reclaimed limit_hits oom_kills",
        "psi_some_us psi_full_us",
    ),
    # Local file systems that the target's processes see, at the start and at the end. free_bytes, free_inodes: for the
    # target's user. inodes 0: not limited. open_files: the target's descriptors for writing. Absent in older
    # recordings.
    "filesystems": _schema("at_ns path:str dev:str fstype:str size_bytes free_bytes inodes free_inodes open_files"),
    # Limits of block I/O that bind a process of the target, of its cgroup (version 2: and of those above), at first and
    # after a change: bytes and operations per second, -1: none. dev empty: all cgroups that may limit this process were
    # read. Absent in older recordings.
    "io_limits": _schema("at_ns pid cgroup:str version dev:str read_rate write_rate read_iops write_iops"),
    # What the cgroups with such a limit moved there so far, every 100 ms; of version 1 before a request is held back.
    # Absent in older recordings.
    "io_use": _schema("at_ns cgroup:str dev:str read_bytes write_bytes reads writes"),
    # Partitions, by number, and the disk on which they are. Read once. Absent in older recordings.
    "partitions": _schema("dev:str device:str"),
    # Topology; -1 if unknown. Read once. Absent in recordings of version 0.1.
    "cpus": _schema("cpu node core package online:bool"),
    # How long each CPU has been busy (not idle, not idle for I/O) since boot. Absent in older recordings.
    "cpu_times": _schema("at_ns cpu busy_ns"),
    # The CPUs that a target thread may run on (a list like 0-3,8), at first and after each change. Absent in
    # recordings of version 0.1. cpuset: those of its cgroup, empty if unknown.
    "affinity": _schema(f"at_ns {_THREAD} cpus:str", added="cpuset:str"),
    # Processes outside of the target that a CPU quota (of `cgroup`, theirs or one above it) or an affinity binds, at
    # the start and at the end. -1: no quota; cpus empty: all of the host. Absent in older recordings.
    "cpu_bounds": _schema("at_ns pid cgroup:str throttled_ns periods throttled_periods quota_us period_us cpus:str"),
    # With which weights processes share the CPUs: a row for each cgroup from below the root down to theirs (or for the
    # group of their session, autogroup), and one for the process (group empty); of a thread of the target whose policy
    # or nice value differs from its process's, the same with its tid as pid. weight: on the scale of nice 0 = 1024.
    # setting, value: where it comes from (cpu.shares, cpu.weight, cpu.idle, nice, SCHED_IDLE). Of the target, and of
    # others that used CPU time, at the end. Absent in older recordings.
    "cpu_weights": _schema("at_ns pid comm:str group:str weight setting:str value"),
    # Processes and threads in the cgroups of the target, and in those above them, that have a limit of these, at the
    # end. Absent in older recordings.
    "task_limits": _schema("at_ns cgroup:str tasks limit"),
    # Threads of the host with a real-time policy (fifo, rr, deadline) at the end that ran. run_ns: on a CPU between the
    # start and the end, -1: unknown (it had another policy at the start). priority: 1 (low) to 99, of deadline 0. cpus:
    # those that it may run on. Absent in older recordings.
    "real_time": _schema(f"at_ns {_THREAD} policy:str priority run_ns cpus:str"),
}

# The page cache by its tracepoints. Pages are base pages: a folio of order n counts 2^n. `file` -1: unknown. `pid` 0:
# of no process (writeback, kswapd).
PAGE_CACHE = {
    # Per file and process, on the whole host, whatever the target; `file` -1 if there were too many.
    # accessed: pages that read(2) and the like asked for; mapped: pages that faults mapped or asked for (-1 for both:
    # not reported by this kernel; accesses through an existing mapping and huge mappings are never observed).
    # added: read or newly written into the cache by this process (readahead included); refaulted: of these, evicted by
    # reclaim earlier in this window. dirtied: made dirty by this process. again: of the accessed and mapped ones,
    # touched earlier in this window. Two processes may share a page.
    # read_bytes, write_bytes: moved by calls; direct_bytes: of both, through O_DIRECT.
    "use": _schema(
        "file pid comm:str accessed mapped again added refaulted dirtied direct_bytes read_bytes write_bytes"
    ),
    # Pages that left the cache, per file. reclaimed: by kswapd, direct or cgroup reclaim; dropped: truncated, deleted,
    # invalidated or advised away. judged: of these, the pages added within the window; one_pass: of the judged, those
    # touched at most once. touched_once: added in this window, still cached at its end, touched at most once; a write
    # is a touch. tracked: added in this window, with touches followed; untracked: the others added.
    # written_back: pages written to the disk. -1: unknown.
    "evictions": _schema("file reclaimed dropped judged one_pass touched_once tracked untracked written_back"),
    # Time threads lost to memory. what: direct_reclaim, cgroup_reclaim, throttled_reclaim (mm_vmscan_throttled: a
    # part of one of these), dirty_throttle (balance_dirty_pages: its pauses, in ticks), file_lock (the inode's lock of
    # `file`, while reading or writing it, without spinning).
    # pages: reclaimed, or dirtied since the last pause. `longest_at_ns`: start of the longest.
    "stalls": _schema(f"{_THREAD} what:str file count total_ns max_ns pages longest_at_ns in_flight:bool"),
    # Sizes of read and write calls on regular files by what they moved: low <= bytes < high (powers of two); direct:
    # O_DIRECT.
    "sizes": _schema("file pid operation:str direct:bool low_bytes high_bytes count bytes"),
    "files": FILES,
}

# Cached pages of the files a target has open, by cachestat(2), at the start and at the end; bytes. Before kernel 6.5
# only `cached_bytes`, by mincore(2), of files that can be mapped; the others are -1.
RESIDENCY = {
    "open_files": _schema(
        "at_ns pid file size_bytes cached_bytes dirty_bytes writeback_bytes evicted_bytes recently_evicted_bytes"
    ),
    "files": FILES,
}

# What threads wait for, and who holds it: read from /proc, sock_diag and the memory of processes, without stopping
# them, at the start and at the end of the window (`at_ns`).
OBJECTS = {
    # Threads of the target, of its children and, at the end, of the processes that hold what these wait for (and of
    # those that hold what the holders wait for). wchan: kernel function. object: as in `switches.segments`, but an
    # eventfd has its number (anon_inode:[eventfd:17]), and a call on an absolute path has this. lock: address of the
    # futex word, 0: none; lock_kind: mutex, rwlock, stdio, join, gil (the interpreter lock), python (threading.Lock
    # or RLock, which keep no owner: the thread inside ``with lock``), abandoned (a mutex that another thread of the
    # parent held when this process was forked: nobody can release it), empty if unknown;
    # owner_tid: of the lock, also of a thread that has ended, -1 if it keeps none or it could not be read. holds_gil:
    # the interpreter lock is held by this thread. tracer_pid: 0 if not traced. frozen: by a freezer cgroup. Of a thread
    # on a CPU or waiting for one (R) only the Python stack is read. limited: the call has a time-out (1) or none (0).
    # readers: how often the read-write lock is held for reading, -1: it is not, or not known.
    "threads": _schema(
        f"at_ns {_THREAD} state:str wchan:str syscall:str object:str fd lock lock_kind:str owner_tid holds_gil:bool",
        "tracer_pid frozen:bool kstack pystack",
        added="limited readers",
    ),
    # What else a thread waits for, one row each: the members of an epoll set, the descriptors of poll and select.
    # object empty: one that could not be read. Absent in older recordings.
    "members": _schema("at_ns pid tid fd object:str"),
    # The words on which threads wait for the interpreter lock of a process, one row each, and its holder's tid (-1:
    # nobody, unknown).
    "interpreters": _schema("at_ns pid version:str word holder_tid"),
    # Sockets of the target's processes and their other ends on this host (at the end also those of the processes that
    # have these, as far as there are few), one row each, with one of the processes that hold it (pid, fd -1: unknown;
    # before the end those of other processes are not searched). peer: the inode of the other end, -1 if it is not on
    # this host; of a connection that is not accepted yet, the listening socket. family: inet, inet6, unix; protocol:
    # tcp, udp; stream, dgram, seqpacket; state: established, listen, syn_sent ... local, remote: 10.0.0.1:80,
    # [::1]:80, a path, @name. From tcp_info (-1: not TCP, unknown), times in microseconds: retransmits: segments so
    # far; lost, unacked: segments now; busy: with data unacknowledged; rwnd_limited, sndbuf_limited: of it, limited by
    # the receiver's window, by the send buffer; rates: bytes per second.
    "sockets": _schema(
        "at_ns inode peer pid fd comm:str family:str protocol:str state:str local:str remote:str recv_queue send_queue",
        "rtt_us min_rtt_us rtt_var_us retransmits unacked lost cwnd segments_out bytes_acked bytes_received busy_us",
        "rwnd_limited_us sndbuf_limited_us last_sent_ms last_received_ms delivery_rate pacing_rate",
        # options: bit 0 with timestamps; receive_rtt: from an acknowledgement to data sent after it arrived (0: not
        # measured); data_segments: with data, so far; out_of_order: of these, arrived before an earlier one
        added="options receive_rtt_us data_segments_in data_segments_out out_of_order",
    ),
    # Processes that have open what a thread in `threads` waits for: pipe, FIFO, eventfd, socket and its other end; of a
    # file on FUSE the process that serves it. At the start only the target's processes. writes: may write to it.
    "ends": _schema("at_ns object:str pid comm:str fd reads:bool writes:bool"),
    # /proc/locks, of the files that the processes in `threads` have locked or wait to lock. kind: flock, posix, ofd,
    # lease; waits: this one waits for the lock of `holder_pid`; pid -1: a lock of an open file, not of a process.
    "file_locks": _schema(
        "at_ns kind:str exclusive:bool pid dev:str ino start_byte end_byte waits:bool holder_pid path:str"
    ),
    # Process groups of torch.distributed, read from the process's memory. group: address of the object; name: as torch
    # numbers groups (0: the default group), description: empty if unknown; started: operations that this rank has
    # begun in the group so far: collectives, of gloo also sends and receives. served: 0 if the process has no threads
    # for groups (it was forked from a rank, or they have no names).
    "process_groups": _schema("at_ns pid group backend:str name:str description:str rank size started", added="served"),
    "stacks": STACKS,
}

# Operations between ranks, by probes at the functions of gloo, NCCL, RCCL, HCCL and MPI. -1: unknown, of instants 0.
COLLECTIVE_CALLS = {
    # An operation of one rank. queued_ns: asked for; start_ns: begun, of gloo by the thread that executes it; end_ns:
    # finished; of a library that works on a device (nccl, rccl, hccl): enqueued. `open`: not finished at the window's
    # end. tid: the thread that asked. group: address of the process group or communicator; seq: number of the operation
    # in the group as torch counts; count: elements. Calls that began before the window are left out.
    "calls": _schema("start_ns end_ns queued_ns pid tid library:str op:str group seq count bytes peer open:bool"),
    # Processes with such functions. rank, world_size: by their environment; cost_ns: time that our probes took them.
    "processes": _schema("pid comm:str rank world_size cost_ns"),
}

# Memory of the processes of the target and their descendants, at the start, at the end, and every `period_ns` between
# (without a target: of all processes, between of the largest); -1: unknown.
MEMORY_USE = {
    # private_dirty: own copies, also of pages shared after a fork. pss: its share of each page. From smaps_rollup, like
    # private_clean and shared: -1 between start and end. cgroup: of the memory controller.
    "processes": _schema(
        "at_ns pid ppid comm:str start_ticks rss_bytes anon_bytes file_bytes shmem_bytes swap_bytes page_table_bytes",
        "pss_bytes private_dirty_bytes private_clean_bytes shared_bytes cgroup:str",
    ),
    # Of the target's cgroups and of the host (cgroup empty). limit -1: none. file: page cache with shmem. reclaimable:
    # the part of `used` that the kernel can free by itself, without swapping. oom_kills: of its own processes, so far;
    # before Linux 5.2 with those of cgroups below.
    "groups": _schema(
        "at_ns cgroup:str used_bytes limit_bytes anon_bytes file_bytes shmem_bytes slab_bytes kernel_stack_bytes",
        "swap_bytes reclaimable_bytes oom_kills",
    ),
    # Processes that the kernel killed for lack of memory. cgroup: its own, empty if unknown; limit_cgroup: whose limit
    # was reached, empty: the host's memory, or unknown. pid -1: the counter of `cgroup` rose, and which process was
    # killed is unknown. source: log (/dev/kmsg), counter (the process vanished while its cgroup's counter rose, or the
    # log names the process, and counters the cgroup).
    "oom_kills": _schema("at_ns pid comm:str cgroup:str limit_cgroup:str anon_bytes source:str"),
}

# Processes of a job, and why some have ended; -1: unknown.
JOB_PROCESSES = {
    # At the start and at the end: the target with its descendants, and processes that have ended and for which a
    # parent of these has not waited (state Z). rank, local_rank (on its host), local_size (ranks of its host),
    # group_rank (of the host), world_size: from the environment, which ended processes have no more. one_host: it
    # states that all ranks are on this host. exit_code: of ended ones, as wait(2) returns it.
    "processes": _schema(
        "at_ns pid ppid comm:str state:str start_ticks rank local_rank local_size group_rank world_size one_host:bool",
        "exit_code",
    ),
    # How long before the end a main thread last ran, without time that interrupts or the hypervisor took. Of an ended
    # process: since it ended.
    "idle": _schema("pid idle_ns"),
    # The last uncaught exception of each rank in the end of each log. path: of the log; line: where the traceback
    # begins in that end; frames as in `stacks`; detail: the message; of_other: of a kind that ranks raise when another
    # one has ended or is late.
    "exceptions": _schema("path:str rank local_rank line exception:str detail:str of_other:bool frames:strs"),
    # Kills for lack of memory since the job began: by the kernel's log, of processes with names of the job's or in its
    # cgroups (of_job). pid -1: by the counter of a cgroup of the job, `count` kills since it was made.
    "oom_kills": _schema("pid comm:str cgroup:str limit_cgroup:str of_job:bool count"),
}

# Handlers of interrupts. kind: hardirq (`name`: the action's, as in /proc/interrupts) or softirq (NET_RX, BLOCK,
# TIMER ...). An interrupt during a softirq counts for both. Tables that an engine cannot fill are empty.
INTERRUPTS = {
    # cpu -1: all CPUs together; total_ns, max_ns -1: unknown
    "totals": _schema("kind:str name:str cpu count total_ns max_ns"),
    "latency": _schema("kind:str name:str low_ns high_ns count"),
    # Time that handlers took from a target's threads on a CPU; of a softirq without the interrupts within it.
    # in_call_ns: of it while the thread was in a system call, and so maybe on its own behalf (packets it sent to its
    # own host).
    "stolen": _schema(f"{_THREAD} kind:str name:str count total_ns max_ns in_call_ns"),
    # The kernel's own account of CPU time in handlers (/proc/stat: in ticks, sampled by the tick without
    # CONFIG_IRQ_TIME_ACCOUNTING).
    "cpus": _schema("cpu hardirq_ns softirq_ns"),
}

# Time between becoming runnable (woken, or switched away while still runnable) and getting a CPU.
RUN_QUEUE = {
    # pid -1: all processes together; the idle tasks are left out
    "latency": _schema("pid comm:str low_ns high_ns count"),
    # tid -1: all threads together; total_ns, max_ns -1: unknown
    "totals": _schema(f"{_THREAD} count total_ns max_ns"),
}

# Messages of device drivers in the kernel log (Xid of NVIDIA's GPUs, SXid of its switches): of the log that the kernel
# still has and of the journal, or of a file; not of the window alone. -1 or empty: unknown.
DEVICE_LOG = {
    # Equal messages are one row; `number`: their order. device: PCI address; uuid: GPU-...; unit: of NVLink 5, or the
    # switch; fatal: yes or no, as the message says; root: the Xid that it names as its cause; recovery: what Xid 154
    # asks for; numbered: the message states the code. first_us, last_us: by clock, boot or wall (since 1970). line: of
    # the first message in the file, from 1, else 0 or -1; host: as the log states, else empty.
    "events": _schema(
        "number kind:str code device:str uuid:str unit:str sub_code status fatal:str link root recovery numbered:bool",
        "count first_us last_us clock:str detail:str",
        added="line host:str",
    ),
    # Processes that the messages of an event name.
    "processes": _schema("number pid comm:str"),
    # What was read: source kmsg, journal or file. lines: of the whole source; messages: of the driver, of these
    # foreign: written by programs, unmarked: by whom does not show; quoted: in other text; lost: not kept. from_us,
    # until_us: the first and the last instant, by clock; whole: it begins with the start of the kernel.
    "sources": _schema(
        "source:str lines bytes messages foreign unmarked quoted lost from_us until_us clock:str whole:bool"
    ),
}

# Counters of the host's hardware, at the start and at the end; see `hardware`.
HARDWARE = {
    # kind: memory (EDAC: ce_count, ue_count of a controller, or of a module), machine_check (exceptions), thermal
    # (throttlings of a CPU core or package, and milliseconds in them), rdma, ethernet (of a port). device: mc0, cpu7,
    # mlx5_0, eth0; port: of RDMA, or of a module; -1: none. Counters that are 0 at both ends are left out.
    "counters": _schema("at_ns kind:str device:str port name:str value"),
    # At the end. state: active, down ...; rate_mbps: -1: unknown; link: infiniband, ethernet.
    "ports": _schema("kind:str device:str port state:str rate_mbps link:str"),
    # Which kinds could be read, and how many counters there are of each, also of those that are 0.
    "kinds": _schema("kind:str counters"),
}

# State of NVIDIA GPUs by NVML. device: PCI address; -1 or empty: unknown. milliwatts, MHz, degrees Celsius.
GPU_STATE = {
    # At the end. Errors of memory: volatile: since the driver started. remap_pending, remap_failed: of rows, 1: yes.
    # recovery: as Xid 154 numbers it. A negative limit is unknown.
    "gpus": _schema(
        "number device:str uuid:str model:str clock_max_mhz power_limit_mw slowdown_c pcie_generation_max",
        "pcie_width_max",
        "ecc_corrected ecc_uncorrected ecc_corrected_ever ecc_uncorrected_ever remapped_corrected remapped_uncorrected",
        "remap_pending remap_failed recovery memory_bytes",
    ),
    # At the start, at the end, and every `period_ns` between. reasons: bits of nvmlClocksEventReasons; busy_pct: of the
    # time in which a kernel ran, by the driver's last sample.
    "readings": _schema(
        "at_ns device:str clock_mhz reasons temperature_c power_mw busy_pct memory_used_bytes pcie_generation",
        "pcie_width pcie_replays",
    ),
    # Of each NVLink, at the start and at the end. state: 1: up.
    "links": _schema("at_ns device:str link state replays recoveries crc_flits crc_data"),
    # Processes that use a GPU, at the end.
    "processes": _schema("device:str pid comm:str used_bytes"),
    # Values that could not be read: name: of the function; error: its text; count: times.
    "failures": _schema("device:str call:str error:str count"),
}

# Accelerators of Huawei (Ascend) and AMD, as npu-smi, amd-smi and rocm-smi state them; see tools/collect/cards/card.py.
CARD_STATE = {
    "cards": _schema(
        "vendor:str number chip device:str model:str health:str throttle:str temperature_c power_mw busy_pct",
        "memory_used_bytes memory_bytes ecc_corrected ecc_uncorrected pcie_width pcie_width_max pcie_mts pcie_mts_max",
        "link_errors",
    )
}

# Versions of software, read once. pid: of the process that has loaded it, -1: of the host. where: kernel, driver,
# package, library (by its name), binary (a constant in it), file, log. vendor_built: a vendor may have changed it.
VERSIONS = {"versions": _schema("component:str version:str where:str pid vendor_built:bool")}

# What inference servers state of themselves on a Prometheus endpoint. local: its address; empty: files were read.
SERVING = {
    # Each request for metrics. status: of HTTP, -1 no answer; health: the same of /health, -2 not asked; error: a code
    "scrapes": _schema("at_ns local:str pid status error:str answer_ns bytes health health_ns"),
    # Values of known metrics. quantity: what it measures, see serving/metrics.yaml; part: value, count, sum, bucket;
    # series: a number for its labels; le: upper bound of a bucket, else NaN; seconds where the quantity is a time.
    "values": _schema("at_ns local:str pid server:str quantity:str metric:str part:str series le:float value:float"),
}

# Trials of buffered and direct I/O on one file system: one row per trial, interleaved, on a temporary file of our own.
# way, of reads: buffered (its pages dropped before), warm (the same again at once), direct, uncached, readahead; of
# writes: buffered (until the last call returned), synced (the same with fdatasync), direct (with fdatasync). `trial`
# numbers the rounds: rows of one round and size are compared. cpu_ns: user and system time of the process that did
# the trial and nothing else.
CALIBRATION = {
    "trials": _schema(
        "directory:str dev:str fstype:str operation:str way:str request_bytes bytes wall_ns cpu_ns trial"
    ),
    # why there are none, or fewer: a code and a detail
    "refusals": _schema("directory:str dev:str fstype:str code:str detail:str"),
}

# Of engines that do not count failing calls: without the table, not with an empty one.
SYSCALLS_WITHOUT_FAILURES = {name: schema for name, schema in SYSCALLS.items() if name != "failures"}

# Times that logs state, in us: since the epoch if `zoned`, else of the host's time zone; -1: not stated. `width_us`:
# how finely a time is stated. `start`, `end`: bytes of the log.
_STATED = "at_us width_us zoned:bool"
CRASHES = {
    # `left`: reports beyond the limit; `imitated`: lines of user space that look like reports of the kernel
    "logs": _schema("path:str rank local_rank bytes left imitated damaged:bool"),
    # Reports of the kernel. `also`: other titles, separated by |; `why`: why it is corrupted, else empty; `boot_s`:
    # seconds since boot, -1 not stated; `functions`: of its trace, innermost first;
    # `cgroup` to `allocator`: of a kill for lack of memory; `line`: the first one in the file, from 1; `module`: of the
    # function, empty: of the kernel itself, or unknown
    "reports": _schema(
        "path:str start end kind:str title:str also:str function:str why:str origin:str panicked:bool boot_s:float",
        f"{_STATED} host:str comm:str pid taint:str release:str modules:str foreign:str functions:str",
        "cgroup:str limit_cgroup:str anon_bytes allocator:str",
        added="line module:str",
    ),
    # Failures of programs. `status`: exit code, or minus the signal; -1000: not stated; `of_other`: a reaction to the
    # failure of another rank; `exact`: at that time, else after it and until `until_us`
    "failures": _schema(
        "path:str start end kind:str title:str detail:str rank local_rank pid comm:str host:str status signal:str",
        f"of_other:bool frames:strs {_STATED} exact:bool until_us until_width_us",
        added="line",
    ),
}
# How the hosts of a cluster, their GPUs and NICs are connected. `node`: NUMA node, -1 unknown; `cpus`: a list, empty
# unknown.
TOPOLOGY = {
    "sources": _schema("path:str kind:str host:str"),
    "numa": _schema("host:str node cpus:str"),
    # kind: gpu, nic; `device`: GPU0 (by its NVML number), mlx5_0, or `bus`, its PCI address
    "devices": _schema("host:str kind:str device:str bus:str node cpus:str uuid:str model:str"),
    # relation: NV18, PIX, PXB, PHB, NODE, SYS; `stated` by NVIDIA's tools, else derived from PCI addresses
    "links": _schema("host:str device:str other:str relation:str stated:bool"),
    # Processes of a job. `device`: its GPU, empty unknown; `nics`: that it has open, separated by blanks; `memory`:
    # NUMA nodes that it may use
    "ranks": _schema("host:str rank pid comm:str device:str cpus:str memory:str nics:str"),
    # What other tools found: `severity` of `kind` at a host, device or rank (-1: none)
    "marks": _schema("host:str device:str rank kind:str severity:str"),
    # of requests, since the start of the server `source` (vllm, tgi, sglang, triton, or stated by a file)
    "latency": _schema("host:str source:str requests p50_us p90_us"),
    # process groups of the job; ranks as 0-7
    "groups": _schema("name:str ranks:str"),
}
COLLECTORS: dict[str, Mapping[str, pl.Schema]] = {
    "topology": TOPOLOGY,
    "syscalls": SYSCALLS,
    "switches": SWITCHES,
    "block": BLOCK,
    "interrupts": INTERRUPTS,
    "run_queue": RUN_QUEUE,
    "proc": PROC,
    "page_cache": PAGE_CACHE,
    "residency": RESIDENCY,
    "objects": OBJECTS,
    "memory_use": MEMORY_USE,
    "job_processes": JOB_PROCESSES,
    "collectives": COLLECTIVE_CALLS,
    "calibration": CALIBRATION,
    "device_log": DEVICE_LOG,
    "hardware": HARDWARE,
    "gpu_state": GPU_STATE,
    "card_state": CARD_STATE,
    "versions": VERSIONS,
    "serving": SERVING,
    # what logs state about crashes
    "crashes": CRASHES,
    "ftrace": sched.TABLES,
    "profile": profile.TABLES,
    # the ranks of one job, and of an earlier run of it
    "ranks": rank_tables.TABLES,
    "ranks_before": rank_tables.TABLES,
    "baseline": rank_tables.BASELINE,
    # sampled stacks, and those of an earlier profile
    "samples": stack_samples.TABLES,
    "samples_before": stack_samples.TABLES,
    # calls of functions of accelerators' libraries, of a continuous recording
    "accelerator": stack_samples.TABLES,
}
