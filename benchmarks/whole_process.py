"""Measure ``whystall run fileslower --duration 1`` from start to exit: wall, memory, and where the time goes."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import kernel
from benchmarks.common import PYTHON, Report, Row, child_command, spread, wait_until

_GOAL_S, _GOAL_MB, _WINDOW_S = 1.6, 90, 1.0
_MAIN = "from whystall.agent_server.interfaces.cli.main import main; main()"
_IMPORT = re.compile(r"import time:\s*(\d+) \|\s*(\d+) \| ( *)(\S+)")
_TOP = 12


@dataclass(frozen=True)
class _Run:
    """One run: seconds, and memory in MB."""

    wall: float
    cpu: float
    peak_mb: float
    attached: float
    detached: float
    attached_mb: float
    detached_mb: float


def _arguments(pid: int) -> list[str]:
    return ["run", "fileslower", "--duration", str(_WINDOW_S), "--pid", str(pid)]


def _peak_mb(pid: int) -> float:
    """Return the peak memory of a running process so far, MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0  # it has ended


def _once(pid: int, environment: dict[str, str]) -> _Run:
    begin = time.perf_counter()
    process = subprocess.Popen(
        child_command([PYTHON, "-c", _MAIN, *_arguments(pid)]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert process.stderr is not None
    wait_until(lambda: kernel.links_of(process.pid), 10, 0.002)
    attached, attached_mb = time.perf_counter() - begin, _peak_mb(process.pid)
    time.sleep(_WINDOW_S * 0.9)
    wait_until(lambda: not kernel.links_of(process.pid), 10, 0.002)
    detached, detached_mb = time.perf_counter() - begin, _peak_mb(process.pid)
    errors = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"whystall failed: {errors.decode(errors='replace').strip()}")
    cpu, peak_mb = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    return _Run(wall, cpu, peak_mb, attached, detached, attached_mb, detached_mb)


def _imports(pid: int, environment: dict[str, str]) -> list[str]:
    """Return a note on the slowest imports, including those that they import, ms."""
    command = [PYTHON, "-X", "importtime", "-c", _MAIN, *_arguments(pid)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    found = [match.groups() for match in map(_IMPORT.match, done.stderr.splitlines()) if match]
    total = sum(int(own) for own, *_ in found) / 1e3
    outer = sorted(((int(whole), name) for _, whole, _, name in found), reverse=True)[:_TOP]
    return [
        f"all imports {total:.0f} ms (slowed by -X importtime); with nested imports, ms: "
        + ", ".join(f"{name} {whole / 1e3:.0f}" for whole, name in outer)
    ]


def run(rounds: int) -> Report:
    """Measure; raise ``RuntimeError`` with the error if the command fails on this kernel."""
    report = Report("One tool as a whole process: `whystall run fileslower --duration 1 --pid N`")
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as home:
        environment = {**os.environ, "WHYSTALL_HOME": home}
        sleeper = subprocess.Popen(child_command(["sleep", "3600"]))
        try:
            runs = [_once(sleeper.pid, environment) for _ in range(rounds)]
            report.notes += _imports(sleeper.pid, environment)
        finally:
            sleeper.kill()
            sleeper.wait()
    wall, peak = spread(r.wall for r in runs), spread(r.peak_mb for r in runs)
    report.rows += [
        Row("wall", wall.text("s", 2), goal=f"< {_GOAL_S} s", met=wall.median < _GOAL_S),
        Row("CPU time", spread(r.cpu for r in runs).text("s", 2)),
        Row("peak memory", peak.text("MB", 0), goal=f"< {_GOAL_MB} MB", met=peak.median < _GOAL_MB),
        Row("peak when attached", spread(r.attached_mb for r in runs).text("MB", 0)),
        Row("peak when detached", spread(r.detached_mb for r in runs).text("MB", 0)),
        Row("start until attached", spread(r.attached for r in runs).text("s", 2)),
        Row("attached until detached (1 s asked)", spread(r.detached - r.attached for r in runs).text("s", 2)),
        Row("detached until exit", spread(r.wall - r.detached for r in runs).text("s", 2)),
    ]
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report.notes.append(f"a child's peak counts from its fork on: never below the {own:.0f} MB of this program")
    return report
