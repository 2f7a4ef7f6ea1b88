"""Process batches of numbers; save a checkpoint after every few."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import numpy as np
from joblog import Job


def process_batch(job: Job, weights: np.ndarray) -> None:
    with job.phase("compute"):
        np.dot(weights, weights)  # mark: compute
    with job.phase("rest"):
        time.sleep(job.settings["rest_s"])  # mark: rest


def save_checkpoint(job: Job, path: Path) -> None:
    with job.phase("draw"):
        data = os.urandom(job.settings["save_mib"] << 20)  # mark: draw
    with job.phase("write"), path.open("wb") as file:
        file.write(data)  # mark: write
        if job.settings["durable"]:
            os.fsync(file.fileno())  # mark: sync
    with job.phase("remove"):
        path.unlink()  # mark: remove


def main() -> None:
    job = Job()
    weights = np.random.default_rng(0).random((job.settings["size"],) * 2)
    path = Path(job.settings["directory"]) / "model.bin"
    job.emit("ready")
    for number in itertools.count(1):
        with job.phase("step", n=number):
            process_batch(job, weights)
            if job.revision > 1 and number % job.settings["save_every"] == 0:
                with job.phase("save"):
                    save_checkpoint(job, path)
        job.reloaded()


if __name__ == "__main__":
    main()
