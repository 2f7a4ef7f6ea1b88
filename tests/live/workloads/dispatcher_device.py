"""An accelerator that is only arithmetic: it consumes launches one after the other, each for a known time.

No host activity can slow it down, so every gap in its work is the launcher's fault: a ground truth for bubbles.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

DEVICE, STREAM = 0, 7
LATENCY_NS = 4_000
"""From the return of a launch to the start of its kernel on an idle device; a few microseconds is usual."""
# Kineto counts from the start of a period of three months, so that microseconds fit a double (libkineto, TraceSpan).
BASE_PERIOD_NS = 7_889_238 * 10**9


class Launch(NamedTuple):
    """One launch and its kernel; CLOCK_MONOTONIC nanoseconds."""

    step: int
    asked_ns: int
    returned_ns: int
    start_ns: int
    end_ns: int


class Step(NamedTuple):
    """One profiler step."""

    number: int
    start_ns: int
    end_ns: int


class Device:
    """The queue; ``service_ns`` is what every kernel takes."""

    def __init__(self, service_ns: int) -> None:
        self._service_ns = service_ns
        self.launches: list[Launch] = []
        self.idle: list[tuple[int, int]] = []
        """Gaps between kernels, start and end."""

    def launch(self, step: int, asked_ns: int, returned_ns: int) -> None:
        """Enqueue one kernel."""
        start = returned_ns + LATENCY_NS
        if self.launches:
            free = self.launches[-1].end_ns
            if start > free:
                self.idle.append((free, start))
            start = max(start, free)
        self.launches.append(Launch(step, asked_ns, returned_ns, start, start + self._service_ns))


class EpochClock:
    """CLOCK_MONOTONIC to the epoch, by a point at the start and one at the end: NTP may slew between."""

    def __init__(self) -> None:
        self._first = self._last = _pair()

    def stop(self) -> None:
        """Take the second point."""
        self._last = _pair()

    def ns(self, mono_ns: int) -> int:
        """Nanoseconds since the epoch at that instant."""
        (mono, offset), (later, later_offset) = self._first, self._last
        drift = (later_offset - offset) * (mono_ns - mono) // max(later - mono, 1)
        return mono_ns + offset + drift


def _pair() -> tuple[int, int]:
    """An instant, and how far the epoch's clock is ahead of it: the tightest of several readings."""

    def read() -> tuple[int, int, int]:
        before, real, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        middle = (before + after) // 2
        return after - before, middle, real - middle

    return min(read() for _ in range(20))[1:]


def write_kineto(path: Path, device: Device, steps: list[Step], tid: int, clock: EpochClock) -> None:
    """The run as PyTorch's profiler writes one (libkineto, output_json.cpp)."""
    base = clock.ns(device.launches[0].asked_ns) // BASE_PERIOD_NS * BASE_PERIOD_NS if device.launches else 0
    events = [*_annotations(steps, tid, clock, base), *_work(device, tid, clock, base)]
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": DEVICE, "name": "Simulated accelerator"}],
        "baseTimeNanoseconds": base,
        "displayTimeUnit": "ms",
        "traceEvents": events,
    }
    path.write_text(json.dumps(document))


def _span(start_ns: int, end_ns: int, clock: EpochClock, base: int) -> dict[str, float]:
    start, end = clock.ns(start_ns) - base, clock.ns(end_ns) - base
    return {"ts": round(start / 1e3, 3), "dur": round((end - start) / 1e3, 3)}


def _annotations(steps: list[Step], tid: int, clock: EpochClock, base: int) -> Iterator[dict[str, Any]]:
    for step in steps:
        yield {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{step.number}",
            "pid": os.getpid(),
            "tid": tid,
            **_span(step.start_ns, step.end_ns, clock, base),
        }


def _work(device: Device, tid: int, clock: EpochClock, base: int) -> Iterator[dict[str, Any]]:
    for correlation, launch in enumerate(device.launches, 1):
        asked = _span(launch.asked_ns, launch.returned_ns, clock, base)
        ran = _span(launch.start_ns, launch.end_ns, clock, base)
        host = {"pid": os.getpid(), "tid": tid}
        there = {"pid": DEVICE, "tid": STREAM}
        flow = {"cat": "ac2g", "name": "ac2g", "id": correlation}
        args = {"device": DEVICE, "stream": STREAM, "correlation": correlation}
        yield {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            **host,
            **asked,
            "args": {"correlation": correlation},
        }
        yield {"ph": "X", "cat": "kernel", "name": "simulated_gemm", **there, **ran, "args": args}
        yield {"ph": "s", **host, "ts": asked["ts"], **flow}
        yield {"ph": "f", "bp": "e", **there, "ts": ran["ts"], **flow}
