"""Measure the time to attach the hooks, and to detach them and read all results."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import ours, peers
from benchmarks.common import PYTHON, ROOT, Report, Row, Spread, Workload, child_command, cpu_ns, spread
from whystall.bpf.session import kernel_variants

_GOAL_MS = 50
_BCC = """
import sys, time
from bcc import BPF
begin, cpu = time.perf_counter(), time.process_time()
BPF(text="RAW_TRACEPOINT_PROBE(sched_switch) { return 0; }")
print(time.perf_counter() - begin, time.process_time() - cpu)
"""
_FIRST = """
import sys, time
from benchmarks import ours
from whystall.bpf.session import kernel_variants
begin, cpu = time.perf_counter(), time.process_time()
with ours.session_of(sys.argv[1], [1]):
    print(time.perf_counter() - begin, time.process_time() - cpu)
"""


Taken = tuple[float, float]  # seconds: wall, CPU


def _ours(kind: str) -> Taken:
    begin, cpu = time.perf_counter(), time.process_time()
    with ours.session_of(kind, [1]):
        return time.perf_counter() - begin, time.process_time() - cpu


def _printed(command: list[str]) -> Taken:
    """Return what a program measured and printed."""
    done = subprocess.run(child_command(command), capture_output=True, text=True, timeout=60, cwd=ROOT)
    if done.returncode:
        raise peers.PeerError((done.stderr.strip().splitlines() or ["no reason given"])[-1])
    wall, cpu = (float(word) for word in done.stdout.split())
    return wall, cpu


def _until_attached(arguments: list[str]) -> Taken:
    begin = time.perf_counter()
    with peers.libbpf_offcputime(*arguments) as pids:
        return time.perf_counter() - begin, cpu_ns(pids) / 1e9


def _until_header(command: list[str]) -> Taken:
    """Measure until a tool reports that it traces."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    begin = time.perf_counter()
    process = subprocess.Popen(
        child_command(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd="/"
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("Tracing"):
                return time.perf_counter() - begin, cpu_ns([process.pid]) / 1e9
    finally:
        process.kill()
        process.communicate()
    raise peers.PeerError("it ended before it traced")


Case = Callable[[], Taken]


def _sampled(cases: dict[str, Case], rounds: int) -> tuple[dict[str, tuple[Spread, Spread]], list[str]]:
    """Return (wall, CPU) of every case, each once per round, and notes on cases that cannot run."""
    found: dict[str, list[Taken]] = {name: [] for name in cases}
    notes: list[str] = []
    for _ in range(rounds):
        for name in list(found):
            try:
                found[name].append(cases[name]())
            except (peers.PeerError, OSError, subprocess.SubprocessError) as error:
                notes.append(f"{name} could not be measured: {error}")
                del found[name]
    return {
        name: (spread(wall for wall, _ in taken), spread(cpu for _, cpu in taken)) for name, taken in found.items()
    }, notes


def _both(taken: tuple[Spread, Spread]) -> str:
    return f"{taken[0].text('ms', 0, 1e3)}, CPU {taken[1].median * 1e3:.0f} ms"


def _finish_with_files(count: int, directory: Path) -> float:
    """Return the seconds to finish after this process read `count` files, each reported with its path."""
    paths = [directory / f"{number:06}" for number in range(count)]
    for path in paths:
        path.write_bytes(b"x")
    session = ours.session_of("fileslower", [os.getpid()], call_min_ns=0)
    with session:
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            os.pread(descriptor, 1, 0)
            os.close(descriptor)
            session.poll()
        begin = time.perf_counter()
        session.read()
        return time.perf_counter() - begin


def _finish_with_stacks(count: int, workload: Workload) -> float:
    """Return the seconds to finish after a thread slept in `count` different stacks."""
    session = ours.session_of("offcputime", [workload.pid])
    with session:
        workload.run(f"stacks {count}")
        begin = time.perf_counter()
        session.read()
        return time.perf_counter() - begin


def run(rounds: int) -> Report:
    """Measure; at least 15 `rounds` are needed for stable medians."""
    report = Report("Attach and detach")
    kernel_variants()
    cases: dict[str, Case] = {kind: partial(_ours, kind) for kind in ours.KINDS}
    cases["first"] = lambda: _printed([PYTHON, "-c", _FIRST, "everything"])
    cases["libbpf-tools offcputime"] = lambda: _until_attached([])
    try:
        bcc, softirqs = peers.bcc(["/usr/bin/python3", "-c", _BCC]), peers.bcc(["softirqs-bpfcc", "60"])
    except peers.PeerError as error:
        report.notes.append(f"BCC could not be measured: {error}")
    else:
        cases["BCC"] = lambda: _printed(bcc)
        cases["softirqs-bpfcc"] = lambda: _until_header(softirqs)
    found, notes = _sampled(cases, rounds)
    report.notes += notes

    def row(what: str, case: str, peer: str, goal: bool) -> Row:
        taken, other = found[case], found.get(peer)
        return Row(
            what,
            _both(taken),
            f"{peer}: {_both(other)}" if other else "",
            f"{taken[0].median / other[0].median:.2f}" if other else "",
            f"< {_GOAL_MS} ms" if goal else "",
            taken[0].median * 1e3 < _GOAL_MS if goal else None,
        )

    report.rows += [row(f"load and attach: {kind}", kind, "BCC", True) for kind in ours.KINDS]
    report.rows.append(row("everything, first in its process", "first", "libbpf-tools offcputime", False))
    report.rows.append(row("everything, first in its process", "first", "softirqs-bpfcc", False))
    report.notes.append("wall and CPU time; ours in a running Python that has read the kernel's types")
    report.notes.append("BCC: one empty raw tracepoint, without its import; the two tools: from exec until they trace")
    report.rows += _finishing(max(3, rounds // 5))
    return report


def _finishing(rounds: int) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as name:
        directory = Path(name)
        (directory / "file").write_bytes(bytes(4096))
        for files in (0, 1000, 5000):
            taken = spread(_finish_with_files(files, directory) for _ in range(rounds))
            rows.append(Row(f"detach and read everything: {files} files, each reported", taken.text("ms", 1, 1e3)))
        with Workload("calls.c", str(directory / "file")) as workload:
            for stacks in (1, 1000, 4000):
                taken = spread(_finish_with_stacks(stacks, workload) for _ in range(rounds))
                rows.append(Row(f"detach and read everything: {stacks} user stacks", taken.text("ms", 1, 1e3)))
    return rows
