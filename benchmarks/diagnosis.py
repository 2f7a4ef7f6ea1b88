"""Measure the cost of a typical observation: time in our BPF programs, and our own CPU time."""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import kernel, ours
from benchmarks.common import PYTHON, ROOT, Report, Row, Workload, child_command, cpu_ns, wait_until
from whystall.bpf.collectors.syscalls import SyscallRows

_WINDOW_S = 10
_MAIN = "from whystall.agent_server.interfaces.cli.main import main; main()"
_RATES = (1_000, 10_000, 100_000)
_RATE_MS = 3_000
# How tools.recording.window drains the ring.
_PERIOD_S, _DRAIN_S = 0.5, 0.02


@contextmanager
def _simulator(directory: Path) -> Iterator[int]:
    log = directory / "log"
    command = [PYTHON, str(ROOT / "examples/slow_ai_simulator.py"), "--directory", str(directory), "--log", str(log)]
    process = subprocess.Popen(child_command([*command, "--duration", "120"]))
    try:
        if not wait_until(lambda: log.exists() and b'"checkpoint"' in log.read_bytes(), 30):
            raise RuntimeError("the simulator writes no checkpoints")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _observed(pid: int, home: Path) -> tuple[list[Row], list[str]]:
    """Measure a whole ``whystall record`` from outside."""
    command = ["record", "--duration", str(_WINDOW_S), "--pid", str(pid), "--out", str(home / "recording")]
    environment = {**os.environ, "WHYSTALL_HOME": str(home)}
    with kernel.run_statistics():
        process = subprocess.Popen(
            child_command([PYTHON, "-c", _MAIN, *command]),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None
        wait_until(lambda: len(kernel.links_of(process.pid)) >= 3, 20, 0.002)
        programs, before, begin = kernel.programs_of(process.pid), cpu_ns([process.pid]), time.monotonic()
        used: dict[int, kernel.Run] = {}
        own = end = 0.0
        while kernel.links_of(process.pid):  # the last reading is at most a step before they are detached
            programs |= kernel.programs_of(process.pid)
            used.update(kernel.runs(programs))
            own, end = cpu_ns([process.pid]) - before, time.monotonic()
            time.sleep(0.05)
        errors = process.stderr.read()
        _, status, total = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or end == 0:
        raise RuntimeError(f"whystall failed: {errors.decode(errors='replace').strip()}")
    window = end - begin
    kernel_ns = sum(run.ns for run in used.values())
    runs = sum(run.count for run in used.values())
    percent = 1e-7 / window
    rows = [
        Row("our BPF programs", f"{kernel_ns * percent:.2f} % of one CPU ({runs / window:,.0f} runs per s)"),
        Row("our process within the window", f"{own * percent:.2f} % of one CPU"),
        Row("both", f"{(kernel_ns + own) * percent:.2f} % of one CPU"),
        Row("our process outside it: start, judge, write", f"{total.ru_utime + total.ru_stime - own / 1e9:.2f} s"),
    ]
    by_program = sorted(used.values(), key=lambda run: run.ns, reverse=True)
    times = ", ".join(f"{r.name} {r.ns / 1e6:.1f} ms in {r.count:,}" for r in by_program if r.count)
    return rows, [f"by program: {times}"]


def _at_rate(workload: Workload, rate: int) -> Row:
    """Measure a session that reports every call (threshold 0), read as the window reads it."""
    session = ours.session_of("fileslower", [workload.pid], call_min_ns=0)
    with kernel.run_statistics(), session:
        programs = ours.programs()
        before, own, begin = kernel.runs(programs), time.process_time(), time.monotonic()
        workload.begin(f"paced {rate} {_RATE_MS}")
        while time.monotonic() - begin < _RATE_MS / 1e3:
            select.select([session.fileno()], [], [], _PERIOD_S)
            time.sleep(_DRAIN_S)
            session.poll()
        workload.end()
        own, window = time.process_time() - own, time.monotonic() - begin
        after = kernel.runs(programs)
        reading = time.perf_counter()
        seen = session.read()
        reading = time.perf_counter() - reading
    bpf = sum(after[i].ns - before[i].ns for i in after) / 1e9
    lost = sum(sum(counts) for counts in seen.lost.values())
    why = f" ({', '.join(seen.lost)})" if lost else ""
    return Row(
        f"{rate:,} slow calls per s",
        f"BPF {bpf / window * 100:.2f} % + reader {own / window * 100:.2f} % of one CPU; "
        f"reported {len(seen.of(SyscallRows).calls):,}, lost {lost:,}{why}; read in {reading:.2f} s",
    )


def _counting_ns(workload: Workload, directory: Path) -> float:
    """Return the accounted run time of an empty program: the cost of the statistics."""
    calls = 100_000
    with kernel.run_statistics(), ours.attached(ours.compiled("empty.bpf.c", directory).read_bytes()):
        programs = ours.programs()
        before = kernel.runs(programs)
        workload.run(f"getppid {calls}")
        after = kernel.runs(programs)
    return sum(after[i].ns - before[i].ns for i in after) / sum(after[i].count - before[i].count for i in after)


def run(rounds: int) -> Report:
    """Measure one observation of ten seconds and one of three per rate; `rounds` is ignored."""
    del rounds
    report = Report("Overhead of an observation: `whystall record --duration 10` on the simulator")
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as name:
        home = Path(name)
        (home / "checkpoints").mkdir()
        with _simulator(home / "checkpoints") as pid:
            rows, notes = _observed(pid, home)
        report.rows += rows
        report.notes += notes
        file = home / "file"
        file.write_bytes(bytes(4096))
        with Workload("calls.c", str(file)) as workload:
            report.rows += [_at_rate(workload, rate) for rate in _RATES]
            counting = _counting_ns(workload, home)
    report.notes.append(f"BPF time by the kernel's run-time statistics; an empty program counts as {counting:.0f} ns")
    report.notes.append("slow calls: every call is reported, including the sleeps that pace the reads (1,000 per s)")
    return report
