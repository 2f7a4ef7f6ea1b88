"""Measure reading a Kineto trace, compared with ``json.load``, the start of any reader written in Python."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.common import PYTHON, ROOT, Metrics, Report, Row, Samples, child_command, interleave, no_tracer

_SIZE = 200 << 20
_SAMPLE = ROOT.parent / "shared" / "data" / "kineto" / "timesformer_h100.json.gz"
_CHILD = """
import gzip, json, resource, sys, time
from whystall.tools.timeline.profiles import open_profile  # both load it: what is compared is the reading
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def plain(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
        return json.load(file)
read = {"ours": open_profile, "json.load": plain}[sys.argv[1]]
before, cpu, wall = peak(), time.process_time(), time.perf_counter()
found = read(sys.argv[2])
print(time.process_time() - cpu, time.perf_counter() - wall, (peak() - before) / 1024)
"""
_NAMES = ("ours", "json.load")


def _event(category: str, name: str, pid: int, tid: int, ts: float, dur: float, args: str) -> str:
    """Return an event as libkineto prints it."""
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {ts:.3f}, "dur": {dur:.3f},\n    "args": {{\n      {args}\n    }}\n  }},\n'
    )


def write_trace(path: Path, size: int) -> None:
    """Write a Kineto trace of `size` bytes or more: steps of 200 operators with Python frames, launches and kernels."""
    number, now = 0, 4_458_676_416_788.066
    with path.open("w") as file:
        file.write(
            '{\n  "schemaVersion": 1,\n  "distributedInfo": {"backend": "nccl", "rank": 0},\n  "traceEvents": [\n'
        )
        while file.tell() < size:
            begin, events = now, []
            for _ in range(200):
                number += 1
                now += 11.375
                shapes = '"Input Dims": [[64, 1024], [1024, 1024], []], "Input type": ["float", "float", "Scalar"]'
                frame = f'"Python parent id": {number}, "Python id": {number + 1}, "Ev Idx": {number}'
                launch = f'"External id": {number}, "cbid": 211, "correlation": {number}'
                kernel = (
                    f'"External id": {number}, "queued": 0, "device": 0, "context": 1, "stream": 7, '
                    f'"correlation": {number}, "registers per thread": 32, "blocks per SM": 1520.5, '
                    '"grid": [1568, 1, 128], "block": [256, 1, 1], "est. achieved occupancy %": 100'
                )
                frames = [
                    _event("python_function", f"torch/nn/modules/module.py({i}): _call_impl", 17, 17, now, 9.5, frame)
                    for i in range(1700, 1704)
                ]
                name = f"void at::native::vectorized_elementwise_kernel<4, at::native::Functor<{number % 40}>>(int)"
                events += [
                    *frames,
                    _event("cpu_op", "aten::addmm", 17, 17, now + 0.25, 8.75, f'"External id": {number}, {shapes}'),
                    _event("cuda_runtime", "cudaLaunchKernel", 17, 17, now + 4.125, 3.5, launch),
                    _event("kernel", name, 0, 7, now + 21.625, 10.0, kernel),
                ]
            step = f"ProfilerStep#{number // 200}"
            events.append(_event("user_annotation", step, 17, 17, begin, now - begin, f'"External id": {number}'))
            file.write("".join(events))
        last = _event("Trace", "PyTorch Profiler (0)", 17, 17, 4_458_676_416_788.066, 1.0, '"Op count": 0')
        file.write(
            last.rstrip(",\n") + '\n  ],\n  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": 1711964646000000000\n}\n'
        )


def _measure(path: Path, name: str, _: Sequence[int]) -> Metrics:
    command = child_command([PYTHON, "-c", _CHILD, name, str(path)])
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, cwd=ROOT).stdout.split()
    return dict(zip(("cpu", "wall", "memory"), map(float, output), strict=True))


def _rows(what: str, samples: Samples) -> list[Row]:
    return [
        Row(
            f"{what}: {label}",
            samples.spread("ours", metric).text(unit, digits),
            samples.spread("json.load", metric).text(unit, digits),
            samples.ratio("ours", metric, "json.load").text("", 2),
        )
        for metric, label, unit, digits in (
            ("cpu", "CPU time", "s", 2),
            ("memory", "memory added at the peak", "MB", 0),
        )
    ]


def run(rounds: int) -> Report:
    """Measure a third of the rounds, as each takes many seconds."""
    report = Report("Reading a Kineto trace: `open_profile` beside plain `json.load`")
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as name:
        made = Path(name, "trace.json")
        write_trace(made, _SIZE)
        files = [
            (f"{_SIZE >> 20} MiB, generated", made),
            *([("H100 sample, gzip", _SAMPLE)] if _SAMPLE.exists() else []),
        ]
        for what, path in files:
            samples = interleave(dict.fromkeys(_NAMES, no_tracer), max(rounds // 3, 2), partial(_measure, path))
            report.rows += _rows(what, samples)
    report.notes.append(
        "json.load returns a tree of dicts; ours typed columns, with device work linked to launch and step"
    )
    return report
