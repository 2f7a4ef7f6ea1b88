"""Derive system calls and waits of a thread from its samples.

If schedstat's count of CPU assignments (third field) is the same at two samples, the thread did not run in between: it
is the same wait in the same call. If it ran, the same call with the same arguments may be the next iteration of a loop;
a call on data counts as the same only if the kernel's counts of finished reads and writes (/proc/TID/io) did not change
and the thread spent no time in user mode. A call lasts from its first sample to its last, which is too short by at most
two sample periods.

In the account of a thread's time a sample stands for the time until the next one: sums of many are right on average,
also for waits shorter than a period (point sampling). The time that a runnable thread had a CPU is computed from
schedstat's first two fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from whystall.bpf import syscalls
from whystall.tools.collect.proc_parse import InSyscall

# The kernel samples user and system time: during a long call user time may grow by a tick.
_USER_SLACK_NS = 20_000_000
# Calls after which one of the io counters moves, and the syncs that programs make between writes.
_COUNTED = frozenset(
    [
        *("read", "readv", "pread64", "preadv", "preadv2", "write", "writev", "pwrite64", "pwritev", "pwritev2"),
        *("sendfile", "copy_file_range", "fsync", "fdatasync", "sync_file_range", "syncfs"),
    ]
)
RUNNING = "R"
# CPU time is accounted at ticks, which may be this far apart (CONFIG_HZ=100).
_TICK_NS = 10_000_000


class Sample(NamedTuple):
    """A thread at one instant; -1: unknown. `call` None: on a CPU, or not readable; `name`: its system call.

    `finished`: completed reads and writes. `kstack`: number of its kernel stack.
    """

    at_ns: int
    state: str
    call: InSyscall | None
    name: str
    user_ns: int
    run_ns: int
    wait_ns: int
    slices: int
    finished: int
    kstack: int = -1

    @property
    def off_cpu(self) -> bool:
        """Whether it neither runs nor waits for a CPU."""
        return self.state != RUNNING


@dataclass
class Span:
    """Consecutive samples of one call or wait. `until_ns`: the sample after them, 0: none. The caller fills in `file`,
    `fd`, `offset`, `direct`, and for a wait `object`, `asked_ns`, `ustack` (`placed`: they were read; `skipped`: the
    stack was not read for lack of time)."""

    first: Sample
    last: Sample
    states: dict[str, int] = field(default_factory=dict)
    seeded: bool = False
    open: bool = False
    resolved: bool = False
    file: int = -1
    fd: int = -1
    offset: int = -1
    direct: bool = False
    until_ns: int = 0
    object: str = ""
    asked_ns: int = -1
    ustack: int = -1
    placed: bool = False
    skipped: bool = False

    @classmethod
    def begin(cls, sample: Sample, seeded: bool) -> Span:
        """Return a span of one sample."""
        return cls(sample, sample, {sample.state: 1}, seeded)

    @property
    def samples(self) -> int:
        """Return the number of its samples."""
        return sum(self.states.values())

    @property
    def wall_ns(self) -> int:
        """Return the time from the first to the last sample."""
        return self.last.at_ns - self.first.at_ns

    @property
    def held_ns(self) -> int:
        """Return the time from the first sample to the one after the last, if there was one."""
        return (self.until_ns or self.last.at_ns) - self.first.at_ns

    def add(self, sample: Sample) -> None:
        """Add a sample."""
        self.last = sample
        self.states[sample.state] = self.states.get(sample.state, 0) + 1

    def split(self) -> tuple[int, int, int, int]:
        """Split `wall_ns` into on CPU, blocked, sleeping, runnable: first and last by schedstat, the rest by state."""
        run = max(0, self.last.run_ns - self.first.run_ns) if self.first.run_ns >= 0 else 0
        wait = max(0, self.last.wait_ns - self.first.wait_ns) if self.first.wait_ns >= 0 else 0
        run = min(run, self.wall_ns)
        wait = min(wait, self.wall_ns - run)
        rest = self.wall_ns - run - wait
        off = sum(n for state, n in self.states.items() if state != RUNNING)
        blocked = rest * self.states.get("D", 0) // off if off else 0
        return run, blocked, rest - blocked, wait


class Run(NamedTuple):
    """A sample of a runnable thread, the time until the next sample, and the part of it in which it had a CPU.

    `ustack`: number of its Python stack.
    """

    at_ns: int
    held_ns: int
    oncpu_ns: int
    ustack: int


class Ended(NamedTuple):
    """What ended before a sample."""

    call: Span | None = None
    wait: Span | None = None
    run: Run | None = None


@dataclass
class Thread:
    """A thread with its current call and wait, or the sample that found it runnable. `fresh`: it has no sample yet in
    this window. The caller fills in `ustack` of a runnable one."""

    pid: int
    tid: int
    comm: str
    call: Span | None = None
    wait: Span | None = None
    runnable: Sample | None = None
    ustack: int = -1
    fresh: bool = False
    last_ns: int = -1

    def feed(self, sample: Sample) -> Ended:
        """Add a sample; return what ended before it."""
        seeded, self.fresh, self.last_ns = self.fresh, False, sample.at_ns
        return Ended(self._feed_call(sample, seeded), self._feed_wait(sample, seeded), self._feed_run(sample))

    def end(self, alive: bool, at: Sample | None = None) -> Ended:
        """Return what has not ended yet. With `alive` it is open if it includes the last sample. `at`: a sample after
        which the thread is no longer followed."""
        run = self._feed_run(at) if at is not None else None
        call, wait, self.call, self.wait, self.runnable = self.call, self.wait, None, None, None
        for span in (call, wait):
            if span is not None:
                span.open = alive and span.last.at_ns == self.last_ns
        if wait is not None and at is not None:
            wait.until_ns = at.at_ns
        return Ended(call, wait, run)

    def _feed_call(self, sample: Sample, seeded: bool) -> Span | None:
        if sample.call is None and not sample.off_cpu:
            return None  # on a CPU, perhaps still in the call: the next sample decides
        ended = None
        if self.call is not None:
            if _same_call(self.call, sample):
                self.call.add(sample)
                return None
            ended, self.call = self.call, None
        if sample.call is not None and sample.call.nr >= 0:
            self.call = Span.begin(sample, seeded)
        return ended

    def _feed_wait(self, sample: Sample, seeded: bool) -> Span | None:
        ended = None
        if self.wait is not None:
            if sample.off_cpu and _did_not_run(self.wait.last, sample):
                self.wait.add(sample)
                return None
            ended, self.wait = self.wait, None
            ended.until_ns = sample.at_ns
        if sample.off_cpu:
            self.wait = Span.begin(sample, seeded)
        return ended

    def _feed_run(self, sample: Sample) -> Run | None:
        before, self.runnable = self.runnable, None if sample.off_cpu else sample
        if before is None:
            return None
        held, ustack, self.ustack = sample.at_ns - before.at_ns, self.ustack, -1
        return Run(before.at_ns, held, round(held * _on_cpu(before, sample)), ustack)


def _did_not_run(before: Sample, now: Sample) -> bool:
    return before.slices >= 0 and before.slices == now.slices and before.state == now.state


def _on_cpu(before: Sample, now: Sample) -> float:
    """Return the share of a runnable thread's time between two samples in which it had a CPU."""
    if before.run_ns < 0 or now.run_ns < 0:
        return 1.0
    run, wait = max(0, now.run_ns - before.run_ns), max(0, now.wait_ns - before.wait_ns)
    if run or wait:
        return run / (run + wait)
    return 0.0 if now.at_ns - before.at_ns > _TICK_NS else 1.0  # in the same wait, unless no tick has occurred


def _same_call(span: Span, now: Sample) -> bool:
    if now.call is None or now.call != span.first.call:
        return False
    if _did_not_run(span.last, now):
        return True
    return (
        now.name in _COUNTED
        and span.first.finished >= 0
        and span.first.finished == now.finished
        and now.user_ns - span.first.user_ns <= _USER_SLACK_NS
    )


def syscall_name(nr: int) -> str:
    """Return the name of a system call; ``syscall_<nr>`` if the table does not cover this machine."""
    try:
        return syscalls.name(nr)
    except KeyError:
        return f"syscall_{nr}"
