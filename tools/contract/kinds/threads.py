"""Kinds of findings about what threads wait for, the scheduler, interrupts, and accelerators that threads feed."""

from __future__ import annotations

from whystall.tools.contract.kinds.spec import KindSpec, Mechanism, kind

_WAITED = "window_pct total_ms max_ms count"
_BLOCKED = "count total_ms max_ms window_pct"
# `code`: the line of the program that waits
_BLOCKED_ATTRIBUTES = "syscall state kernel_path user_path code waker open"

# A row of the critical path. `code`: the innermost line of Python in the program or its libraries; `function`: that
# of the program itself (``save (train.py:41)``); `stack`: its frames of Python, outermost first. `wait`, `mode` and
# `role`: codes of `whystall.tools.host.common.path_codes`. `by`: who ended the wait, or took the CPU. `root_*`: what
# the thread at the end of the chain of waits did in most of the time, in `root_pct` of it (`root_by_pct`: whatever its
# process did); `root_mode`: how it ran; `root_detail`: why it had no CPU, and `root_object` who ran instead;
# `root_same`: it waits for other ranks, too, at the same line; `root_mutual`: it waits for this thread;
# `root_outside`: its process is no part of the job; `root_in_turn`: its rank waits for others about as long. `device`,
# `mount`: the disk of the file `object`, and where it is mounted. `cpus`: the only ones that the thread may use, where
# that matters. `between`, `between_object`: of a sleep, that the thread only looks for work before it sleeps again
# (`path_codes.ASKS` and so on), which takes `between_ms`. `killed`: ended by processes that were killed for lack of
# memory. `standstill`: all threads of the job wait for each other. `requests_in_flight`: of a process that serves
# clients.
_PATH = (
    "code function stack wait object detail by chain root_wait root_code root_by root_object open role device mount"
    " cpus root_detail root_mode root_same root_mutual root_outside root_in_turn brief"
)
_LOCK = "window_pct total_ms max_ms count threads holder_pct"
_HOLDER = "holder holder_code holder_doing"
_PATH_METRICS = "window_pct total_ms max_ms p50_ms count asked_ms root_pct root_by_pct"

