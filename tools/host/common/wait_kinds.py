"""Classify what a thread waits for, by its system call, kernel stack and Python frames. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from whystall.tools.collect.tables import FD_UNREAD
from whystall.tools.host.common.held import ENDED, HELD_STATES, HELD_WAITS
from whystall.tools.host.common.path_codes import FULL
from whystall.tools.host.common.places import Place
from whystall.tools.host.common.timelines import Wait

_FUTEX = frozenset({"futex", "futex_wait", "futex_waitv"})
_SLEEPS = frozenset({"nanosleep", "clock_nanosleep"})
# Without descriptors they sleep.
POLLS = frozenset({"poll", "ppoll", "select", "pselect6"})
_EPOLLS = frozenset({"epoll_wait", "epoll_pwait", "epoll_pwait2", "accept", "accept4"})
_CHILDREN = frozenset({"wait4", "waitid"})
_STARTS = frozenset({"fork", "vfork", "clone", "clone3", "execve", "execveat"})
_SIGNALS = frozenset({"pause", "rt_sigsuspend", "rt_sigtimedwait", "signalfd"})
_RECEIVES = frozenset({"recvfrom", "recvmsg", "recvmmsg", "read", "readv"})
_SENDS = frozenset({"sendto", "sendmsg", "sendmmsg", "write", "writev", "sendfile", "splice"})
_ASKS_SERVER = POLLS | {"recvfrom", "recvmsg", "recvmmsg", "restart_syscall"}
_QUEUES = frozenset({"msgrcv", "mq_timedreceive"})
_FILLS_QUEUES = frozenset({"msgsnd", "mq_timedsend"})
_LOCKS = frozenset({"semop", "semtimedop"})
_RINGS = frozenset({"io_uring_enter", "io_getevents", "io_pgetevents"})

# System calls that are resumed as restart_syscall after a signal or a stop, by the function that resumes them.
_RESTARTS = {
    "futex_wait_restart": "futex",
    "do_restart_poll": "poll",
    "hrtimer_nanosleep_restart": "nanosleep",
    "posix_cpu_nsleep_restart": "nanosleep",
    "alarm_timer_nsleep_restart": "nanosleep",
}

# Kinds of waits by functions in the kernel stack. The first entry that occurs decides, so the cause precedes the
# operation that contains it: reclaim within a page fault within a read.
SWAPS = ("do_swap_page", "swapin_readahead", "swap_read_folio", "swap_readpage")
_KERNEL: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("stopped", ("do_signal_stop", "do_jobctl_trap")),
    ("traced", ("ptrace_stop",)),
    ("frozen", ("__refrigerator", "do_freezer_trap", "cgroup_enter_frozen")),
    (
        "memory",
        (
            *("try_to_free_pages", "try_to_free_mem_cgroup_pages", "do_try_to_free_pages", "throttle_direct_reclaim"),
            *("mem_cgroup_handle_over_high", "__mem_cgroup_handle_over_high", "mem_cgroup_oom_synchronize"),
            *(
                "balance_dirty_pages",
                "balance_dirty_pages_ratelimited_flags",
                "shrink_node",
                "mem_cgroup_out_of_memory",
            ),
            *("__alloc_pages_direct_compact", "try_charge_memcg"),
        ),
    ),
    ("swap", SWAPS),
    # opening a file with a lease (fcntl(2), F_SETLEASE; NFS and SMB servers take them) waits for its holder
    ("file_lock", ("flock_lock_inode_wait", "posix_lock_inode_wait", "locks_lock_inode_wait", "fcntl_setlk")),
    ("file_lock", ("__break_lease",)),
    ("page_fault", ("filemap_fault", "do_read_fault", "do_cow_fault", "do_shared_fault", "fuse_vma_fault")),
    ("page_fault", ("handle_userfault",)),
    ("io_uring", ("io_cqring_wait", "io_wq_worker", "read_events")),
    ("terminal", ("n_tty_read", "n_tty_write", "tty_wait_until_sent", "tty_write_lock")),
    ("pipe", ("anon_pipe_read", "pipe_read", "fifo_open", "wait_for_partner")),
    ("pipe_full", ("anon_pipe_write", "pipe_write", "pipe_wait_writable")),
    ("socket_full", ("unix_dgram_sendmsg",)),  # in unix_wait_for_peer, as a connect is
    ("connect", ("inet_stream_connect", "__inet_stream_connect", "inet_wait_for_connect", "unix_wait_for_peer")),
    ("events", ("inet_csk_accept", "inet_csk_wait_for_connect", "unix_accept", "ep_poll", "do_epoll_wait")),
    ("socket_full", ("sk_stream_wait_memory", "sock_alloc_send_pskb", "unix_wait_sendbuf")),
    (
        "socket",
        (
            *("unix_stream_read_generic", "unix_stream_data_wait", "tcp_recvmsg", "sk_wait_data", "inet_recvmsg"),
            *("__skb_wait_for_more_packets", "udp_recvmsg", "unix_dgram_recvmsg", "__unix_dgram_recvmsg"),
        ),
    ),
    ("child", ("do_wait", "kernel_wait4")),
    ("start_process", ("wait_for_vfork_done", "kernel_clone", "bprm_execve", "load_elf_binary")),
    ("device", ("nvidia_ioctl", "nvidia_unlocked_ioctl", "uvm_ioctl", "amdgpu_drm_ioctl", "kfd_ioctl")),
)
_KIND_OF = {function: (rank, kind) for rank, (kind, names) in enumerate(_KERNEL) for function in names}
# A thread waits until memory of its cgroup is freed: nothing is killed (memory.oom_control), or what was killed has not
# ended (mm/memcontrol-v1.c).
_NOTHING_KILLED = "mem_cgroup_oom_synchronize"
# Remote file systems and processes that serve or check accesses, by functions in which their requests wait.
_REMOTE = {
    "request_wait_answer": "fuse",
    "fuse_simple_request": "fuse",
    "__fuse_simple_request": "fuse",
    "rpc_wait_bit_killable": "nfs",
    "nfs_wait_bit_killable": "nfs",
    "nfs4_call_sync": "nfs",
    "wait_for_response": "cifs",
    "p9_client_rpc": "9p",
    "ceph_mdsc_wait_request": "ceph",
    "ceph_osdc_wait_request": "ceph",
    "ptlrpc_set_wait": "lustre",
    "cl_sync_io_wait": "lustre",
    "fanotify_handle_event": "fanotify",  # a permission event (fanotify(7)): a process must allow the access
    "handle_userfault": "userfaultfd",
}
_DEVICE_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/davinci", "/dev/hisi_hdc", "/dev/accel")
# A writer waits for a frozen file system (include/linux/fs.h, sb_start_write and its like): the innermost functions,
# and the first one that calls them. Other callers wait for other locks of this type: for cgroups, CPUs plugged in.
_FREEZE_LOCK = re.compile(r"_*(?:percpu_rwsem_wait|percpu_down_read\w*|sb_start_write)")
_WRITERS = re.compile(
    r"vfs_\w+|_*mnt_want_write\w*|do_iter_write|io_write|aio_write|do_splice\w*|iter_file_splice_write|do_sendfile"
    r"|do_(?:sys_)?f?truncate|\w*page_mkwrite|\w*journal_(?:check_start|start_sb)|xfs_trans_alloc\w*|start_transaction"
)
_SUFFIX = re.compile(r"\.(isra|constprop|part|cold)\.?\d*$|\+0x.*$")

# The import system, and its functions that run with the lock of a module (Lib/importlib/_bootstrap.py).
_IMPORTS = "<frozen importlib._bootstrap>"
_WITH_LOCK = frozenset({"_find_and_load_unlocked", "_load_unlocked", "_exec"})
# Functions of Python's library in which a thread waits on a futex; the innermost match counts.
_PYTHON_WAITS: tuple[tuple[str, str, str], ...] = (
    ("threading.py", "_wait_for_tstate_lock", "join"),
    ("threading.py", "join", "join"),
    ("threading.py", "_shutdown", "join"),
    ("threading.py", "wait_for", "queue"),
    ("threading.py", "wait", "queue"),
    ("threading.py", "acquire", "lock"),
    ("threading.py", "__enter__", "lock"),
    ("queue.py", "", "queue"),
    ("concurrent/futures/", "", "queue"),
    ("multiprocessing/queues.py", "", "queue"),
    ("multiprocessing/synchronize.py", "", "lock"),
    ("multiprocessing/pool.py", "", "queue"),
    ("logging/__init__.py", "acquire", "lock"),
    ("logging/__init__.py", "handle", "lock"),
    (_IMPORTS, "acquire", "lock"),
)
# Modules with queues between threads and between processes. `put` waits for room. In `get`, a worker waits for its
# turn to receive, by a lock that another idle worker holds all along: there is no work for either.
_QUEUE_MODULES = ("queue.py", "multiprocessing/queues.py")
_INSIDE_QUEUES = ("threading.py", "multiprocessing/synchronize.py")
_BARRIER = ("Barrier.wait", "_wait")  # before 3.11 without the class; only barriers have a method _wait
# Native functions in which a thread waits on a futex.
_NATIVE_WAITS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("gomp_", "GOMP_", "__kmp", "kmp_", "omp_", "tbb::"), "barrier"),
    (("pthread_barrier", "__pthread_barrier"), "barrier"),
    (("pthread_join", "__pthread_clockjoin", "__pthread_timedjoin"), "join"),
    (("pthread_mutex_lock", "__lll_lock_wait", "__GI___pthread_mutex_lock", "___pthread_mutex_lock"), "lock"),
    (("pthread_rwlock", "__pthread_rwlock"), "lock"),
    (("pthread_cond_signal", "pthread_cond_broadcast"), "lock"),  # the condition's own
    (("pthread_cond_", "__pthread_cond_", "___pthread_cond_"), "queue"),
)
# Modules that poll for the end of child processes, by a pipe that closes then.
_JOINS_CHILDREN = ("torch/multiprocessing/spawn.py", "multiprocessing/popen_", "multiprocessing/process.py")
# Functions that resolve names, of Python's module socket and of C libraries.
_RESOLVERS = ("getaddrinfo", "getnameinfo", "gethostby")
_NATIVE_RESOLVERS = (*_RESOLVERS, "__res_", "_nss_dns_", "__libc_res_", "ares_")
# What a resolver waits for on its sockets; a poll whose descriptor is not known looks like a sleep.
_RESOLVES = frozenset({"socket", "events", "sleep"})
_RANKS = ("gloo::", "c10d::", "nccl", "ncclGroup", "MPI_", "PMPI_", "ompi_", "hccl")


# Threads with which PyTorch, Gloo, NCCL and MPI run collectives, by the beginnings of their names.
_RANK_THREADS = ("pt_gloo", "gloo_", "pt_nccl", "pt_ucc", "NCCL", "hccl", "async_progress")


class Kind(NamedTuple):
    """What a wait is for (`path_codes.WAITS`), or how a thread runs (`path_codes.MODES`); `detail` as described there.
    `presumed`: only the place where the thread waits suggests it, not what it waits on."""

    code: str
    detail: str = ""
    presumed: bool = False


# A timer of a host that is not suspended is never so late.
_LATE_NS = 1_000_000_000


def runs_collectives(comm: str) -> bool:
    """Return whether a thread of this name runs collectives for the others of its process."""
    return comm.startswith(_RANK_THREADS)


def keeps_store(comm: str) -> bool:
    """Return whether a thread of this name serves the store through which ranks tell each other where they are."""
    return comm.startswith("pt_tcpstore")


def awaits_import(place: Place) -> bool:
    """Return whether a thread waits for the lock of a module that another thread imports."""
    return any(name.rpartition(".")[2] == "acquire" and module == _IMPORTS for name, module in place.library[:1])


def imports_module(place: Place) -> bool:
    """Return whether a thread finds or executes a module, and so has the lock of this module."""
    return any(name in _WITH_LOCK and file == _IMPORTS for name, file, _ in place.python) and not awaits_import(place)


def kernel_names(frames: Sequence[str]) -> list[str]:
    """Return kernel functions without the suffixes of compilers and offsets."""
    return [_SUFFIX.sub("", frame) for frame in frames]


def wait_kind(wait: Wait, gil_words: Collection[int] = (), lock_words: Collection[int] = ()) -> Kind:
    """Return what the blocked part of `wait` is for.

    `gil_words`: futex words of the interpreter lock of the thread's process; `lock_words`: words known to be locks,
    because their owner was read or they pass from thread to thread.
    """
    kind = _wait_kind(wait, gil_words, lock_words)
    if kind.code in _RESOLVES and wait.syscall in _ASKS_SERVER and _resolves_name(wait.place):
        return Kind("dns", kind.detail)
    return kind


def overslept(wait: Wait) -> bool:
    """Return whether the sleep `wait` took far longer than asked for, and no timer but another process ended it.

    A freezer changes the state of sleeping threads without waking them (Linux since 6.1, kernel/freezer.c,
    __set_task_frozen), so that only who thaws them shows it afterwards.
    """
    took = wait.awake_ns - wait.start_ns
    return wait.context == "task" and wait.asked_ns > 0 and took - wait.asked_ns > max(_LATE_NS, wait.asked_ns)


def _resolves_name(place: Place) -> bool:
    """Return whether a thread is in a function that asks name servers."""
    if any(name.startswith(_NATIVE_RESOLVERS) for name in place.native):
        return True
    return any(name.startswith(_RESOLVERS) and module == "socket.py" for name, module in place.library[:1])


def _wait_kind(wait: Wait, gil_words: Collection[int], lock_words: Collection[int]) -> Kind:
    if wait.state == "R":
        return Kind("cpu")
    if wait.state == ENDED:
        return Kind("ended")
    names = kernel_names(wait.kernel)
    if wait.state in HELD_STATES:  # where the kernel's stack may not be read
        held = (_KIND_OF[name][1] for name in names if name in _KIND_OF)
        return Kind(next((kind for kind in held if kind in HELD_WAITS), HELD_STATES[wait.state]))
    if wait.syscall == "restart_syscall":
        wait = wait._replace(syscall=next((_RESTARTS[name] for name in names if name in _RESTARTS), wait.syscall))
    if wait.place.in_device_call or wait.place.in_driver:
        return Kind("device")
    if _waits_for_thaw(names):
        return Kind("frozen_files", " ".join(filter(None, (wait.syscall, wait.fstype))))
    known = [_KIND_OF[name] for name in names if name in _KIND_OF]
    if known:
        kind = min(known)[1]
        if kind == "page_fault" and (wait.path or _remote(names)):
            return Kind(kind, _remote(names) or wait.fstype)
        if kind == "pipe" and wait.syscall in POLLS:
            return Kind("events")
        if kind == "start_process" and wait.syscall in _CHILDREN:
            return Kind("child")
        if kind not in ("child", "start_process", "events") or wait.syscall not in _FUTEX:
            if kind == "memory" and _NOTHING_KILLED in names:
                return Kind(kind, FULL)
            return Kind(kind, _remote(names) if kind in ("memory", "file_lock") else _of_terminal(kind, wait))
    if remote := _remote(names):
        return Kind("file", " ".join(filter(None, (wait.syscall, remote))))
    return _by_call(wait, names, gil_words, lock_words)


def _waits_for_thaw(names: Sequence[str]) -> bool:
    """Return whether a thread waits to write to a file system until it is thawed."""
    callers = [name for name in names if not name.startswith(_PLUMBING)]
    outer = next((at for at, name in enumerate(callers) if not _FREEZE_LOCK.fullmatch(name)), 0)
    return outer > 0 and _WRITERS.fullmatch(callers[outer]) is not None


def _of_terminal(kind: str, wait: Wait) -> str:
    """Return the system call of a wait for a terminal: whether output or input is awaited."""
    return wait.syscall if kind == "terminal" else ""


def _by_call(wait: Wait, names: Sequence[str], gil_words: Collection[int], lock_words: Collection[int]) -> Kind:
    call, of = wait.syscall, wait.object
    if call in _FUTEX:
        return _futex(wait, gil_words, lock_words)
    if call in _SLEEPS:
        return Kind("sleep")
    if call in POLLS and any(module.startswith(_JOINS_CHILDREN) for _, module in wait.place.library):
        return Kind("child")
    if call in POLLS:
        if of.startswith("socket:"):
            return Kind("socket")
        if of.startswith("pipe:"):
            return Kind("pipe")
        descriptors = of or wait.path or wait.fd == FD_UNREAD
        return Kind("events") if descriptors or wait.asked_ns < 0 else Kind("sleep")
    if call in _EPOLLS:
        return Kind("events")
    if call in _CHILDREN:
        return Kind("child")
    if call in _STARTS:
        return Kind("start_process")
    if call in _SIGNALS:
        return Kind("signal")
    if call in _RINGS:
        return Kind("io_uring")
    if call in _QUEUES:
        return Kind("queue")
    if call in _FILLS_QUEUES:
        return Kind("queue_full")
    if call in _LOCKS:
        return Kind("lock")
    if call == "connect":
        return Kind("connect")
    if call in ("flock", "fcntl"):
        return Kind("file_lock")
    if wait.path.startswith(_DEVICE_FILES):
        return Kind("device")
    if wait.path.startswith(("/dev/tty", "/dev/pts/", "/dev/console")):
        return Kind("terminal", _of_terminal("terminal", wait))
    if of.startswith("socket:"):
        return Kind("socket_full" if call in _SENDS else "socket")
    if of.startswith("pipe:"):
        return Kind("pipe_full" if call in _SENDS else "pipe")
    if call in _RECEIVES and of.startswith("anon_inode:"):
        return Kind("events")
    if wait.path or wait.state == "D":
        if call:
            return Kind("file", " ".join(filter(None, (call, wait.fstype))))
        return Kind("page_fault", wait.fstype) if wait.path else Kind("other", _function(names))
    if call in ("recvfrom", "recvmsg", "recvmmsg"):
        return Kind("socket")
    if call in ("sendto", "sendmsg", "sendmmsg"):
        return Kind("socket_full")
    if function := _function(names):
        return Kind("other", function)
    return Kind("other", call) if call else Kind("unknown")


def _futex(wait: Wait, gil_words: Collection[int], lock_words: Collection[int]) -> Kind:
    """Return the kind of a wait on a futex word: by the word itself, then by the function that waits."""
    place = wait.place
    if wait.lock and wait.lock in gil_words:
        return Kind("interpreter_lock")
    if any(name.startswith("take_gil") for name in place.native):
        return Kind("interpreter_lock")
    if place.role == "collective" or any(name.startswith(_RANKS) for name in place.native):
        return Kind("collective")
    if any(module.startswith("threading.py") and function.endswith(_BARRIER) for function, module in place.library):
        return Kind("barrier")
    if queue := _of_queue(place):
        return Kind(queue)
    for function, module in place.library:
        for beginning, name, kind in _PYTHON_WAITS:
            if module.startswith(beginning) and (not name or function.rpartition(".")[2] == name):
                return Kind(kind)
    for beginnings, kind in _NATIVE_WAITS:
        if any(name.startswith(beginnings) for name in place.native):
            return Kind(kind)
    if wait.lock and wait.lock in lock_words:
        return Kind("lock")
    if place.python and not place.library:
        # a lock's C method, called from a line of the program: `with lock`, lock.acquire()
        return Kind("lock", presumed=True)
    return Kind("queue", presumed=True)


def _of_queue(place: Place) -> str:
    """Return what a wait in `put` or `get` of a queue is for; empty if it is in none, or for the queue's own lock."""
    calls = [(function.rpartition(".")[2], module) for function, module in place.library]
    inside, called = (calls[0], calls[1]) if calls[:1] and calls[0][1] in _INSIDE_QUEUES and calls[1:] else (None, None)
    name, module = called or (calls[0] if calls else ("", ""))
    if module not in _QUEUE_MODULES:
        return ""
    if name == "put" and (inside is None or inside[0] == "wait"):
        return "queue_full"
    return "queue" if name == "get" and inside == ("__enter__", "multiprocessing/synchronize.py") else ""


def _remote(names: Sequence[str]) -> str:
    return next((_REMOTE[name] for name in names if name in _REMOTE), "")


# Frames of the scheduler and of kernel entry, which are in every stack.
_PLUMBING: tuple[str, ...] = (
    "__schedule",
    "schedule",
    "preempt_schedule",
    "io_schedule",
    "bit_wait",
    "__x64_sys",
    "__arm64_sys",
)
_PLUMBING += ("do_syscall", "entry_", "el0", "__wait_on_bit", "out_of_line_wait", "__se_sys", "ret_from")


def _function(names: Sequence[str]) -> str:
    return next((name for name in names if not name.startswith(_PLUMBING)), "")
