#!/usr/bin/env python3
"""Burn CPU in a known number of processes; log the CPU time each really got."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import time

from workload import Workload

PR_SET_PDEATHSIG = 1


def burn(deadline: float) -> None:
    while time.monotonic() < deadline:
        for _ in range(1000):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--duration", type=float, default=5.0, help="seconds")
    parser.add_argument("--cpu", type=int, help="pin all of them to this CPU")
    work = Workload(parser)
    options = work.options
    go_reader, go_writer = os.pipe()
    children = []
    for _ in range(options.processes):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if options.cpu is not None:
                os.sched_setaffinity(0, {options.cpu})
            os.close(go_writer)
            os.read(go_reader, 1)  # end of file, for all of them at once
            burn(time.monotonic() + options.duration)
            os._exit(0)
        children.append(child)
    work.start(pids=children)
    os.close(go_writer)
    work.stopped.wait(options.duration)
    for child in children:
        if work.stopped.is_set():
            os.kill(child, signal.SIGKILL)
        _, _, usage = os.wait4(child, 0)
        work.emit(
            "child",
            pid=child,
            user_s=usage.ru_utime,
            system_s=usage.ru_stime,
            preempted=usage.ru_nivcsw,
        )
    work.emit("end")


if __name__ == "__main__":
    main()
