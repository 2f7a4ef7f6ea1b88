#!/usr/bin/env python3
"""Two contend for one lock and hold it for a known time: threads for a mutex, or processes for a flock.

Lines ``wait`` (latency_s: from asking to having) and ``hold`` (latency_s: from having to releasing).
The first to hold is ``holder``, the other ``waiter``; the waiter asks as soon as the holder has it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from workload import Workload


def contend(work: Workload, role: str, lock: Callable[[], Any], unlock: Callable[[], Any]) -> None:
    """One contender's rounds: the waiter never rests, so it always runs into the holder."""
    for number in range(work.options.count):
        with work.act("wait", pid=os.getpid(), role=role, round=number):
            lock()
        with work.act("hold", pid=os.getpid(), role=role, round=number):
            time.sleep(work.options.hold_s if role == "holder" else work.options.waiter_hold_s)
        unlock()
        time.sleep(0.005 if role == "holder" else 0.0)  # lets the other take it: a mutex is not fair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("threads", "flock"), default="threads")
    parser.add_argument("--count", type=int, default=5, help="rounds of each contender")
    parser.add_argument("--hold-s", type=float, default=0.2, help="how long the holder holds it")
    parser.add_argument("--waiter-hold-s", type=float, default=0.01, help="how long the waiter holds it")
    parser.add_argument("--path", help="the file of flock (default: a temporary one)")
    work = Workload(parser)
    options = work.options
    if options.mode == "threads":
        mutex = threading.Lock()
        ready = threading.Event()

        def wait_side() -> None:
            ready.wait()
            contend(work, "waiter", mutex.acquire, mutex.release)

        thread = threading.Thread(target=wait_side)
        thread.start()
        work.start(tids={"holder": threading.get_native_id(), "waiter": thread.native_id})
        threading.Timer(0.02, ready.set).start()
        contend(work, "holder", mutex.acquire, mutex.release)
        thread.join()
    else:
        handle, path = (None, options.path) if options.path else tempfile.mkstemp()
        go_reader, go_writer = os.pipe()
        child = os.fork()
        role = "holder" if child else "waiter"
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if child:
            work.start(pids={"holder": os.getpid(), "waiter": child}, lock_path=path)
            os.write(go_writer, b"x")
        else:
            os.read(go_reader, 1)
            time.sleep(0.02)
        contend(work, role, lambda: fcntl.flock(fd, fcntl.LOCK_EX), lambda: fcntl.flock(fd, fcntl.LOCK_UN))
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        if handle is not None:
            os.unlink(path)
    work.emit("end")


if __name__ == "__main__":
    main()
