"""Trace runs of a small job with torch's profiler, on the CPU: ``torch_runs.py DIR shapes|plain RUN[:SLOW_US@RANK]``

Each run has two ranks. The operator ``probe::work`` computes for 300 us; in a run with SLOW_US so much longer on RANK,
with the same shape: what a slower device or a worse kernel does.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

STEPS, CALLS = 12, 4
WORK_US = 300


def main(place: Path, shapes: bool, runs: list[str]) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.set_num_threads(1)
    extra_us = 0

    def work(x: torch.Tensor) -> torch.Tensor:
        until = time.thread_time_ns() + (WORK_US + extra_us) * 1000
        while time.thread_time_ns() < until:
            pass
        return x

    library = torch.library.Library("probe", "DEF")
    library.define("work(Tensor x) -> Tensor")
    library.impl("work", work, "CPU")
    layer, x = torch.nn.Linear(96, 96), torch.ones(64, 96)
    for run in runs:
        name, _, slow = run.partition(":")
        us, _, where = slow.partition("@")
        (place / name).mkdir(parents=True)
        for rank in range(2):
            extra_us = int(us) if where == str(rank) else 0
            when = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
            file = str(place / name / f"rank{rank}.json")
            with profile(
                activities=[ProfilerActivity.CPU],
                record_shapes=shapes,
                schedule=when,
                on_trace_ready=lambda done, file=file: done.export_chrome_trace(file),
            ) as profiler:
                for _ in range(STEPS + 1):
                    for _ in range(CALLS):
                        layer(torch.ops.probe.work(x)).tanh()
                    profiler.step()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "shapes", sys.argv[3:])
