"""Measure the cost of tracing per system call: a cached read of 4 KiB, and the cheapest call.

One process makes the calls all the time, with different tracers. Counted is its CPU time, and that of tracers in a
separate process (strace, perf).
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import ours, peers
from benchmarks.common import (
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

_CALLS = 100_000
_SLOW_CALLS = 5_000  # under tracers that stop the process or copy every event
_COMMANDS = ("pread", "getppid")
_WHAT = {"pread": "cached 4 KiB pread", "getppid": "getppid"}
_UNTRACED_GOAL, _TRACED_GOAL_NS = 1.3, 500.0
_OURS = {
    "untraced": "fileslower on another process",
    "traced": "fileslower on this process",
    "host": "fileslower on the whole host",
    "offcputime": "offcputime on this process",
    "everything": "everything on this process",
}
_PEERS = {"strace": "strace -c -f", "perf": "perf trace -s"}
_BY_NAME = "empty programs on the tracepoints of pread64 alone"


def _conditions(loop: int, other: int, directory: Path) -> dict[str, Condition]:
    empty = ours.compiled("empty.bpf.c", directory).read_bytes()
    by_name = ours.compiled("per_syscall.bpf.c", directory)
    return {
        "none": no_tracer,
        "floor": lambda: ours.attached(empty),
        "untraced": lambda: ours.session("fileslower", [other]),
        "traced": lambda: ours.session("fileslower", [loop]),
        "host": lambda: ours.session("fileslower", None),
        "offcputime": lambda: ours.session("offcputime", [loop]),
        "everything": lambda: ours.session("everything", [loop]),
        "strace": lambda: peers.strace(loop),
        "perf": lambda: peers.perf_trace(loop),
        "by name": lambda: peers.per_syscall(by_name),
    }


def _working(conditions: dict[str, Condition], report: Report) -> dict[str, Condition]:
    """Return the conditions without peers that do not start here, which the report notes."""
    working = dict(conditions)
    for name, what in {**_PEERS, "by name": _BY_NAME}.items():
        try:
            with conditions[name]():
                pass
        except peers.PeerError as error:
            report.notes.append(f"{what} could not be measured: {error}")
            del working[name]
    return working


def _measure(workload: Workload, name: str, tracers: Sequence[int]) -> Metrics:
    calls = _SLOW_CALLS if name in _PEERS else _CALLS
    metrics: Metrics = {}
    for command in _COMMANDS:
        before = cpu_ns(tracers)
        cpu, wall = workload.run(f"{command} {calls}")
        metrics[command] = cpu + (cpu_ns(tracers) - before) / calls
        metrics[f"{command} wall"] = wall
    return metrics


def _perf_saw(workload: Workload) -> str:
    """Return how many of the calls perf trace reports."""
    with tempfile.TemporaryFile("w+") as output:
        with peers.perf_trace(workload.pid, output.fileno()):
            workload.run(f"getppid {_CALLS}")
        output.seek(0)
        seen = re.search(r"^\s+getppid\s+(\d+)", output.read(), re.MULTILINE)
    return f"perf trace -s reported {int(seen.group(1)) if seen else 0:,} of {_CALLS:,} getppid calls at full speed"


def _rows(samples: Samples) -> list[Row]:
    rows = []
    for command in _COMMANDS:
        what = _WHAT[command]
        rows.append(Row(f"{what}, without a tracer", "", samples.spread("none", command).text("ns per call")))
        floor = samples.added("floor", command, "none")
        floor_text = f"floor: {floor.text('ns', sign=True)}"
        for name, who in _OURS.items():
            added = samples.added(name, command, "none")
            above = samples.added(name, command, "floor")
            goal, met = "", None
            if name == "untraced":
                goal, met = f"<= {_UNTRACED_GOAL} of the floor", added.median <= _UNTRACED_GOAL * floor.median
            elif name == "traced":
                goal, met = f"<= floor + {_TRACED_GOAL_NS:.0f} ns", above.median <= _TRACED_GOAL_NS
            ratio = f"{added.median / floor.median:.2f}" if floor.median > 0 else ""
            text = f"{added.text('ns', sign=True)}, over the floor {above.median:.0f}"
            rows.append(Row(f"{what}, {who}", text, floor_text, ratio, goal, met))
        if "by name" in samples.by_condition:
            added = samples.added("by name", command, "none")
            ratio = f"{added.median / floor.median:.2f}" if floor.median > 0 else ""
            rows.append(Row(f"{what}, {_BY_NAME}", added.text("ns", sign=True), floor_text, ratio))
        traced = samples.added("traced", command, "none")
        for name in _PEERS:
            if name in samples.by_condition:
                added = samples.added(name, command, "none")
                wall = samples.added(name, f"{command} wall", "none")
                rows.append(
                    Row(
                        f"{what}, traced, beside {_PEERS[name]}",
                        traced.text("ns", sign=True),
                        f"{added.text('ns', sign=True)}, wall {wall.median:+.0f}",
                        f"{traced.median / added.median:.3f}",
                    )
                )
    return rows


def _by_program(workload: Workload, conditions: dict[str, Condition]) -> list[str]:
    """Return the run time of each program from the kernel's statistics; empty programs show their own cost."""
    notes = []
    for name in ("floor", "untraced", "traced"):
        for command in _COMMANDS:
            used = ours.run_times(conditions[name], partial(workload.run, f"{command} {_CALLS}"), _CALLS)
            notes.append(f"{_WHAT[command]}, {name}, ns per run by the kernel's count: {used}")
    return notes


def run(rounds: int) -> Report:
    """Measure; nothing stays attached, whatever happens."""
    report = Report("Cost per system call")
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as name:
        file = Path(name, "file")
        file.write_bytes(bytes(4096))
        sleeper = subprocess.Popen(child_command(["sleep", "3600"]))
        try:
            with Workload("calls.c", str(file)) as workload:
                conditions = _working(_conditions(workload.pid, sleeper.pid, Path(name)), report)
                samples = interleave(conditions, rounds, lambda who, tracers: _measure(workload, who, tracers))
                report.rows += _rows(samples)
                report.notes += _by_program(workload, conditions)
                if "perf" in conditions:
                    report.notes.append(_perf_saw(workload))
        finally:
            sleeper.kill()
            sleeper.wait()
    report.notes.append(f"floor: empty programs on sys_enter, sys_exit and sched_switch; {_CALLS:,} calls per sample")
    report.notes.append("strace and perf: with the CPU time of their own process")
    report.notes += samples.notes()
    return report
