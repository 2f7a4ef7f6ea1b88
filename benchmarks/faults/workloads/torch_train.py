"""Train with PyTorch on batches of a DataLoader with worker processes."""

from __future__ import annotations

import bz2
import multiprocessing
import os
import time
from typing import Any

import torch
from joblog import Job
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[torch.Tensor]):
    """Samples that are decoded when asked for."""

    def __init__(self, job: Job) -> None:
        self._numbers = job.settings["numbers"]
        self._directory = job.settings["directory"]
        self.revision: Any = multiprocessing.Value("i", 1)
        text = " ".join(str(number * 7919 % 65536) for number in range(200_000))
        self._packed = [bz2.compress(text[: 6 * count].encode()) for count in (300, self._numbers)]
        with open(os.path.join(self._directory, "samples.bin"), "wb") as file:
            file.write(os.urandom(1 << 16))

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        self.read(index)
        return self.decode(self._packed[self.revision.value > 1])

    def read(self, index: int) -> None:
        with open(os.path.join(self._directory, "samples.bin"), "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.read(4096)  # mark: read

    def decode(self, packed: bytes) -> torch.Tensor:
        text = bz2.decompress(packed)  # mark: unpack
        values = [float(word) for word in text.split()]  # mark: parse
        return torch.tensor(values[:256])


def train(job: Job, samples: Samples) -> None:
    # The default function puts a batch into shared memory at once; another one leaves that to the queue's thread.
    collate = torch.stack if job.settings.get("stack") else None
    loader = DataLoader(samples, batch_size=8, num_workers=job.settings["workers"], collate_fn=collate)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    start = time.monotonic()
    for number, batch in enumerate(loader):  # mark: take
        job.emit("load", s=time.monotonic() - start)
        with job.phase("compute"):
            optimizer.zero_grad()
            for _ in range(job.settings["repeats"]):
                model(batch).square().mean().backward()  # mark: compute
            optimizer.step()
        job.emit("step", s=time.monotonic() - start, n=number)
        start = time.monotonic()
        if number == 0:
            job.emit("ready")
        if job.reloaded():
            samples.revision.value = job.revision


def main() -> None:
    job = Job()
    torch.set_num_threads(1)
    train(job, Samples(job))


if __name__ == "__main__":
    main()
