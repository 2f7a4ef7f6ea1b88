"""Measure how much a program slows down while it is observed, by kind of program and of observation. The same process
works with and without an observer in another process. Its CPU time per step is measured, which includes the hooks that
run in it; the CPU time of the observer is a separate row.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import kernel
from benchmarks.common import (
    PYTHON,
    ROOT,
    SOURCES,
    Condition,
    Metrics,
    Report,
    Row,
    Samples,
    Workload,
    child_command,
    cpu_ns,
    interleave,
    no_tracer,
)

_GOAL = 1.05
_ROUNDS = 5  # CPU time per step differs little between rounds, and a round takes a minute
_OBSERVER = """
import sys, anyio, select
from whystall.tools.recording.collector import Need
from whystall.tools.recording.target import resolve
from whystall.tools.contract.params import TargetParams
from whystall.tools.recording.window import observe
from whystall.tools.collect.engines import ENGINES
from whystall.tools.toolbox import registry
pid, announced, needs = int(sys.argv[2]), [], []
tools = {tool.name: tool for tool in registry().all()}
for name in sys.argv[1].split(","):
    needs += tools[name].needs(tools[name].params()) if name in tools else [Need(name)]
def stop():
    if not announced:
        announced.append(1)
        print("ready", flush=True)
    return bool(select.select([sys.stdin], [], [], 0)[0])
anyio.run(lambda: observe(needs, resolve(TargetParams(pid=pid)), 600, ENGINES, stop=stop))
"""
OBSERVED = {
    "path": "critical_path",
    "calls": "critical_path,syscall_time,fileslower",
    "pages": "critical_path,page_cache",
    "all": "critical_path,syscall_time,fileslower,offcputime,page_cache,interrupts,runqlat,biolatency",
}
"""Tools or collectors by the name of the condition."""


@dataclass(frozen=True)
class Job:
    """Work: the command and number of steps of one measurement."""

    command: str
    steps: int
    what: str


_CALLS = (Job("getppid", 300_000, "cheapest system call"), Job("pread", 200_000, "cached 4 KiB pread"))
_SWITCHES = (Job("pingpong", 15_000, "byte to another process and back"),)
_PYTHON = (
    Job("numpy", 400, "matrix product of 200 x 200"),
    Job("python", 2_000, "loop of Python"),
    Job("handover", 8_000, "item to another thread and back"),
    Job("sleep", 300, "1 ms of sleep"),
)


class PythonWorkload(Workload):
    """A worker in Python, with the same protocol."""

    def __init__(self, source: str) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="whystall-bench-")
        self._process = subprocess.Popen(
            child_command([PYTHON, str(SOURCES / source)]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )


@contextmanager
def _observer(what: str, pid: int, home: Path) -> Iterator[list[int]]:
    process = subprocess.Popen(
        child_command([PYTHON, "-c", _OBSERVER, what, str(pid)]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "WHYSTALL_HOME": str(home)},
        cwd=ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{what} cannot be observed")
        time.sleep(0.3)  # the first readings
        yield [process.pid]
    finally:
        process.kill()
        process.wait()


def _measure(workload: Workload, jobs: Sequence[Job], tracers: Sequence[int]) -> Metrics:
    metrics: Metrics = {}
    for job in jobs:
        before, begin = cpu_ns(tracers), time.monotonic_ns()
        metrics[job.command], metrics[f"{job.command} wall"] = workload.run(f"{job.command} {job.steps}")
        metrics[f"{job.command} observer"] = 100 * (cpu_ns(tracers) - before) / (time.monotonic_ns() - begin)
    return metrics


def _by_program(workload: Workload, job: Job, condition: Condition) -> str:
    """Return ns per step in each of our BPF programs, from run_time_ns of the kernel."""
    with kernel.run_statistics(), condition() as tracers:
        programs = kernel.programs_of(tracers[0])
        before = kernel.runs(programs)
        workload.run(f"{job.command} {job.steps}")
        after = kernel.runs(programs)
    used = {run.name: (run.ns - before[n].ns, run.count - before[n].count) for n, run in after.items() if n in before}
    top = sorted(used.items(), key=lambda item: -item[1][0])[:5]
    return ", ".join(f"{name} {ns / job.steps:.0f} ({count / job.steps:.1f} runs)" for name, (ns, count) in top if ns)


def _rows(job: Job, samples: Samples, conditions: Sequence[str]) -> list[Row]:
    rows = [Row(f"{job.what}, alone", samples.spread("none", job.command).text("ns"))]
    for name in conditions:
        ratio = samples.ratio(name, job.command, "none")
        wall = samples.ratio(name, f"{job.command} wall", "none")
        own = samples.spread(name, f"{job.command} observer").median
        added = samples.added(name, job.command, "none").median
        text = f"x {ratio.text('', 3)}, {added:+.0f} ns; wall x {wall.median:.2f}; observer {own:.1f} % of a CPU"
        goal, met = (f"< x {_GOAL}", ratio.median < _GOAL) if name == "path" else ("", None)
        rows.append(Row(f"{job.what}, {name}", text, goal=goal, met=met))
    return rows


def run(rounds: int, only: Sequence[str] = ()) -> Report:
    """Measure at most `_ROUNDS` of the `rounds`; `only`: names of conditions."""
    rounds = min(rounds, _ROUNDS)
    report = Report("Slowdown of an observed program")
    names = only or tuple(OBSERVED)
    cpu = str(max(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as place, ExitStack() as stack:
        home, file = Path(place), Path(place, "file")
        file.write_bytes(bytes(4096))
        made: list[tuple[Callable[[], Workload], tuple[Job, ...]]] = [
            (lambda: Workload("calls.c", str(file)), _CALLS),
            (lambda: Workload("pingpong.c", cpu, cpu), _SWITCHES),
            (lambda: PythonWorkload("slowdown_jobs.py"), _PYTHON),
        ]
        for make, jobs in made:
            workload = stack.enter_context(make())
            conditions: dict[str, Condition] = {"none": no_tracer}
            for name in names:
                conditions[name] = lambda name=name, pid=workload.pid: _observer(OBSERVED[name], pid, home)
            samples = interleave(conditions, rounds, lambda _, t, w=workload, j=jobs: _measure(w, j, t))
            for job in jobs:
                report.rows += _rows(job, samples, names)
                report.notes += [
                    f"{job.what}, {name}: ns per step in programs: {_by_program(workload, job, conditions[name])}"
                    for name in names
                ]
            report.notes += samples.notes()
    return report
