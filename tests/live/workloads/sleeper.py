#!/usr/bin/env python3
"""Sleep known lengths in the main thread, while one thread waits for a lock and one for a pipe all along."""

from __future__ import annotations

import argparse
import os
import threading
import time

from workload import Workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--sleep-s", type=float, default=0.5)
    parser.add_argument("--interval", type=float, default=0.0, help="seconds of computing between sleeps")
    work = Workload(parser)
    options = work.options
    lock = threading.Lock()
    lock.acquire()
    reader, writer = os.pipe()

    def take_lock() -> None:
        with lock:
            pass

    threads = {
        "lock": threading.Thread(target=take_lock),  # futex
        "pipe": threading.Thread(target=os.read, args=(reader, 1)),  # read
    }
    for thread in threads.values():
        thread.start()
    work.start(tids={"main": threading.get_native_id(), **{name: t.native_id for name, t in threads.items()}})
    for _ in range(options.count):
        if work.stopped.is_set():
            break
        with work.act("sleep", asked_s=options.sleep_s):
            time.sleep(options.sleep_s)
        spun = time.monotonic() + options.interval
        while time.monotonic() < spun:
            pass
    lock.release()
    os.write(writer, b"x")
    for thread in threads.values():
        thread.join()
    work.emit("end")


if __name__ == "__main__":
    main()
