"""A PyTorch job on the CPU that is profiled by Kineto and says itself when it entered and left the ranges it marks.

    python torch_job.py PROFILE.json.gz   (answers on standard output, one JSON object)

Each step computes a little and sleeps inside a range called ``marked``; the clocks are read as the first and the last
thing inside of it.
"""

from __future__ import annotations

import json
import sys
import threading
import time

CLOCKS = {"mono": time.CLOCK_MONOTONIC, "mono_raw": time.CLOCK_MONOTONIC_RAW, "boot": time.CLOCK_BOOTTIME}
STEPS = 24
SLEEP_S = 0.012


def readings() -> dict[str, int]:
    """All clocks now, ns."""
    return {name: time.clock_gettime_ns(clock) for name, clock in CLOCKS.items()}


def main(output: str) -> None:
    """Run, write the profile, tell the marks."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    torch.set_num_threads(1)
    left = torch.rand(160, 160)
    marks: list[tuple[dict[str, int], dict[str, int]]] = []
    plan = schedule(wait=0, warmup=2, active=STEPS, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        on_trace_ready=lambda ready: ready.export_chrome_trace(output),
    ) as profiler:
        for step in range(2 + STEPS):
            for _ in range(4):
                left = torch.tanh(left @ left)
            with record_function("marked"):
                entered = readings()
                time.sleep(SLEEP_S)
                leaving = readings()
            if step >= 2:
                marks.append((entered, leaving))
            profiler.step()
    print(json.dumps({"tid": threading.get_native_id(), "marks": marks}))


if __name__ == "__main__":
    main(sys.argv[1])
