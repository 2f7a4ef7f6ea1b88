"""Measure reading ftrace's text, compared with a line-by-line parser and ``trace-cmd report``."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import ftrace_sample
from benchmarks.common import PYTHON, ROOT, Metrics, Report, Row, Samples, child_command, interleave, no_tracer

_MB = 1_000_000
_COMPARED = 300 * _MB
_SIZES = (10 * _MB, 100 * _MB, 1000 * _MB)
_FASTER = 20
_PEAK_MB = 1500
_DAT = ROOT / "tests" / "tools" / "timeline" / "data" / "ftrace" / "linux61.dat"
_TIMES = 20
_CHILD = """
import resource, sys, time
from pathlib import Path
from benchmarks import ftrace_peer
from whystall.tools.timeline.ftrace import text as ftrace_text  # both load it: what is compared is the reading
read = {"ours": ftrace_text.read, "line by line": ftrace_peer.read}[sys.argv[1]]
cpu, wall = time.process_time(), time.perf_counter()
found = read(Path(sys.argv[2]))
print(time.process_time() - cpu, time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)
"""
_REPORT = """
import os, subprocess, sys, time
wall = time.perf_counter()
subprocess.run(sys.argv[2:], stdout=subprocess.DEVNULL, check=True)
used = os.times()
print(used.children_user + used.children_system, time.perf_counter() - wall, 0)
"""


def _measure(commands: dict[str, list[str]], name: str, _: Sequence[int]) -> Metrics:
    command = child_command([PYTHON, "-c", *commands[name]])
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, cwd=ROOT).stdout.split()
    return dict(zip(("cpu", "wall", "peak"), map(float, output), strict=True))


def _samples(commands: dict[str, list[str]], rounds: int) -> Samples:
    return interleave(dict.fromkeys(commands, no_tracer), rounds, partial(_measure, commands))


def _line_by_line(report: Report, what: str, path: Path, rounds: int) -> None:
    samples = _samples({name: [_CHILD, name, str(path)] for name in ("ours", "line by line")}, rounds)
    for metric, label in (("wall", "wall"), ("cpu", "CPU time")):
        faster = samples.ratio("line by line", metric, "ours")
        goal = metric == "wall"
        report.rows.append(
            Row(
                f"{what}: {label}",
                samples.spread("ours", metric).text("s", 2),
                "line by line: " + samples.spread("line by line", metric).text("s", 2),
                f"{faster.text('', 1)} times faster",
                f">= {_FASTER} times" if goal else "",
                (faster.median >= _FASTER) if goal else None,
            )
        )


def _growth(report: Report, directory: Path, rounds: int) -> None:
    path = directory / "growing.txt"
    for size in _SIZES:
        lines = ftrace_sample.write(path, size)
        samples = _samples({"ours": [_CHILD, "ours", str(path)]}, rounds)
        peak, last = samples.spread("ours", "peak"), size == _SIZES[-1]
        each = samples.spread("ours", "cpu").text("ns a line", 0, 1e9 / lines)
        report.rows.append(
            Row(
                f"{size // _MB} MB, {lines / 1e6:.1f} million lines: wall",
                f"{samples.spread('ours', 'wall').text('s', 2)}, CPU {each}",
            )
        )
        report.rows.append(
            Row(
                f"{size // _MB} MB: peak memory of the process",
                peak.text("MB"),
                goal=f"< {_PEAK_MB} MB" if last else "",
                met=peak.median < _PEAK_MB if last else None,
            )
        )
    path.unlink()


def _later(text: str, copy: int) -> str:
    """Return the same events, later."""
    return re.sub(r"(\] +)(\d+)(?=\.\d{9}: )", lambda found: f"{found[1]}{int(found[2]) + 10 * copy}", text)


def _trace_cmd(report: Report, directory: Path, rounds: int) -> None:
    program = shutil.which("trace-cmd")
    if program is None:
        report.notes.append("trace-cmd is not installed: not compared")
        return
    options = ["report", "-t", "-N"]
    text = subprocess.run(
        [program, *options, "-i", _DAT], stdout=subprocess.PIPE, check=True, stderr=subprocess.DEVNULL
    )
    once = text.stdout.decode("utf-8", "backslashreplace")
    path = directory / "report.txt"
    path.write_text("".join(_later(once, copy) for copy in range(_TIMES)))
    files = [word for _ in range(_TIMES) for word in ("-i", str(_DAT))]
    commands = {"ours": [_CHILD, "ours", str(path)], "trace-cmd": [_REPORT, "trace-cmd", program, *options, *files]}
    samples = _samples(commands, rounds)
    for metric, label in (("wall", "wall"), ("cpu", "CPU time")):
        faster = samples.ratio("trace-cmd", metric, "ours")
        report.rows.append(
            Row(
                f"{once.count(chr(10)) * _TIMES} events of trace-cmd: {label}",
                samples.spread("ours", metric).text("s", 2),
                "trace-cmd report: " + samples.spread("trace-cmd", metric).text("s", 2),
                f"{faster.text('', 1)} times faster",
                "> 1 times" if metric == "wall" else "",
                faster.median > 1 if metric == "wall" else None,
            )
        )


def run(rounds: int) -> Report:
    """Measure a third of the rounds, as each takes many seconds."""
    report = Report("Reading ftrace's text: `ftrace_text.read`")
    rounds = max(rounds // 3, 2)
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as name:
        directory = Path(name)
        path = directory / "trace.txt"
        for what, syscalls in (("switches and interrupts", False), ("system calls too", True)):
            ftrace_sample.write(path, _COMPARED, syscalls=syscalls)
            _line_by_line(report, f"{_COMPARED // _MB} MB, {what}", path, rounds)
        path.unlink()
        _trace_cmd(report, directory, rounds)
        _growth(report, directory, min(rounds, 3))
    report.notes += [
        "both return the same columns; the line-by-line parser is `ftrace_peer.py`, the text is generated by "
        "`ftrace_sample.py`",
        "ours uses as many threads as there are CPUs, up to 4; the peers use one",
        f"trace-cmd: `report -t -N` of the tests' file, given {_TIMES} times, to /dev/null; ours: the text it prints, "
        f"{_TIMES} times one after the other; that text has names made to mislead, and line feeds in them",
    ]
    return report
