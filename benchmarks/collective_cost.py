"""Measure what it costs a job when its collectives are observed.

A loop of empty calls shows the cost of a probe: the breakpoint at the entry, and the one at the return where there is
one. A training job shows what is left of it in a step. The peer is the same program without probes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.common import PYTHON, SOURCES, Metrics, Report, Row, Workload, child_command, interleave, no_tracer
from whystall.bpf.collective_symbols import search
from whystall.bpf.functions import FunctionConfig, FunctionSession

_CALLS, _STEPS = 20_000, 40
_GOAL = 1.02
_FIRST = {"reduce": "emulated (torch's functions)", "gather": "stepped"}


class _Job(Workload):
    """`collective_job.py`."""

    def __init__(self) -> None:
        command = child_command([PYTHON, str(SOURCES / "collective_job.py")])
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.pids = [int(word) for word in self._process.stdout.readline().split()]

    def __exit__(self, *_: object) -> None:
        self._process.communicate("stop\n")


@contextmanager
def _probed(pids: Sequence[int], *, returns: bool = True) -> Iterator[list[int]]:
    """Probe the functions of `pids`, at their returns too or only at entries, as those of gloo."""
    probes = [one.probe._replace(returns=one.probe.returns and returns) for one in search(pids).found]
    session = FunctionSession(FunctionConfig(frozenset(pids), probes, most_share=1e9, max_bytes=1 << 32))
    try:
        session.load()
        session.start()
        yield []
    finally:
        session.close()


def _calls(rounds: int, report: Report) -> None:
    with Workload("collective_calls.c") as workload:

        def measure(_name: str, _tracers: Any) -> Metrics:
            return {name: workload.run(f"{name} {_CALLS}")[0] for name in _FIRST}

        conditions = {
            "none": no_tracer,
            "entry": partial(_probed, [workload.pid], returns=False),
            "both": partial(_probed, [workload.pid]),
        }
        samples = interleave(conditions, rounds, measure)
    for name, what in (("entry", "at the entry"), ("both", "at the entry and the return")):
        for call, first in _FIRST.items():
            added, ratio = samples.added(name, call, "none"), samples.ratio(name, call, "none")
            base = samples.spread("none", call).text("ns", 1)
            text = f"empty call with a probe {what}, first instruction {first}"
            report.rows.append(Row(text, added.text("ns", sign=True), base, f"x{ratio.median:.0f}"))
    report.notes += samples.notes()


def _training(rounds: int, report: Report) -> None:
    with _Job() as job:
        job.run(f"train {_STEPS}")

        def measure(_name: str, _tracers: Any) -> Metrics:
            cpu, wall = job.run(f"train {_STEPS}")
            return {"cpu": cpu / 1e6, "wall": wall / 1e6}

        conditions = {"none": no_tracer, "ours": partial(_probed, job.pids)}
        samples = interleave(conditions, rounds, measure)
    for name, what in (("wall", "wall time"), ("cpu", "CPU time of rank 0")):
        ratio = samples.ratio("ours", name, "none")
        texts = [samples.spread(condition, name).text("ms", 2) for condition in ("ours", "none")]
        met = None if ratio.low <= _GOAL < ratio.high else ratio.median <= _GOAL
        report.rows.append(
            Row(f"training step on two ranks, {what}", *texts, f"x{ratio.median:.3f}", f"<= x{_GOAL}", met)
        )
    report.notes += samples.notes()


def run(rounds: int) -> Report:
    """Measure; nothing stays attached, whatever happens."""
    report = Report("Cost of observing collectives")
    _calls(rounds, report)
    _training(rounds, report)
    return report
