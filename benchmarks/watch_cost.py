"""Measure what the continuous recorder of the watch costs: its own CPU time, its programs in the kernel, and the job's
CPU time per step with and without it, interleaved. It records for a while first, as it lowers its detail itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import kernel
from benchmarks.common import (
    PYTHON,
    ROOT,
    Condition,
    Metrics,
    Report,
    Row,
    Workload,
    child_command,
    cpu_ns,
    interleave,
    no_tracer,
)
from benchmarks.slowdown import PythonWorkload

_WARM_S = 25.0
_MEASURED_S = 8.0
_ROUNDS = 5  # a round takes two minutes
_CPU_GOAL, _STEP_GOAL = 1.0, 1.01
_RECORDER = """
import json, select, sys, time
from dataclasses import asdict
from pathlib import Path
from whystall.tools.collect.continuous import ContinuousRecorder, Limits
from whystall.tools.recording.target import Target, children_of
pid = int(sys.argv[1])
recorder = ContinuousRecorder(Target(everything=False, pid=pid, pids=children_of([pid])), Limits(), Path(sys.argv[2]))
recorder.start()
print("ready", flush=True)
while True:
    if select.select([sys.stdin], [], [], 1)[0]:
        sys.stdin.readline()
        print(json.dumps(asdict(recorder.cost())), flush=True)
    recorder.poll()
"""


@dataclass(frozen=True)
class _Job:
    """A program: its command and the steps of a turn; none: it sleeps. `per_s`: most steps per second, 0: no limit."""

    what: str
    command: str
    steps: int
    per_s: int = 0


_JOBS = (
    _Job("training step of PyTorch on the CPU", "train", 250),
    _Job("10,000 round trips a second to another process", "pingpong", 500, 10_000),
    _Job("round trips without a pause, on one CPU", "pingpong", 100_000),
    _Job("a job that sleeps", "", 0),
)


class _Recorder:
    """A recorder in a process of its own."""

    def __init__(self, pid: int, directory: str) -> None:
        self.process = subprocess.Popen(
            child_command([PYTHON, "-c", _RECORDER, str(pid), directory]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        if self._line() != "ready\n":
            raise RuntimeError("the recorder does not start")

    def cost(self) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found: dict[str, float] = json.loads(self._line())
        return found

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


def _work(job: _Job, workload: Workload | None, seconds: float) -> tuple[float, float]:
    """Run the job for some seconds; return its CPU time and its wall time per step, ns."""
    cpu = wall = 0.0
    turns, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        if workload is None:
            time.sleep(1)
            continue
        one = workload.run(f"{job.command} {job.steps}")
        cpu, wall, turns = cpu + one[0], wall + one[1], turns + 1
        if job.per_s:
            time.sleep(max(0.0, job.steps / job.per_s - one[1] * job.steps / 1e9))
    return cpu / max(turns, 1), wall / max(turns, 1)


def _measure(job: _Job, workload: Workload | None, recorder: _Recorder | None) -> Metrics:
    _work(job, workload, _WARM_S if recorder is not None else 1.0)
    if recorder is None:
        step, _ = _work(job, workload, _MEASURED_S)
        return {"step": step}
    pid = recorder.process.pid
    with kernel.run_statistics():
        programs = kernel.programs_of(pid)
        before, own, since = kernel.runs(programs), cpu_ns([pid]), time.monotonic_ns()
        step, _ = _work(job, workload, _MEASURED_S)
        took = time.monotonic_ns() - since
        own = cpu_ns([pid]) - own
        used = sum(run.ns - before[n].ns for n, run in kernel.runs(programs).items() if n in before)
    status = Path(f"/proc/{pid}/status").read_text()
    anonymous = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))
    cost = recorder.cost()
    return {
        "step": step,
        "own": 100 * own / took,
        "kernel": 100 * used / took,
        "all": 100 * (own + used) / took,
        "threshold": cost["min_ns"] / 1e6,
        "lost": cost["lost"],
        "memory": anonymous / 1024,
        "disk": cost["disk_bytes"] / (1 << 20) / (_WARM_S + _MEASURED_S) * 3600,
    }


def _rows(report: Report, job: _Job, workload: Workload | None, pid: int, rounds: int) -> None:
    running: list[_Recorder] = []

    @contextmanager
    def recorded() -> Iterator[Sequence[int]]:
        with tempfile.TemporaryDirectory(prefix="whystall-bench-") as directory:
            recorder = _Recorder(pid, directory)
            running.append(recorder)
            try:
                yield [recorder.process.pid]
            finally:
                running.clear()
                recorder.process.kill()
                recorder.process.communicate()

    conditions: dict[str, Condition] = {"none": no_tracer, "recorded": recorded}
    samples = interleave(conditions, rounds, lambda _n, _t: _measure(job, workload, running[0] if running else None))
    share = samples.spread("recorded", "all")
    own, programs = (samples.spread("recorded", name).text("%", 2) for name in ("own", "kernel"))
    threshold, lost = samples.spread("recorded", "threshold").text("ms"), samples.spread("recorded", "lost").text()
    goal = f"<= {_CPU_GOAL:g} % of a core"
    report.rows.append(Row(f"{job.what}: the recorder", share.text("% of a core", 2), goal=goal, met=share.median <= 1))
    report.notes.append(
        f"{job.what}: own process {own}, programs in the kernel {programs}; threshold of waits at last "
        f"{threshold}; lost events {lost}; "
        f"private memory {samples.spread('recorded', 'memory').text('MiB')}; log "
        f"{samples.spread('recorded', 'disk').text('MiB an hour')}"
    )
    if workload is not None:
        ratio = samples.ratio("recorded", "step", "none")
        alone = samples.spread("none", "step").text("ns CPU")
        met = True if ratio.median < _STEP_GOAL else False if ratio.low > _STEP_GOAL else None
        report.rows.append(
            Row(f"{job.what}: a step", f"x {ratio.text('', 3)}", alone, goal=f"< x {_STEP_GOAL}", met=met)
        )
    report.notes += samples.notes()


def run(rounds: int) -> Report:
    """Measure; nothing stays attached, whatever happens."""
    report = Report("The continuous recorder of the watch: its cost, and that of a step of the job")
    report.notes.append("in the column of the peer: the step without a recorder")
    cpu = str(max(os.sched_getaffinity(0)))
    rounds = min(rounds, _ROUNDS)
    for job in _JOBS:
        if job.command == "train":
            with PythonWorkload("training_step.py") as training:
                _rows(report, job, training, training.pid, rounds)
        elif job.command:
            with Workload("pingpong.c", cpu, cpu) as switching:
                _rows(report, job, switching, switching.pid, rounds)
        else:
            with subprocess.Popen(child_command(["sleep", "36000"])) as sleeper:
                _rows(report, job, None, sleeper.pid, rounds)
                sleeper.kill()
    return report
