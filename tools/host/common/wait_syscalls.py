"""Classify the system calls in which threads wait: for work or time, for locks, for files."""

from __future__ import annotations

from whystall.tools.host.common.file_operations import ON_FILES

# Idle threads wait in these; such a wait is not a stall by itself.
IDLE_SYSCALLS = frozenset(
    {
        *("nanosleep", "clock_nanosleep", "pause", "rt_sigtimedwait", "rt_sigsuspend", "wait4", "waitid"),
        *("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2", "accept", "accept4"),
        *("io_getevents", "io_uring_enter"),
    }
)
FILE_LOCKS = frozenset({"flock"})
LOCK_SYSCALLS = frozenset({"futex", "futex_wait", "futex_waitv"}) | FILE_LOCKS
RECEIVES = frozenset({"recvfrom", "recvmsg", "recvmmsg", "read", "readv", "splice"})
SENDS = frozenset({"sendto", "sendmsg", "sendmmsg", "write", "writev", "sendfile", "splice", "pwritev2"})
"""Calls in which a thread takes data from a socket, or puts data into one."""


def blocked_in_operation(state: str, syscall: str, on_file: bool) -> bool:
    """Return whether a wait is for an operation to complete (a disk, a file server), not for work or time."""
    return state == "D" or (state != "R" and (on_file or syscall in ON_FILES))
