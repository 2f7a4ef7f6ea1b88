"""Waits and calls in progress at the start and at the end of a window, for our own BCC programs.

The ``ebpf`` engine walks the threads with a BPF iterator, which needs BTF; here /proc is read instead. A thread that
was given no CPU meanwhile (third number of /proc/PID/schedstat) still waits. That does not hold for one in state R, as
it may have had its CPU all along: its CPU time (first number) must not have grown either.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from whystall.bpf import layout as lay
from whystall.bpf import syscalls
from whystall.bpf.capture import Call, CallTotal, File, FileKey, OffTotal, Segment
from whystall.bpf.collectors.run_queue import QueueSlot, QueueTotal
from whystall.bpf.collectors.syscalls import remote_text
from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.bcc.own_link import ThreadNow
from whystall.tools.collect.bcc.own_source import OwnState
from whystall.tools.recording.target import Target

MAX_SEEDS = 4096
_LONG_AGO = 1  # before any window
_OFF = {name: number for number, name in enumerate(lay.OFF_CLASSES)}
_STATES = {"D": "D", "S": "S", "I": "S", "R": "R", "T": "other", "t": "other"}
# A thread's CPU time is updated at least once per second, also on CPUs without a tick (sched_tick_remote, 4.17).
_UPDATED_NS = 2_000_000_000
_STORAGE = frozenset((0o100000, 0o040000, 0o060000))


class Seed(NamedTuple):
    """A thread at the start of the window. `runs`: how often it was given a CPU; `ran_ns`: its CPU time."""

    tgid: int
    tid: int
    comm: bytes
    runs: int
    ran_ns: int
    off_class: str
    call: parse.InSyscall | None


def seeds(target: Target, selves: Container[int]) -> tuple[list[Seed], bool]:
    """Return at most `MAX_SEEDS` threads of the target, and whether these are all; none of `selves`, our processes."""
    found: list[Seed] = []
    for pid in sorted(target.pids) or sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        if pid in selves:
            continue
        with suppress(OSError):  # exited
            for name in os.listdir(f"/proc/{pid}/task"):
                if len(found) == MAX_SEEDS:
                    return found, False
                seed = _seed(pid, int(name))
                if seed is not None:
                    found.append(seed)
    return found, True


def _seed(pid: int, tid: int) -> Seed | None:
    where = Path(f"/proc/{pid}/task/{tid}")
    with suppress(OSError, ValueError, IndexError):
        stat = parse.pid_stat((where / "stat").read_bytes())
        if stat.state not in _STATES or not (where / "cmdline").read_bytes():  # exited, or a kernel thread
            return None
        account = parse.schedstat((where / "schedstat").read_bytes())
        call = None
        with suppress(OSError):  # access denied
            call = parse.syscall((where / "syscall").read_bytes())
        comm = (where / "comm").read_bytes().removesuffix(b"\n")
        return Seed(pid, tid, comm, account.slices, account.run_ns, _STATES[stat.state], call)
    return None


def state_rows(found: Iterable[Seed], everybody: bool) -> list[tuple[bytes, bytes]]:
    """Return keys and values of the map ``states``, as the programs write them when a thread leaves its CPU."""
    rows = []
    for seed in found:
        state = OwnState(tgid=seed.tgid, tid=seed.tid, off_start=_LONG_AGO, off_runs=seed.runs, off_nr=-1)
        state.off_class = _OFF[seed.off_class]
        state.queued = _LONG_AGO if seed.off_class == "R" else 0
        if seed.call is not None and seed.call.nr >= 0:
            state.off_nr = state.call_nr = seed.call.nr
            if not everybody or syscalls.is_file_operation(syscalls.name(seed.call.nr)):
                state.call_start = _LONG_AGO
        rows.append((seed.tid.to_bytes(4, "little"), bytes(state)))
    return rows


class Open(NamedTuple):
    """Calls and waits that had not ended, and the files and stacks they refer to."""

    calls: list[Call]
    call_totals: list[CallTotal]
    segments: list[Segment]
    off_totals: list[OffTotal]
    files: dict[FileKey, File]
    stacks: dict[int, list[str]]
    queue_totals: list[QueueTotal]
    queue_slots: list[QueueSlot]


class Wanted(NamedTuple):
    """What to report: thresholds in ns (None: nothing of this kind); nothing of `selves`, our own processes."""

    call_min_ns: int | None
    switch_min_ns: int | None
    run_queue: bool
    everybody: bool
    selves: frozenset[int]


def still_open(
    states: Iterable[tuple[bytes, bytes]],
    threads: Mapping[int, ThreadNow],
    ran: Mapping[int, int],
    begin: int,
    end: int,
    wanted: Wanted,
    comm: Callable[[int], bytes],
) -> Open:
    """Return the calls and waits of `states` that were open at `end`.

    `threads`: /proc's account after the hooks were detached. `ran`: CPU times in ns of the threads at `begin`.
    """
    found = Open([], [], [], [], {}, {}, [], [])
    for _, value in states:
        state = OwnState.from_buffer_copy(value)
        if state.tid not in threads or not state.tgid or state.tgid in wanted.selves:
            continue
        thread = threads[state.tid]
        if thread.runs != state.off_runs:
            continue
        if state.queued == _LONG_AGO and (end - begin < _UPDATED_NS or thread.ran_ns != ran.get(state.tid)):
            continue  # in state R at the start: it has had its CPU ever since
        if wanted.run_queue and state.queued:
            _add_wait(found, state, begin, end, comm(state.tid))
        if not state.off_start:
            continue
        try:
            now = parse.syscall(thread.syscall.encode())
        except ValueError:
            now = None
        _add(found, state, now, begin, end, wanted, comm(state.tid))
    return found


def _add_wait(found: Open, state: OwnState, begin: int, end: int, comm: bytes) -> None:
    ns = end - max(state.queued, begin)
    if ns > 0:
        found.queue_totals.append(QueueTotal(state.tgid, state.tid, comm, 1, ns, ns))
        found.queue_slots.append(QueueSlot(state.tgid, _slot(ns), 1))


def _slot(value: int) -> int:
    """Return the slot of `value`, as ``slot_of`` in bpf/src/histogram.h."""
    shift = max(0, value.bit_length() - 4)
    return (shift << 3) + (value >> shift)


def _add(
    found: Open, state: OwnState, now: parse.InSyscall | None, begin: int, end: int, wanted: Wanted, comm: bytes
) -> None:
    start = max(state.off_start, begin)
    if end <= start:
        return
    seeded = lay.RECORD_SEEDED if state.off_start < begin else 0
    woken = start if state.off_class == _OFF["R"] else state.wake or state.queued
    waiting = end - max(woken, start) if woken else 0
    file = _key(state.file)
    number = now.nr if now is not None and now.nr >= 0 else state.off_nr
    row = syscalls.row(syscalls.name(number))
    fd = -1
    if now is not None and now.nr >= 0 and row["fd"] != lay.NO_ARG and row["fd"] < len(now.args):
        fd = _signed32(now.args[row["fd"]])
        file = _open_file(found, state.tgid, fd, file)
    kstack = state.kstack or _stack_now(found, state.tgid, state.tid)
    if wanted.switch_min_ns is not None:
        thread = (state.tgid, state.tid, lay.OFF_CLASSES[state.off_class & 3], state.off_nr, file)
        found.off_totals.append(OffTotal(*thread, kstack, state.ustack, 0, 1, end - start, end - start, waiting))
        if end - start >= wanted.switch_min_ns:
            found.segments.append(
                Segment(
                    start, end, waiting, state.tgid, state.tid, comm, thread[2], lay.RECORD_OPEN | seeded, state.off_nr,
                    file, state.futex, kstack, state.ustack, 0, 0, 0, 0, b"",
                )
            )  # fmt: skip
    if wanted.call_min_ns is None or not state.call_start or now is None or now.nr != state.call_nr:
        return
    if wanted.everybody and row["fd"] != lay.NO_ARG and not _is_storage(state.tgid, fd):
        return
    began = max(state.call_start, begin)
    off = list(state.call_off)
    if state.off_start >= state.call_start:
        off[state.off_class & 3] += end - start - waiting
        off[_OFF["R"]] += waiting
    d_ns, s_ns, run_ns, other_ns = off
    cpu = max(0, end - began - sum(off))
    found.call_totals.append(
        CallTotal(state.tgid, state.tid, number, 1, end - began, end - began, 0, cpu, d_ns, s_ns, run_ns, other_ns)
    )
    if end - began < wanted.call_min_ns:
        return
    path = remote_text(state.tid, now.args[row["path"]]) if row["path"] < len(now.args) else b""
    found.calls.append(
        Call(
            began, end, state.tgid, state.tid, comm, number, fd,
            lay.RECORD_OPEN | (lay.RECORD_SEEDED if state.call_start < begin else 0), file, None, None, None, path, b"",
            now.args[row["size"]] if row["size"] < len(now.args) else 0, 0,
            now.args[row["offset"]] if row["offset"] < len(now.args) else None,
            cpu, d_ns, s_ns, run_ns, other_ns, kstack, end - start,
        )
    )  # fmt: skip


def _key(key: lay.FileKey) -> FileKey | None:
    return FileKey(key.dev, key.ino, key.gen) if key.ino or key.dev else None


def _signed32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _is_storage(pid: int, fd: int) -> bool:
    with suppress(OSError):
        return os.stat(f"/proc/{pid}/fd/{fd}").st_mode & 0o170000 in _STORAGE
    return False


def _open_file(found: Open, pid: int, fd: int, key: FileKey | None) -> FileKey | None:
    """Return the key of the file that descriptor `fd` now refers to: `key` if known. Adds the file to `found`."""
    if fd < 0:
        return key
    try:
        link = os.readlink(os.fsencode(f"/proc/{pid}/fd/{fd}"))
        status = os.stat(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return key
    if key is None:
        key = FileKey(os.major(status.st_dev) << 20 | os.minor(status.st_dev), status.st_ino, 0)
    path = link.removesuffix(b" (deleted)")
    flags = lay.FILE_UNLINKED if path != link else 0
    found.files[key] = File(key, path, flags, status.st_size, status.st_mode, b"")
    return key


def _stack_now(found: Open, pid: int, tid: int) -> int:
    """Add the thread's kernel stack of /proc to `found`; return its number, 0 if unknown."""
    try:
        names = parse.kernel_stack(Path(f"/proc/{pid}/task/{tid}/stack").read_bytes())
    except OSError:
        return 0
    if not names:
        return 0
    number = 1 << 33 | len(found.stacks)  # none of the stack map's numbers
    found.stacks[number] = names
    return number
