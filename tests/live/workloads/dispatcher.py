#!/usr/bin/env python3
"""A thread that must wake every 2 ms and feed an accelerator; says how late it was each time.

Lines ``step`` carry ``wakes``, one row per wake: intended, woken, done (CLOCK_MONOTONIC nanoseconds), the CPU it woke
on, and the deadlines missed before the next one.  The accelerator is simulated (see dispatcher_device.py): ``idle``
are the gaps of its work in that step, and ``--profile FILE`` writes the run as a Kineto trace.

With ``--disturb`` it runs beside one disturber (see disturbers.py), each a process of its own, and what happened is
told at the end:

    python dispatcher.py --disturb neighbour --duration 5
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import signal
import threading
import time
import zlib
from pathlib import Path

from dispatcher_device import Device, EpochClock, Step, write_kineto
from dispatcher_log import demonstrate
from disturbers import KINDS, name_thread
from workload import Workload

PR_SET_TIMERSLACK = 29
TIMER_ABSTIME = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Timespec(ctypes.Structure):
    """struct timespec."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def sleep_until(deadline_ns: int) -> None:
    """Sleep to an instant of CLOCK_MONOTONIC."""
    until = Timespec(*divmod(deadline_ns, 10**9))
    while _libc.clock_nanosleep(time.CLOCK_MONOTONIC, TIMER_ABSTIME, ctypes.byref(until), None) != 0:
        pass


class Work:
    """A fixed amount of computing, so that what is stolen from it shows; its data should stay in a core's cache."""

    def __init__(self, milliseconds: float) -> None:
        data = bytes(1 << 16)
        best = min(self._timed(data) for _ in range(200))
        self._data = os.urandom(max(int(len(data) * milliseconds * 1e6 / best), 1))

    def run(self) -> None:
        """Do it once."""
        zlib.crc32(self._data)

    @staticmethod
    def _timed(data: bytes) -> int:
        before = time.monotonic_ns()
        zlib.crc32(data)
        return time.monotonic_ns() - before


class Dispatcher:
    """The thread, its device and its log."""

    def __init__(self, work: Workload) -> None:
        self._out = work
        self._options = options = work.options
        self._work = Work(options.work_ms / options.launches)
        self._period_ns = int(options.period_ms * 1e6)
        self.device = Device(int(options.kernel_ms * 1e6))
        self.steps: list[Step] = []
        self.thread = threading.Thread(target=self._run)
        self._begin = threading.Event()

    def start(self) -> None:
        """Make the thread, which waits for ``begin``."""
        # The thread leaves signals to the main one: they would end its sleep early.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        self.thread.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def begin(self) -> None:
        """Let it work until the program is stopped or the time is up."""
        self._begin.set()

    def _run(self) -> None:
        name_thread(self._options.thread_name)
        _libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
        if self._options.cpu is not None:
            os.sched_setaffinity(0, {self._options.cpu})
        self._begin.wait()
        end = time.monotonic_ns() + int(self._options.duration * 1e9)
        deadline = time.monotonic_ns() + self._period_ns
        number = 0
        while deadline < end and not self._out.stopped.is_set():
            deadline = self._step(number, deadline)
            number += 1

    def _step(self, number: int, deadline: int) -> int:
        """One profiler step; returns the deadline after it."""
        wakes: list[tuple[int, int, int, int, int]] = []
        known = len(self.device.idle)
        start = time.monotonic_ns()
        for _ in range(self._options.wakes_per_step):
            sleep_until(deadline)
            woken, cpu = time.monotonic_ns(), _libc.sched_getcpu()
            for _ in range(self._options.launches):
                self._work.run()
                asked = time.monotonic_ns()
                self.device.launch(number, asked, time.monotonic_ns())
            done = time.monotonic_ns()
            missed = max(done - deadline, 0) // self._period_ns
            wakes.append((deadline, woken, done, cpu, missed))
            deadline += (1 + missed) * self._period_ns
        self.steps.append(Step(number, start, time.monotonic_ns()))
        idle = self.device.idle[known:]
        self._out.emit("step", step=number, start_mono_ns=start, end_mono_ns=done, wakes=wakes, idle=idle)
        return deadline


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--duration", type=float, default=5.0, help="seconds (default %(default)s)")
    parser.add_argument("--period-ms", type=float, default=2.0, help="between two wakes (default %(default)s)")
    parser.add_argument("--work-ms", type=float, default=0.3, help="computing after each (default %(default)s)")
    parser.add_argument("--launches", type=int, default=4, help="kernels launched per wake (default %(default)s)")
    parser.add_argument("--kernel-ms", type=float, default=0.49, help="what a kernel takes (default %(default)s)")
    parser.add_argument("--wakes-per-step", type=int, default=50, help="per profiler step (default %(default)s)")
    parser.add_argument("--cpu", type=int, help="pin the thread to this CPU")
    parser.add_argument("--thread-name", default="dispatch", help="default %(default)s")
    parser.add_argument("--profile", type=Path, help="write the device's work here as a Kineto trace")
    parser.add_argument("--disturb", choices=KINDS, help="run beside this, and tell what it did instead of the log")
    work = Workload(parser)
    options = work.options
    if options.disturb:
        demonstrate(options)
        return
    gc.disable()
    dispatcher = Dispatcher(work)
    dispatcher.start()
    clock = EpochClock()
    options.profile = options.profile and str(options.profile)
    work.start(dispatch_tid=dispatcher.thread.native_id)
    dispatcher.begin()
    dispatcher.thread.join()
    clock.stop()
    if options.profile:
        tid = dispatcher.thread.native_id or 0
        write_kineto(Path(options.profile), dispatcher.device, dispatcher.steps, tid, clock)
    work.emit("end", kernels=len(dispatcher.device.launches))


if __name__ == "__main__":
    main()
