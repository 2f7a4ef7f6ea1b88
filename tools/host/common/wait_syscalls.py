"""System calls that threads wait in: for work or time, and for locks."""

from __future__ import annotations

# An idle thread waits in these: such a wait is not a stall by itself.
IDLE_SYSCALLS = frozenset(
    [
        "nanosleep",
        "clock_nanosleep",
        "pause",
        "poll",
        "ppoll",
        "select",
        "pselect6",
        "epoll_wait",
        "epoll_pwait",
        "epoll_pwait2",
        "wait4",
        "waitid",
        "rt_sigtimedwait",
        "rt_sigsuspend",
        "accept",
        "accept4",
        "io_getevents",
        "io_uring_enter",
    ]
)
FILE_LOCKS = frozenset({"flock"})
LOCK_SYSCALLS = frozenset({"futex", "futex_wait", "futex_waitv"}) | FILE_LOCKS
