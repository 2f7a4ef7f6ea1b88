"""Measure what it costs a job that the watch profiles its calls of accelerators' libraries, beside bpftrace.

A loop of empty launches in C shows the cost of a call: the breakpoints at entry and return, and what is counted there.
Steps of a small model with 50 launches from Python and a wait of 1 ms each show what is left of it in a job. bpftrace
counts calls and time by thread and function, as `funclatency` of BCC does, with and without the native stack of each
call; it knows no lines of Python. The recorder alone, without these probes, is measured, too.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import (
    PYTHON,
    ROOT,
    SOURCES,
    Condition,
    Metrics,
    Report,
    Row,
    Workload,
    child_command,
    interleave,
    no_tracer,
    wait_until,
)

_LAUNCHES, _STEPS = 100_000, 150
_FIRST = ("emulated", "stepped")
_RECORDER = """
import select, sys, time
from pathlib import Path
from whystall.tools.collect.continuous import ContinuousRecorder, Limits
from whystall.tools.recording.target import Target
pid, calls = int(sys.argv[1]), sys.argv[3] == "calls"
limits = Limits(calls=calls, calls_share=1e9)  # to the end, whatever it costs
recorder = ContinuousRecorder(Target(everything=False, pid=pid, pids=[pid]), limits, Path(sys.argv[2]))
recorder.start()
while calls and not recorder.cost().calls.functions: time.sleep(0.1); recorder.poll()
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 1)[0]: recorder.poll()
"""
_COUNT = """
uprobe:LIB:cuLaunchKernel, uprobe:LIB:cuLaunchKernelEx, uprobe:LIB:cuStreamSynchronize
/pid == PID/ { @at[tid] = nsecs; }
uretprobe:LIB:cuLaunchKernel, uretprobe:LIB:cuLaunchKernelEx, uretprobe:LIB:cuStreamSynchronize
/pid == PID && @at[tid]/ {
    @calls[tid, func, STACK] = stats(nsecs - @at[tid]); delete(@at[tid]);
}
interval:s:10 { clear(@calls); }
"""
_NAMES = {
    "calls": "the recorder with these calls",
    "recorder": "the recorder without",
    "counted": "bpftrace, counted",
    "stacks": "bpftrace, counted by stack",
}


class _Job(Workload):
    """`launching_job.py`."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="whystall-bench-")
        self.library = Path(self._directory.name) / "libcuda.so.1"
        source = str(SOURCES / "launching.c")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(self.library), source], check=True)
        command = child_command([PYTHON, str(SOURCES / "launching_job.py"), str(self.library)])
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextmanager
def _recorded(job: _Job, what: str) -> Iterator[list[int]]:
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as directory:
        command = child_command([PYTHON, "-c", _RECORDER, str(job.pid), directory, what])
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("the recorder does not start")
            time.sleep(1)
            yield [process.pid]
        finally:
            with suppress(subprocess.TimeoutExpired):
                process.communicate("\n", 20)
            process.kill()
            process.wait()


@contextmanager
def _bpftrace(job: _Job, stack: str) -> Iterator[list[int]]:
    text = _COUNT.replace("LIB", str(job.library)).replace("PID", str(job.pid)).replace(", STACK", stack)
    with tempfile.NamedTemporaryFile(prefix="whystall-bench-") as out:
        command = child_command(["bpftrace", "-o", out.name, "-e", text])
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            if not wait_until(lambda: b"Attach" in Path(out.name).read_bytes(), 20):
                raise RuntimeError("bpftrace does not start")
            time.sleep(1)
            yield [process.pid]
        finally:
            process.kill()
            process.wait()


def _measure(job: _Job, _name: str, _tracers: Sequence[int]) -> Metrics:
    step = job.run(f"steps {_STEPS}")[0] / 1e6
    return {**{name: job.run(f"{name} {_LAUNCHES}")[0] for name in _FIRST}, "cpu": step}


def run(rounds: int) -> Report:
    """Measure; nothing stays attached, whatever happens."""
    report = Report("Calls of accelerators' libraries in the profile of the watch: what they cost a job")
    with _Job() as job:
        job.run("steps 20")
        conditions: dict[str, Condition] = {
            "none": no_tracer,
            "recorder": partial(_recorded, job, "none"),
            "calls": partial(_recorded, job, "calls"),
        }
        if shutil.which("bpftrace"):
            conditions |= {"counted": partial(_bpftrace, job, ""), "stacks": partial(_bpftrace, job, ", ustack(8)")}
        measure: Any = partial(_measure, job)
        samples = interleave(conditions, rounds, measure)
    for name in conditions:
        if name == "none":
            continue
        ours = name in ("calls", "recorder")
        for first in _FIRST:
            added = samples.added(name, first, "none").text("ns", sign=True)
            row = f"an empty launch, first instruction {first}: {_NAMES[name]}"
            report.rows.append(Row(row, added if ours else "", "" if ours else added))
        ratio = f"x {samples.ratio(name, 'cpu', 'none').text('', 3)}"
        row = f"CPU time of a step with 50 launches and a wait: {_NAMES[name]}"
        report.rows.append(Row(row, ratio if ours else "", "" if ours else ratio))
    alone = samples.spread("none", "emulated").text("ns", 1)
    step = samples.spread("none", "cpu").text("ms CPU", 2)
    report.notes.append(f"without tracers: an empty launch {alone}, a step {step}")
    report.notes += samples.notes()
    return report
