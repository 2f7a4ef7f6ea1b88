"""One rank of a data-parallel job on gloo."""

from __future__ import annotations

import itertools
import os

import torch
import torch.distributed as dist
from joblog import Job


def forward(job: Job, weights: torch.Tensor) -> torch.Tensor:
    repeats = job.settings["repeats"] + (job.settings.get("more", 0) if job.revision > 1 else 0)
    for _ in range(repeats):
        weights = torch.tanh(weights @ weights)  # mark: compute
    return weights


def average(gradient: torch.Tensor) -> None:
    dist.all_reduce(gradient)  # mark: reduce


def main() -> None:
    job = Job()
    job.emit("ready")
    settings = job.settings
    os.environ.update(MASTER_ADDR=settings["master"], MASTER_PORT=str(settings["port"]))
    dist.init_process_group("gloo", rank=settings["rank"], world_size=settings["world"])
    torch.manual_seed(settings["rank"])
    weights = torch.rand(settings["size"], settings["size"]) / settings["size"]
    gradient = torch.rand(settings["gradient"])
    for number in itertools.count(1):
        with job.phase("step", n=number, rank=settings["rank"]):
            with job.phase("compute", rank=settings["rank"]):
                forward(job, weights)
            with job.phase("reduce", rank=settings["rank"]):
                average(gradient)
                gradient /= settings["world"]
        job.reloaded()
        if number >= job.settings.get("batches", number + 1):
            break
    job.emit("trained")
    dist.barrier()  # mark: barrier


if __name__ == "__main__":
    main()
