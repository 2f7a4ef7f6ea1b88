"""Train a small model on batches that a thread prepares; `callbacks.py` extends the loop."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from typing import Any

import numpy as np
from callbacks import Callbacks
from joblog import Job


class Loader(threading.Thread):
    """Prepares batches ahead of the loop."""

    def __init__(self, job: Job, callbacks: Callbacks) -> None:
        super().__init__(name="loader", daemon=True)
        self._job = job
        self._callbacks = callbacks
        self._ready: queue.Queue[Any] = queue.Queue(job.settings.get("ahead", 4))
        self._random = np.random.default_rng(1)

    def run(self) -> None:
        size = self._job.settings["size"]
        for number in itertools.count(1):
            batch = self._callbacks.load(number)
            if batch is None:
                time.sleep(0.001)
                batch = self._random.random((size, 8))
            self._ready.put(batch)

    def next_batch(self) -> Any:
        return self._ready.get()  # mark: take


class Model:
    """Two dense layers."""

    def __init__(self, size: int) -> None:
        random = np.random.default_rng(2)
        self._first = random.random((size, size))
        self._second = random.random((size, size))

    def forward(self, batch: Any) -> Any:
        return self._second @ np.tanh(self._first @ batch)

    def update(self, gradient: Any) -> None:
        self._first += 1e-9 * (gradient @ gradient.T)
        np.dot(self._first, self._second)  # mark: update


def train_step(job: Job, loader: Loader, model: Model, callbacks: Callbacks, number: int) -> None:
    with job.phase("load"):
        batch = loader.next_batch()
    with job.phase("compute"):
        for _ in range(job.settings["repeats"]):
            model.update(model.forward(batch))  # mark: compute
    with job.phase("extra"):
        callbacks.on_step(number)  # mark: extra


def main() -> None:
    job = Job()
    callbacks = Callbacks(job)
    loader = Loader(job, callbacks)
    model = Model(job.settings["size"])
    callbacks.on_start()
    loader.start()
    job.emit("ready")
    for number in itertools.count(1):
        with job.phase("step", n=number):
            train_step(job, loader, model, callbacks, number)
        if job.reloaded():
            callbacks.on_settings()


if __name__ == "__main__":
    main()
