"""Pack records into compressed blocks, which a thread loads; `callbacks.py` extends the loop. No further packages."""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
import zlib

from callbacks import Callbacks
from joblog import Job


class Loader(threading.Thread):
    """Loads records ahead of the loop."""

    def __init__(self, job: Job, callbacks: Callbacks) -> None:
        super().__init__(name="loader", daemon=True)
        self._job = job
        self._callbacks = callbacks
        self._ready: queue.Queue[bytes] = queue.Queue(job.settings.get("ahead", 4))

    def run(self) -> None:
        size = self._job.settings["bytes"]
        for number in itertools.count(1):
            record = self._callbacks.load(number)
            if record is None:
                time.sleep(0.001)
                record = os.urandom(size)
            self._ready.put(record[:size])

    def next_record(self) -> bytes:
        return self._ready.get()  # mark: take


def pack(record: bytes, rounds: int) -> int:
    return sum(len(zlib.compress(record)) for _ in range(rounds))  # mark: compress


def main() -> None:
    job = Job()
    callbacks = Callbacks(job)
    loader = Loader(job, callbacks)
    callbacks.on_start()
    loader.start()
    job.emit("ready")
    for number in itertools.count(1):
        with job.phase("step", n=number):
            with job.phase("load"):
                record = loader.next_record()
            with job.phase("compute"):
                pack(record, job.settings["rounds"])  # mark: pack
            with job.phase("extra"):
                callbacks.on_step(number)  # mark: extra
        if job.reloaded():
            callbacks.on_settings()


if __name__ == "__main__":
    main()
