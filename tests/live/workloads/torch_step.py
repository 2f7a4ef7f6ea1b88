#!/usr/bin/env python3
"""Train a small model for some steps on the CPU under torch.profiler, and log what both clocks say.

    python torch_step.py OUT

Writes OUT/ops.json and OUT/stacks.json (Kineto traces without and with Python stacks) and OUT/truth.json: for each
``table``, the profiler's own account (name: count and self time in us), and ``blocks``: of the range named BLOCK, each
length in ns by this program's clock; ``slept_ns``: the part of it in which nothing ran.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

BLOCK = "prepare batch"
STEPS = 3
SLEEP_S = 0.02


class Job:
    """A step: prepare, forward, backward, update."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self._model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self.blocks: list[int] = []
        self.slept_ns = 0

    def step(self) -> None:
        """One step."""
        begin = time.perf_counter_ns()
        with record_function(BLOCK):
            batch = self.prepare()
        self.blocks.append(time.perf_counter_ns() - begin)
        loss = self._model(batch).softmax(1).square().mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()

    def prepare(self) -> torch.Tensor:
        """A batch, late."""
        begin = time.perf_counter_ns()
        time.sleep(SLEEP_S)
        self.slept_ns += time.perf_counter_ns() - begin
        return torch.randn(128, 256)


def traced(path: Path, stacks: bool) -> dict[str, Any]:
    """Run under the profiler; the trace goes to `path`."""
    job = Job()
    job.step()  # first calls allocate and compile
    job.blocks.clear()
    job.slept_ns = 0
    with profile(activities=[ProfilerActivity.CPU], with_stack=stacks) as profiler:
        for _ in range(STEPS):
            job.step()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    table = {one.key: [one.count, one.self_cpu_time_total] for one in profiler.key_averages()}
    return {"table": table, "blocks": job.blocks, "slept_ns": job.slept_ns}


def main() -> None:
    """Both traces."""
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    truth = {name: traced(out / f"{name}.json", name == "stacks") for name in ("ops", "stacks")}
    (out / "truth.json").write_text(json.dumps(truth))


if __name__ == "__main__":
    main()
