"""Measure the cost of walking an interpreter's frames at a sample and at a switch, by number of frames.

A program that alternates waiting and computing is traced with and without the walk. The difference in the kernel's BPF
statistics of the hook is the cost of the walk, reported next to the walk's own count.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from benchmarks import kernel
from benchmarks.common import Report, Row, child_command, spread
from whystall.bpf.collector import Collector
from whystall.bpf.collectors.python_frames import PythonFrames
from whystall.bpf.collectors.samples import CpuSamples
from whystall.bpf.collectors.switches import Switches, SwitchRows
from whystall.bpf.session import Session, SessionConfig

_DEPTHS = (5, 20, 60)
_WINDOW_S = 0.6
_MOST_ROUNDS = 9
_HOOKS = {"a sample": "on_tick", "a switch away": "on_switch"}
_WORK = """
import sys, time
def down(depth):
    if depth > 1: return down(depth - 1)
    while True:
        end = time.perf_counter() + 0.0005
        while time.perf_counter() < end: pass
        time.sleep(0.0005)
print("ready", flush=True)
down(int(sys.argv[1]) - 1)
"""


def _measure(pid: int, where: str, python: bool) -> tuple[float, float]:
    """Return (ns of the hook per event of the program, ns per walk by its own count)."""
    samples = where == "a sample"
    collectors: list[Collector] = [CpuSamples(1_000_000) if samples else Switches(10**9, user_stacks=True)]
    if python:
        collectors.append(PythonFrames())
    with Session(SessionConfig(targets=frozenset({pid})), collectors) as session:
        number = next(n for n, run in kernel.runs(kernel.programs_of(os.getpid())).items() if run.name == _HOOKS[where])
        before = kernel.runs([number])[number].ns
        end = time.monotonic() + _WINDOW_S
        while time.monotonic() < end:
            time.sleep(0.05)
            session.poll()
        cost = kernel.runs([number])[number].ns - before
        seen = session.read()
    if samples:
        events = seen.seen["samples"]
    else:
        events = sum(total.count for total in seen.of(SwitchRows).off_totals if total.off_class == "S")
    return cost / max(1, events), seen.seen["python_ns"] / max(1, seen.seen["python_walks"])


def run(rounds: int) -> Report:
    """Measure `rounds` per condition, at most nine."""
    report = Report(f"Frames of Python at the same instant (CPython 3.{sys.version_info[1]})")
    for depth in _DEPTHS:
        command = child_command([sys.executable, "-c", _WORK, str(depth)])
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program, kernel.run_statistics():
            try:
                assert program.stdout is not None
                program.stdout.readline()
                for where in _HOOKS:
                    added, counted = [], []
                    for _ in range(min(rounds, _MOST_ROUNDS)):
                        without, _none = _measure(program.pid, where, python=False)
                        cost, walk = _measure(program.pid, where, python=True)
                        added.append(cost - without)
                        counted.append(walk)
                    text = f"{spread(added).text('ns', sign=True)} by BPF statistics"
                    report.rows.append(Row(f"{depth} frames, at {where}", f"{spread(counted).text('ns')}; {text}"))
            finally:
                program.kill()
    report.notes.append(
        "at switches, walks are limited to 10 ms per CPU and second; skipped ones are counted and reported"
    )
    return report
