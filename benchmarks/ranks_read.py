"""Measure finding the slow rank from large and small traces, compared with HolisticTraceAnalysis, and at 8, 64 and 512
ranks.

The peer runs in the Python of ``HTA_PYTHON``, else in a new virtual environment with ``HolisticTraceAnalysis``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmarks.common import PYTHON, ROOT, Metrics, Report, Row, child_command, interleave, no_tracer, spread
from benchmarks.rank_traces import Shape, write_job

_PEER_RANKS, _PEER_SIZE = 8, 64 << 20
_SMALL_SIZE = 256 << 10  # per rank, as the smallest of the peer's own samples: start-up is most of the time
_GROWTH_SIZE = 2 << 20
_GROWTH = (8, 64, 512)
_SLOW = {5: 1.3}
_LARGE_GOALS = {"wall": 1 / 5, "cpu": 1 / 5, "memory": 1 / 3}
_SMALL_GOALS = {"wall": 1.0, "cpu": 1.0}
_LINEAR = 1.25
_POLL_S = 0.02
_OURS = "import sys; from whystall.agent_server.interfaces.cli.main import main; sys.argv[0] = 'whystall'; main()"
_PEER = (
    "import sys; from hta.trace_analysis import TraceAnalysis; "
    "print('\\nstragglers', TraceAnalysis(trace_dir=sys.argv[1]).get_potential_stragglers(num_candidates=1))"
)


def _peer(home: str) -> str:
    """Return a Python with the peer; empty if it cannot be installed."""
    if named := os.environ.get("HTA_PYTHON"):
        return named
    python = os.path.join(home, "peer", "bin", "python")
    for command in (
        [PYTHON, "-m", "venv", os.path.join(home, "peer")],
        [python, "-m", "pip", "install", "-q", "HolisticTraceAnalysis"],
    ):
        if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            return ""
    return python


def _tree(root: int) -> list[int]:
    """Return a process and its descendants."""
    found = [root]
    for pid in found:
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                found += map(int, path.read_text().split())
            except OSError:
                continue  # the thread ended
    return found


def _memory_mb(pids: Sequence[int]) -> float:
    """Return the memory of processes; shared pages count once."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue  # it ended
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total / 1024


def _measured(command: list[str], environment: dict[str, str], expected: str) -> Metrics:
    """Measure one run; raise ``RuntimeError`` if it fails, or does not print `expected`."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        child_command(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=ROOT
    )
    peak, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(_POLL_S):
            peak = max(peak, _memory_mb(_tree(process.pid)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    done.set()
    watcher.join()
    process.stdout.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or expected not in text:
        raise RuntimeError(f"{command[0]}: status {process.returncode}: {text[-500:]}")
    return {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "memory": peak}


def _measure(directory: Path, home: str, peer: str, name: str, _: Sequence[int]) -> Metrics:
    if name == "peer":
        return _measured([peer, "-c", _PEER, str(directory)], dict(os.environ), "stragglers [5]")
    environment = {**os.environ, "WHYSTALL_HOME": home}
    command = [PYTHON, "-c", _OURS, "run", "slow_node_check", "--traces", str(directory)]
    return _measured(command, environment, "rank 5 ")


def _beside_peer(
    report: Report, work: Path, peer: str, rank_size: int, goals: Mapping[str, float], rounds: int
) -> None:
    directory = work / f"job{rank_size}"
    size = write_job(directory, Shape.of_size(_PEER_RANKS, rank_size), _SLOW)
    names = ["ours", *(["peer"] if peer else [])]
    samples = interleave(
        dict.fromkeys(names, no_tracer), max(rounds // 5, 2), partial(_measure, directory, str(work), peer)
    )
    shutil.rmtree(directory)
    for metric, label, unit, digits in (
        ("wall", "wall", "s", 2),
        ("cpu", "CPU time", "s", 2),
        ("memory", "peak", "MB", 0),
    ):
        row = Row(
            f"{_PEER_RANKS} ranks, {size / 1e6:.0f} MB: {label}", samples.spread("ours", metric).text(unit, digits)
        )
        if peer:
            ratio = samples.ratio("ours", metric, "peer")
            text = samples.spread("peer", metric).text(unit, digits)
            row = replace(row, peer=text, ratio=ratio.text("", 3))
            if (goal := goals.get(metric)) is not None:
                row = replace(row, goal=f"<= {goal:.2f}", met=ratio.median <= goal)
        report.rows.append(row)


def _growth(report: Report, work: Path, rounds: int) -> None:
    costs: list[tuple[int, float]] = []
    for ranks in _GROWTH:
        directory = work / f"ranks{ranks}"
        size = write_job(directory, Shape.of_size(ranks, _GROWTH_SIZE), _SLOW)
        runs = [_measure(directory, str(work), "", "ours", ()) for _ in range(max(rounds // 5, 2))]
        wall, cpu, memory = (spread(run[metric] for run in runs) for metric in ("wall", "cpu", "memory"))
        costs.append((size, cpu.median))
        report.rows += [
            Row(f"{ranks} ranks, {size / 1e6:.0f} MB: CPU time", cpu.text("s", 2)),
            Row(f"{ranks} ranks: wall", wall.text("s", 2)),
            Row(f"{ranks} ranks: peak", memory.text("MB", 0)),
        ]
        shutil.rmtree(directory)
    # The smallest job is mostly start-up, so the cost of each further byte is compared.
    early, late = ((after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(costs))
    report.rows.append(
        Row(
            f"CPU time per further GB, {_GROWTH[1]} to {_GROWTH[2]} ranks",
            f"{late * 1e9:.1f} s",
            f"{_GROWTH[0]} to {_GROWTH[1]} ranks: {early * 1e9:.1f} s",
            f"{late / early:.2f}",
            f"<= {_LINEAR}",
            late / early <= _LINEAR,
        )
    )


def run(rounds: int) -> Report:
    """Measure a fifth of the rounds, as the peer takes minutes."""
    report = Report("From ranks' traces to the slow rank: `whystall run slow_node_check --traces DIR`")
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as name:
        peer = _peer(name)
        _beside_peer(report, Path(name), peer, _PEER_SIZE, _LARGE_GOALS, rounds)
        _beside_peer(report, Path(name), peer, _SMALL_SIZE, _SMALL_GOALS, rounds)
        _growth(report, Path(name), rounds)
    if not peer:
        report.notes.append("HolisticTraceAnalysis could not be installed: no comparison")
    report.notes += [
        "peer: HolisticTraceAnalysis (PyPI), `get_potential_stragglers`, in a separate virtual environment: "
        "`python -m venv DIR; DIR/bin/pip install HolisticTraceAnalysis`, named by HTA_PYTHON",
        "both from exec to answer, as whole trees of processes: CPU time with all children's, peak the sum of their "
        "proportional set sizes every 20 ms; both name rank 5, whose kernels take 1.3 times as long",
        "ours also reports the kind and cost of slowness, and draws; the peer names as many ranks as requested",
    ]
    return report