KINDS: dict[str, KindSpec] = {
    # From the history of the watch: waits of threads of one role in one place, against another span, or in a part of
    # the span against the rest of it. Ratios: seconds of waiting of all these threads per second; `low_ratio`,
    # `high_ratio`: 95 % interval of the difference. `q_value`: p adjusted for all rows that were tested.
    "wait.change": kind(
        Mechanism.SWITCHES,
        "thread",
        "before_ratio after_ratio low_ratio high_ratio p_value q_value",
        "state syscall code object ended_by direction job",
    ),
    # Likewise of CPU time by samples: of threads of one role at one line of the program.
    "running.change": kind(
        Mechanism.SAMPLES,
        "thread",
        "before_ratio after_ratio low_ratio high_ratio p_value q_value",
        "syscall code direction job",
    ),
    # From the history of the watch: a part of the steps of the thread that makes progress, against another span; names
    # as in rows of the critical path. Times per step; without steps ratios, seconds per second. `low_...`, `high_...`:
    # 95 % interval of the difference.
    "step.change": kind(
        Mechanism.SWITCHES,
        "thread",
        "before_ms after_ms low_ms high_ms before_ratio after_ratio low_ratio high_ratio p_value q_value",
        "wait detail code object root_by root_wait root_code root_object direction",
    ),
    # Rows of the critical path of the thread that makes progress; the rows of one thread sum to the window.
    # `interpreted_pct`: of the window, in the program's Python code and the standard library, not in packages.
    # `growth_ratio`: time of a call in the last third of the window to that in the first third; 1 without a trend.
    "path.running": kind(
        Mechanism.SWITCHES,
        "thread",
        f"{_PATH_METRICS} interpreted_pct growth_ratio",
        f"{_PATH} mode",
        share="window_pct",
    ),
    "path.wait": kind(
        Mechanism.SWITCHES,
        "thread",
        f"{_PATH_METRICS} requests_in_flight between_ms",
        f"{_PATH} between between_object killed standstill",
        share="window_pct",
    ),
    # What a thread did while another one waited for it; subject: that thread; `waiter`: the waiting one;
    # `by`: the thread that it waits for in turn, inside a chain.
    "path.waker": kind(Mechanism.WAKER, "thread", _PATH_METRICS, f"{_PATH} mode waiter via", share="window_pct"),
    # A function that recurs, for a short time each.
    "path.pause": kind(
        Mechanism.SWITCHES,
        "thread",
        "window_pct total_ms max_ms p50_ms count period_s running_pct waiting_pct main_pct",
        "code function main main_wait",
        share="window_pct",
    ),
    # Longest time between two waits of an event loop for its events.
    "path.loop_lag": kind(
        Mechanism.SWITCHES, "thread", "window_pct max_ms p50_ms p99_ms count", "code main_wait", share="window_pct"
    ),
    # Waits of a thread for a lock; `holder`: who ended most of them, or has the lock; `holder_doing`: what it did.
    # `evidence`: memory, function, passes (see lock_wait).
    "lock.wait": kind(Mechanism.SWITCHES, "thread", _LOCK, f"{_HOLDER} code open evidence", share="window_pct"),
    # the interpreter lock of Python; held_pct: of the window, by the thread that holds it most
    "lock.interpreter": kind(
        Mechanism.SWITCHES, "thread", f"{_LOCK} held_pct", f"{_HOLDER} code open", share="window_pct"
    ),
    "lock.file": kind(Mechanism.SWITCHES, "thread", _LOCK, f"{_HOLDER} code open evidence", share="window_pct"),
    # the holder at the end of the window, as read from the lock's memory or /proc/locks
    "lock.held": kind(Mechanism.OBJECTS, "thread", "window_pct", _HOLDER, share="window_pct"),
    # `proof`: cycle (of owners in memory), itself (it holds the lock), dead_owner, no_owner_kept (all threads wait for
    # locks without a stored owner)
    "lock.deadlock": kind(Mechanism.OBJECTS, "thread", "window_pct threads", "proof cycle code", share="window_pct"),
    # `wait`: stopped, traced, frozen
    "process.stopped": kind(Mechanism.OBJECTS, "process", "threads", "wait"),
    "offcpu.blocked": kind(Mechanism.SWITCHES, "thread", _BLOCKED, _BLOCKED_ATTRIBUTES, share="window_pct"),
    "offcpu.lock_wait": kind(Mechanism.SWITCHES, "thread", _BLOCKED, f"{_BLOCKED_ATTRIBUTES} lock", share="window_pct"),
    "offcpu.preempted": kind(Mechanism.SWITCHES, "thread", _BLOCKED, "state", share="window_pct"),
    # what keeps a thread that feeds an accelerator from doing so
    "sched.preempted_by": kind(
        Mechanism.SWITCHES, "thread", _WAITED, "neighbour processes own cpus", share="window_pct"
    ),
    "sched.wakeup_latency": kind(
        Mechanism.SWITCHES, "thread", "count p50_ms p99_ms max_ms late window_pct", "mostly", share="window_pct"
    ),
    # `forced`: how often others gave it other CPUs
    "sched.migrations": kind(
        Mechanism.SWITCHES,
        "thread",
        "count rate cross_core cross_node forced window_pct",
        "moves",
        share="window_pct",
    ),
    "sched.throttled": kind(Mechanism.SWITCHES, "thread", f"{_WAITED} throttled_s", share="window_pct"),
    # pinned to CPUs that others use
    "sched.affinity_crowded": kind(Mechanism.SWITCHES, "thread", "allowed_cpus others_pct", "cpus neighbour"),
    # every wait for a CPU, from runnable to running; quantiles of its process where that has one thread
    "sched.queue_latency": kind(
        Mechanism.SWITCHES, "thread", "count total_ms p50_ms p99_ms max_ms window_pct", share="window_pct"
    ),
    # CPU time that handlers take of one CPU; count, total_ms and max_ms of `interrupt`, which takes most
    "irq.load": kind(Mechanism.INTERRUPTS, "host", "cpu_pct rate count total_ms max_ms", "interrupt cpus"),
    "irq.steal": kind(Mechanism.INTERRUPTS, "thread", _WAITED, "interrupt cpus", share="window_pct"),
    # `idle_pct` of the time between its first and last work; the other shares are of that idle time
    "accel.idle": kind(
        Mechanism.DEVICE,
        "accelerator",
        "idle_pct host_pct ahead_pct launch_pct unknown_pct count total_ms max_ms",
    ),
    # the device waited for this thread, which did `reason` meanwhile; `by`: the thread or process that kept it
    "accel.host_bound": kind(
        Mechanism.DEVICE,
        "thread",
        "window_pct of_idle_pct total_ms count",
        "reason by accelerator",
        share="window_pct",
    ),
}
