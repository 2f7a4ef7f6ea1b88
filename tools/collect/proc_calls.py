"""From samples of a thread to the system calls and waits that they prove. Pure.

What sampling can know. A thread that at two samples had been put on a CPU equally often (schedstat's third field) did
not run in between: it is the same wait, in the same call. If it did run, the same system call with the same arguments
may be the next turn of a loop; for calls on data it is taken for the same one only while the kernel's counts of
finished reads and writes (/proc/TID/io) stand still and the thread spent no time in user mode. A call is claimed from
the first sample in it to the last: a lower bound, short of the truth by at most two sample periods. Less than two
periods is not claimed at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from whystall.tools.collect.proc_parse import InSyscall

# Kernels attribute user and system time by sampling too: within a long call the user share may creep up by a tick.
_USER_SLACK_NS = 20_000_000
# Calls after which one of the io counters moves, and the syncs that programs make between writes.
_COUNTED = frozenset(
    [
        *("read", "readv", "pread64", "preadv", "preadv2", "write", "writev", "pwrite64", "pwritev", "pwritev2"),
        *("sendfile", "copy_file_range", "fsync", "fdatasync", "sync_file_range", "syncfs"),
    ]
)
RUNNING = "R"


class Sample(NamedTuple):
    """A thread at one instant. `call` None: on a CPU, or not readable; `name`: its system call; -1: not known.

    `finished`: reads and writes it has completed. `kstack`: key of where it waits in the kernel.
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
        """Neither running nor waiting for a CPU."""
        return self.state != RUNNING


@dataclass
class Span:
    """Consecutive samples that belong together. `file`, `fd`, `offset`, `direct` are filled in by who resolves them."""

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

    @classmethod
    def begin(cls, sample: Sample, seeded: bool) -> Span:
        """A span of one sample."""
        return cls(sample, sample, {sample.state: 1}, seeded)

    @property
    def samples(self) -> int:
        """How many samples it holds."""
        return sum(self.states.values())

    @property
    def wall_ns(self) -> int:
        """From the first to the last sample."""
        return self.last.at_ns - self.first.at_ns

    def add(self, sample: Sample) -> None:
        """Take in one more sample."""
        self.last = sample
        self.states[sample.state] = self.states.get(sample.state, 0) + 1

    def split(self) -> tuple[int, int, int, int]:
        """`wall_ns` as on CPU, blocked, sleeping, runnable: run and wait as the kernel counts, the rest by state."""
        run = max(0, self.last.run_ns - self.first.run_ns) if self.first.run_ns >= 0 else 0
        wait = max(0, self.last.wait_ns - self.first.wait_ns) if self.first.wait_ns >= 0 else 0
        run = min(run, self.wall_ns)
        wait = min(wait, self.wall_ns - run)
        rest = self.wall_ns - run - wait
        off = sum(n for state, n in self.states.items() if state != RUNNING)
        blocked = rest * self.states.get("D", 0) // off if off else 0
        return run, blocked, rest - blocked, wait


@dataclass
class Thread:
    """One thread under observation, the call and the wait it is in. `fresh`: the window's first sample is to come."""

    pid: int
    tid: int
    comm: str
    call: Span | None = None
    wait: Span | None = None
    fresh: bool = False
    last_ns: int = -1

    def feed(self, sample: Sample) -> tuple[Span | None, Span | None]:
        """Take in a sample; returns the call and the wait that turn out to have ended before it."""
        seeded, self.fresh, self.last_ns = self.fresh, False, sample.at_ns
        return self._feed_call(sample, seeded), self._feed_wait(sample, seeded)

    def end(self, alive: bool) -> tuple[Span | None, Span | None]:
        """The call and the wait at the end. With `alive` they are open if the last sample was still in them."""
        call, wait, self.call, self.wait = self.call, self.wait, None, None
        for span in (call, wait):
            if span is not None:
                span.open = alive and span.last.at_ns == self.last_ns
        return call, wait

    def _feed_call(self, sample: Sample, seeded: bool) -> Span | None:
        if sample.call is None and not sample.off_cpu:
            return None  # on a CPU, perhaps inside the call: the next sample tells
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
        if sample.off_cpu:
            self.wait = Span.begin(sample, seeded)
        return ended


def _did_not_run(before: Sample, now: Sample) -> bool:
    return before.slices >= 0 and before.slices == now.slices and before.state == now.state


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
