"""The vocabulary of the critical path: kinds of waits, modes of running, and roles of code."""

from __future__ import annotations

from types import MappingProxyType

WAITS = MappingProxyType(
    {
        "sleep": "for a requested time: nanosleep, or a poll or select without descriptors; detail: retry CALL ERROR",
        "timeout": "for something, until its own time-out expired",
        "poll": "repeatedly for a short time between checks (a polling loop)",
        "lock": "for a lock that another thread holds",
        "interpreter_lock": "for the lock of the Python interpreter (GIL)",
        "queue": "for another thread to hand over work or a result (queue, condition, event, future)",
        "queue_full": "for another thread to take work from a queue that is full",
        "barrier": "for other threads of a parallel section (OpenMP, thread pools of libraries)",
        "join": "for another thread to end",
        "pipe": "for data from a pipe or FIFO",
        "pipe_full": "to write into a pipe that is full",
        "socket": "for data from one connection",
        "socket_full": "to write to a connection whose send buffer is full",
        "connect": "for a connection to be made",
        "dns": "for the answer of a name server",
        "events": "for events at several descriptors (epoll, poll, select, accept): the idle state of a server",
        "child": "for a child process to end",
        "start_process": "for a process to start: fork, vfork, clone, exec",
        "file": "for an operation on a file; detail: the system call and the type of the file system",
        "file_lock": "for flock or fcntl",
        "page_fault": "for a page of a mapped file",
        "swap": "for a page in the swap area",
        "memory": "for memory to be reclaimed, or for dirty pages to be written; detail: full (its cgroup is at its "
        "limit, and nothing is killed)",
        "cpu": "runnable, for a CPU; by: who ran there; detail: own (threads of its job), others, real_time, "
        "pinned (other CPUs are idle), own_pinned (own threads, more than the CPUs that they may use), "
        "own_cpuset (the same, by the cpuset of their cgroup), confined (others, on the few CPUs that it may use), "
        "own_shared (own threads, although no more than the CPUs), real_time_limit (nobody that may go "
        "before it: it has a real-time policy, whose time in each period is used up)",
        "quota": "runnable, while its cgroup has used up its CPU quota",
        "device": "for an accelerator (stream, event or device synchronise, blocking copy)",
        "collective": "for other ranks, in a collective or a barrier of ranks",
        "io_uring": "for requests of io_uring or libaio",
        "terminal": "for input from a terminal, or to write to one",
        "signal": "for a signal",
        "stopped": "stopped by a signal (SIGSTOP, SIGTSTP)",
        "traced": "stopped by a debugger",
        "frozen": "in a frozen cgroup",
        "frozen_files": "to write to a file system that is frozen (fsfreeze, a snapshot); detail: the system call and "
        "the type of the file system",
        "ended": "not at all: its process has ended; object: signal N or exit code N, if known",
        "other": "for something else: detail names the kernel function",
        "unknown": "for something that was not observed",
    }
)
"""Values of `wait` and `root_wait`: the thread waits ..."""

FULL = "full"
"""Detail of a wait for memory of a cgroup at its limit, of which nothing can be reclaimed and nothing is killed."""

RETRY = "retry"
"""First word of the detail of a sleep between failing calls that are tried again, or of running in a loop of them; call
and error follow."""

SPIN = "spin"
"""Mode of a thread that runs and gets nowhere."""

SPINS = "spins"
"""Detail of a wait for a lock that a thread tries to get without sleeping."""

READERS = "readers"
"""Detail of a wait for a read-write lock that readers hold."""

ASKS, LOOKS, NOTHING, STILL = "asks", "looks", "nothing", "still"
"""Values of `between` of a sleep, or a wait for a peer, if the thread does no more between two of them than: ask a
peer; look at a file or a directory; compare something in its memory or the time. Of a wait that lasts all along:
`STILL`."""

RUNNING = "running"
"""Value of `root_wait` if the thread at the end of the chain runs."""

MODES = MappingProxyType(
    {
        "user": "in user space",
        "system": "in a system call; detail: which",
        "fault": "in page faults",
        "copy": "in page faults that copy a page shared after a fork (copy on write)",
        "swap_in": "in page faults that bring pages back from the swap area",
        "interrupt": "its CPU handled interrupts",
        SPIN: "it spins: sched_yield, busy waiting for OpenMP threads; a call that fails and is tried again at once, "
        "detail: retry CALL ERROR",
        "garbage_collection": "in Python's garbage collector",
    }
)
"""Values of `mode` of a thread that runs."""

ROLES = MappingProxyType(
    {
        "data_loader": "the loading of data: torch.utils.data, tf.data, DALI, datasets",
        "collective": "communication of ranks: torch.distributed, gloo, NCCL, MPI",
        "checkpoint": "saving or loading a model: torch.save, safetensors, pickle",
        "logging": "logging, print, metrics",
        "network_client": "a client of a server: http, requests, httpx, urllib, boto3, redis, grpc",
        "event_loop": "an event loop: asyncio, uvloop",
        "compile": "compiling: torch.compile, triton, XLA, a compiler as a child",
        "import": "importing modules",
        "subprocess": "starting and waiting for other programs",
        "garbage_collection": "the gc module",
    }
)
"""Values of `role`: what library code the thread is in, by the innermost frames that belong to one; empty: none."""
