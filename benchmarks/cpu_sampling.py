"""Measure the cost of sampling at 99 Hz on a fully busy machine: cpu_profile, ``perf record -g`` and py-spy.

Ours is counted completely: the kernel's statistics of our BPF programs, and our process's CPU time while it observes.
perf's time in the kernel is not accounted; it can show only in the work of the sampled program. py-spy (PyPI) is taken
from PATH or from PY_SPY.
"""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import kernel
from benchmarks.common import PYTHON, ROOT, Metrics, Report, Row, Samples, child_command, cpu_ns, rotated, wait_until

_WINDOW_S, _MARGIN_S, _PATIENCE_S = 6.0, 0.4, 60.0
_GOAL_PCT = 1.0
_HZ = "99"
_MAIN = "from whystall.agent_server.interfaces.cli.main import main; main()"
# A loop of calls, 30 deep, that counts its rounds in a shared file.
_BUSY = """
import mmap, sys
with open(sys.argv[1], "r+b") as file: shared = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
place = int(sys.argv[2])
def down(depth):
    if depth: return down(depth - 1) + 1
    total = 0
    for number in range(300): total += number * number
    return total
while True:
    down(30)
    shared[place] += 1
"""


def _commands(pid: int, out: Path) -> dict[str, list[str]]:
    """Return the commands of the samplers of process `pid`, which end after the window."""
    seconds = str(_WINDOW_S)
    ours = [PYTHON, "-c", _MAIN, "run", "cpu_profile", "--hz", _HZ, "--duration", seconds]
    found = {"ours": [*ours, "--pid", str(pid)], "ours, whole host": ours}
    if shutil.which("perf"):
        event = ["-e", "cpu-clock", "-F", _HZ, "-g", "-o", str(out / "perf.data")]
        found["perf"] = ["perf", "record", *event, "-p", str(pid), "--", "sleep", seconds]
        found["perf, whole host"] = ["perf", "record", *event, "-a", "--", "sleep", seconds]
    if py_spy := os.environ.get("PY_SPY") or shutil.which("py-spy"):
        options = ["-r", _HZ, "-d", f"{_WINDOW_S:.0f}", "-f", "raw", "-o", str(out / "py_spy.txt")]
        found["py-spy"] = [py_spy, "record", *options, "-p", str(pid)]
    return found


def _attached(name: str, pid: int) -> Callable[[], object]:
    """Return a function that returns whether a sampler has begun."""
    if name.startswith("ours"):
        return lambda: kernel.links_of(pid)
    if name.startswith("perf"):
        return lambda: _has_events(pid)
    begun = time.monotonic() + 0.5  # py-spy gives no sign; half a second is enough
    return lambda: time.monotonic() > begun


def _has_events(pid: int) -> bool:
    try:
        return any("perf_event" in os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # a descriptor closed meanwhile
        return False


@contextmanager
def _busy(directory: Path) -> Iterator[tuple[list[int], memoryview]]:
    """Run one busy process per CPU; yield their pids and their counts of rounds."""
    cpus = len(os.sched_getaffinity(0))
    file = directory / "rounds"
    file.write_bytes(bytes(8 * cpus))
    processes = [subprocess.Popen(child_command([PYTHON, "-c", _BUSY, str(file), str(place)])) for place in range(cpus)]
    try:
        with file.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as shared:
            rounds = memoryview(shared).cast("Q")
            try:
                wait_until(lambda: all(rounds), _PATIENCE_S)
                yield [process.pid for process in processes], rounds
            finally:
                rounds.release()
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _measure(name: str, command: Sequence[str] | None, busy: list[int], rounds: memoryview, home: str) -> Metrics:
    """Return percent of one CPU, CPU seconds from start to exit, and rounds per CPU time of the sampled process."""
    if command is None:
        begin, before = cpu_ns(busy[:1]), rounds[0]
        time.sleep(_WINDOW_S - 3 * _MARGIN_S)
        return {"speed": (rounds[0] - before) / (cpu_ns(busy[:1]) - begin)}
    process = subprocess.Popen(
        child_command(command),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "WHYSTALL_HOME": home},
        cwd=ROOT,
    )
    try:
        if not wait_until(_attached(name, process.pid), _PATIENCE_S, 0.005) or process.poll() is not None:
            raise RuntimeError(f"{name} did not begin")
        time.sleep(_MARGIN_S)
        programs = kernel.programs_of(process.pid)
        begin, before, had = time.monotonic(), rounds[0], cpu_ns(busy[:1])
        used, ran = cpu_ns([process.pid]), sum(run.ns for run in kernel.runs(programs).values())
        time.sleep(_WINDOW_S - 3 * _MARGIN_S)
        took = time.monotonic() - begin
        speed = (rounds[0] - before) / (cpu_ns(busy[:1]) - had)
        ran = sum(run.ns for run in kernel.runs(programs).values()) - ran
        used = cpu_ns([process.pid]) - used
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
    return {
        "kernel": 100 * ran / 1e9 / took,
        "own": 100 * used / 1e9 / took,
        "cost": 100 * (ran + used) / 1e9 / took,
        "whole": usage.ru_utime + usage.ru_stime,
        "speed": speed,
    }


