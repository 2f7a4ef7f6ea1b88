"""Decode what a blocked system call waits for, and for how long, from its arguments and the caller's memory.

Layouts: poll(2), select(2), nanosleep(2), clock_nanosleep(2), futex(2), epoll_wait(2), recvmmsg(2), sigwaitinfo(2),
semop(2) of 64-bit Linux. The memory is untrusted: invalid values are unknown (-1).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence

from whystall.bpf import syscalls
from whystall.bpf.python_walk import Reader
from whystall.tools.collect.tables import FD_UNREAD

UNKNOWN = -1
_NS = 1_000_000_000
_MOST_S = 1 << 33
_MOST_POLLED = 256
_MOST_SELECTED = 1024
_TIMER_ABSTIME = 1
_FUTEX_COMMAND, _FUTEX_REALTIME = 0x7F, 0x100
_FUTEX_WAIT, _FUTEX_LOCK_PI = 0, 6
_FUTEX_ABSOLUTE = (9, 11, 13)  # WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2
_CLOCKS = frozenset({time.CLOCK_REALTIME, time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME, time.CLOCK_TAI})
# The argument that holds a relative time-out: in milliseconds, or the address of a time.
_MILLISECONDS = {"poll": 2, "epoll_wait": 3, "epoll_pwait": 3}
_TIMESPEC = {
    "nanosleep": 0,
    "ppoll": 2,
    "pselect6": 4,
    "epoll_pwait2": 3,
    "recvmmsg": 4,
    "rt_sigtimedwait": 2,
    "semtimedop": 3,
    "io_getevents": 4,
    "io_pgetevents": 4,
}
_TIMEVAL = {"select": 4}

Clock = Callable[[int], int]


def descriptor(name: str, args: Sequence[int], memory: Reader | None) -> int:
    """Return the descriptor on which the call `name` works; of poll and select the first, or `FD_UNREAD`; -1 without
    one."""
    if name in ("poll", "ppoll") and len(args) > 1:
        return _polled(memory, args[0], args[1])
    if name in ("select", "pselect6") and len(args) > 3:
        return _selected(memory, args[0], args[1:4])
    at = syscalls.row(name)["fd"]
    if at >= len(args):
        return UNKNOWN
    number = args[at] & 0xFFFFFFFF  # the upper half of the register is undefined
    return number if number < 1 << 31 else UNKNOWN


def _polled(memory: Reader | None, address: int, count: int) -> int:
    count = min(count & 0xFFFFFFFF, _MOST_POLLED)
    if not count:
        return UNKNOWN
    try:
        raw = memory.read(address, 8 * count) if memory is not None else b""
    except OSError:
        return FD_UNREAD
    known = UNKNOWN if raw else FD_UNREAD
    return next((fd for fd, _, _ in struct.iter_unpack("<ihh", raw) if fd >= 0), known)


def _selected(memory: Reader | None, count: int, sets: Sequence[int]) -> int:
    count = min(count & 0xFFFFFFFF, _MOST_SELECTED)
    size = (count + 63) // 64 * 8
    found = UNKNOWN
    for address in sets if count else ():
        if not address:
            continue
        try:
            raw = memory.read(address, size) if memory is not None else b""
        except OSError:
            raw = b""
        if not raw:
            found = FD_UNREAD
        elif bits := int.from_bytes(raw, "little") & (1 << count) - 1:
            return (bits & -bits).bit_length() - 1
    return found


def asked_ns(name: str, args: Sequence[int], memory: Reader | None, clock: Clock = time.clock_gettime_ns) -> int:
    """Return the time-out or sleep that the call `name` requested, ns; -1: none, or unknown.

    Of a call with a deadline: the time left until it. `clock`: returns the time of a clock by its number.
    """
    if name in _MILLISECONDS:
        value = args[_MILLISECONDS[name]] & 0xFFFFFFFF if len(args) > _MILLISECONDS[name] else UNKNOWN
        return value * 1_000_000 if 0 <= value < 1 << 31 else UNKNOWN
    if memory is None or len(args) < 6:
        return UNKNOWN
    try:
        if name in _TIMESPEC:
            return _time(memory, args[_TIMESPEC[name]], _NS)
        if name in _TIMEVAL:
            return _time(memory, args[_TIMEVAL[name]], 1_000_000)
        if name == "clock_nanosleep":
            absolute = args[1] & _TIMER_ABSTIME
            return _left(memory, args[2], args[0], clock) if absolute else _time(memory, args[2], _NS)
        if name == "futex":
            return _of_futex(memory, args, clock)
        if name == "futex_wait":
            return _left(memory, args[4], args[5], clock)
    except OSError:
        pass  # the thread has left the call, or its memory is not readable
    return UNKNOWN


def _of_futex(memory: Reader, args: Sequence[int], clock: Clock) -> int:
    command = args[1] & _FUTEX_COMMAND
    if command == _FUTEX_WAIT:
        return _time(memory, args[3], _NS)
    if command == _FUTEX_LOCK_PI:
        return _left(memory, args[3], time.CLOCK_REALTIME, clock)
    if command in _FUTEX_ABSOLUTE:
        which = time.CLOCK_REALTIME if args[1] & _FUTEX_REALTIME else time.CLOCK_MONOTONIC
        return _left(memory, args[3], which, clock)
    return UNKNOWN


def _time(memory: Reader, address: int, parts: int) -> int:
    """Return a struct of seconds and `parts` of a second in ns; -1 without one."""
    if not address:
        return UNKNOWN
    seconds, fraction = struct.unpack("<qq", memory.read(address, 16))
    if not (0 <= seconds < _MOST_S and 0 <= fraction < parts):
        return UNKNOWN
    return int(seconds * _NS + fraction * (_NS // parts))


def _left(memory: Reader, address: int, which: int, clock: Clock) -> int:
    if which not in _CLOCKS:
        return UNKNOWN
    deadline = _time(memory, address, _NS)
    return max(0, deadline - clock(which)) if deadline >= 0 else UNKNOWN