def _rows(samples: Samples) -> Iterator[Row]:
    for where in ("", ", whole host"):
        own, perf = f"ours{where}", f"perf{where}"
        cost = samples.spread(own, "cost")
        title = "whole host" if where else "one process"
        yield Row(
            f"{title}: % of one CPU while observing, our BPF programs and process",
            cost.text("%", 2),
            goal=f"< {_GOAL_PCT:g} %",
            met=cost.median < _GOAL_PCT,
        )
        yield Row(f"{title}: of these the BPF programs", samples.spread(own, "kernel").text("%", 3))
        peers = [perf] if where else [perf, "py-spy"]
        for peer in (one for one in peers if one in samples.by_condition):
            beside = samples.ratio(own, "own", peer).text("", 2)
            theirs = samples.spread(peer, "own").text("%", 2)
            what = f"{title}: the process alone, beside {peer.removesuffix(where)}"
            yield Row(what, samples.spread(own, "own").text("%", 2), theirs, beside)
            ours_whole, whole = samples.spread(own, "whole"), samples.spread(peer, "whole")
            what = f"{title}: CPU time from start to exit, beside {peer.removesuffix(where)}"
            yield Row(what, ours_whole.text("s", 2), whole.text("s", 2), samples.ratio(own, "whole", peer).text("", 1))
    for name in samples.by_condition:
        if name != "none":
            speed = samples.ratio(name, "speed", "none")
            yield Row(f"work per CPU time of the sampled process, {name} : no sampler", speed.text("x", 3))


def run(rounds: int) -> Report:
    """Measure; nothing stays attached, whatever happens. Raises ``RuntimeError`` when a sampler does not begin."""
    report = Report(f"Sampling at {_HZ} Hz on a machine that is busy on every CPU: cpu_profile, perf record -g, py-spy")
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as made, kernel.run_statistics():
        directory = Path(made)
        with _busy(directory) as (busy, counts):
            commands: dict[str, list[str] | None] = {"none": None, **_commands(busy[0], directory)}
            samples = Samples({name: [] for name in commands})
            for name in rotated(commands, rounds):
                samples.by_condition[name].append(_measure(name, commands[name], busy, counts, made))
    report.rows += _rows(samples)
    report.notes += [
        f"{_WINDOW_S:.0f} s windows; ours with kernel, native and Python frames, names and the answer with its pages;"
        " perf (software cpu-clock) with kernel and native frames, unread in a file; py-spy with Python frames",
        "perf's time in the kernel shows only in the work per CPU time of the sampled process; py-spy's pauses of the"
        " process are not accounted",
    ]
    missing = [name for name in ("perf", "py-spy") if name not in commands]
    report.notes += [f"not here: {', '.join(missing)}"] if missing else []
    return report
