"""Measure what the continuous recorder of the watch costs, beside tracers that are left on: its own CPU time, the run
time of its programs in the kernel, also as a share of the job's CPU time, and the job's CPU time per step.

The recorder runs for a while first, as it lowers its detail itself. Then its hooks are attached and detached in turn,
and neighbouring seconds of the job are compared: a machine that becomes slower changes both. Peers are measured once
per round. Run time of programs is measured after the step, as measuring it slows them down. perf samples all CPUs, in
interrupts that are not counted as its own time; bpftrace sums the time off the CPU of the job by stacks.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import kernel
from benchmarks.common import (
    PYTHON,
    ROOT,
    Metrics,
    Report,
    Row,
    Samples,
    Spread,
    Workload,
    child_command,
    cpu_ns,
    rotated,
    spread,
    wait_until,
)
from benchmarks.slowdown import PythonWorkload

_WARM_S, _PEER_WARM_S = 60.0, 2.0
_MEASURED_S, _PEER_MEASURED_S, _RUN_TIME_S = 8.0, 5.0, 3.0
_PAIRS, _HALF_S, _SETTLE_S = 24, 1.2, 0.1
_ROUNDS = 2  # of peers
_CPU_GOAL, _STEP_GOAL = 1.0, 1.01
_RECORDER = """
import json, select, sys, time
from dataclasses import asdict
from pathlib import Path
from whystall.tools.collect.continuous import ContinuousRecorder, Limits
from whystall.tools.recording.target import Target, children_of
pid = int(sys.argv[1])
recorder = ContinuousRecorder(Target(everything=False, pid=pid, pids=children_of([pid])), Limits(), Path(sys.argv[2]))
recorder.start()
session, attached = recorder._session, True
def attach():
    session._programs.clear()
    session._attach(session._loaded())
    if not session._hooked:  # at the level of least detail
        session._hooked = True
        session._hook(False)
print("ready", flush=True)
while True:
    if select.select([sys.stdin], [], [], 1 if attached else None)[0]:
        command = sys.stdin.readline().strip()
        if command == "cost":
            print(json.dumps(asdict(recorder.cost())), flush=True)
        else:
            attached = command == "attach"
            attach() if attached else session._detach()
            print("done", flush=True)
    if attached:
        recorder.poll()
"""


@dataclass(frozen=True)
class _Job:
    """A program: its command and the steps of a turn; none: it sleeps. `source`: of the program; `per_s`: most steps
    per second, 0: no limit; `peers`: also measure other tracers."""

    what: str
    command: str
    steps: int
    source: str = ""
    per_s: int = 0
    peers: bool = True


_JOBS = (
    _Job("training step of PyTorch on the CPU", "train", 250, "training_step.py"),
    _Job("10,000 round trips a second to another process", "pingpong", 500, "pingpong.c", 10_000),
    _Job("3,000 requests a second to a server of HTTP", "serve", 150, "http_server.c", 3_000, peers=False),
    _Job("a job that sleeps", "", 0, peers=False),
)


# As offcputime of BCC, at a tracepoint: this machine's kernel may have no kprobes.
_OFF_CPU = """
tracepoint:sched:sched_switch /pid == PID/ { @at[tid] = nsecs; @kernel[tid] = kstack; @user[tid] = ustack; }
tracepoint:sched:sched_switch /@at[args->next_pid]/ {
    $tid = args->next_pid;
    @off[@kernel[$tid], @user[$tid]] = sum(nsecs - @at[$tid]);
    delete(@at[$tid]); delete(@kernel[$tid]); delete(@user[$tid]);
}
interval:s:10 { print(@off); clear(@off); }
"""


class _Recorder:
    """A recorder in a process of its own."""

    warm_s = _WARM_S

    def __init__(self, pid: int, directory: Path) -> None:
        self.process = subprocess.Popen(
            child_command([PYTHON, "-c", _RECORDER, str(pid), str(directory)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        if self._line() != "ready\n":
            raise RuntimeError("the recorder does not start")

    def cost(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._ask("cost"))
        return found

    def attach(self, on: bool) -> None:
        """Attach its hooks, or detach them; then it does nothing."""
        self._ask("attach" if on else "detach")

    def more(self) -> Metrics:
        """Return metrics that only the recorder has."""
        return {"lost": self.cost()["lost"]}

    def _ask(self, command: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self._line()

    def stop(self) -> int:
        """End it; return the bytes that it wrote."""
        written = int(self.cost()["disk_bytes"])
        self.process.kill()
        self.process.communicate()
        return written

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


class _Peer:
    """Another tracer, which writes to the file `out`."""

    warm_s = _PEER_WARM_S

    def __init__(self, command: list[str], out: Path) -> None:
        self._out = out
        self.process = subprocess.Popen(
            child_command(command), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        if not wait_until(lambda: out.exists() and cpu_ns([self.process.pid]), 20):
            raise RuntimeError(f"{command[0]} does not start")

    def more(self) -> Metrics:
        """Return no further metrics."""
        return {}

    def stop(self) -> int:
        """End it; return the bytes that it wrote."""
        self.process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):  # bpftrace may take minutes to resolve symbols
            self.process.wait(5)
        return self._out.stat().st_size


def _perf(pid: int, directory: Path) -> _Peer:
    out = directory / "perf.data"
    return _Peer(["perf", "record", "-q", "-e", "cpu-clock", "-F", "19", "-a", "-g", "-o", str(out)], out)


def _bpftrace(pid: int, directory: Path) -> _Peer:
    out = directory / "off_cpu"
    return _Peer(["bpftrace", "-q", "-o", str(out), "-e", _OFF_CPU.replace("PID", str(pid))], out)


_Tracer = _Recorder | _Peer
_PEERS: dict[str, Callable[[int, Path], _Tracer]] = {"perf": _perf, "bpftrace": _bpftrace}
_NAMES = {"recorded": "the recorder", "perf": "perf record -F 19 -a -g", "bpftrace": "bpftrace, time off the CPU"}


@contextmanager
def _tracer(name: str, pid: int) -> Iterator[_Tracer | None]:
    if name == "none":
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as directory:
        tracer = _Recorder(pid, Path(directory)) if name == "recorded" else _PEERS[name](pid, Path(directory))
        try:
            yield tracer
        finally:
            tracer.process.kill()
            tracer.process.communicate()


def _work(job: _Job, workload: Workload | None, seconds: float) -> tuple[float, float]:
    """Run the job for some seconds; return its CPU time and its wall time per step, ns."""
    cpu = wall = 0.0
    turns, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        if workload is None:
            time.sleep(1)
            continue
        one = workload.run(f"{job.command} {job.steps}")
        cpu, wall, turns = cpu + one[0], wall + one[1], turns + 1
        if job.per_s:
            time.sleep(max(0.0, job.steps / job.per_s - one[1] * job.steps / 1e9))
    return cpu / max(turns, 1), wall / max(turns, 1)


def _measure(job: _Job, workload: Workload | None, pid: int, tracer: _Tracer | None) -> Metrics:
    _work(job, workload, tracer.warm_s if tracer is not None else _PEER_WARM_S)
    measured_s = _MEASURED_S if isinstance(tracer, _Recorder) else _PEER_MEASURED_S
    if tracer is None:
        return {"step": _work(job, workload, measured_s)[0]}
    own_pid = tracer.process.pid
    own, since = cpu_ns([own_pid]), time.monotonic_ns()
    step, _ = _work(job, workload, measured_s)
    took = time.monotonic_ns() - since
    own = cpu_ns([own_pid]) - own
    with kernel.run_statistics():
        programs = kernel.programs_of(own_pid)
        before, job_before, since = kernel.runs(programs), _job_ns(pid), time.monotonic_ns()
        _work(job, workload, _RUN_TIME_S)
        run_took, of_job = time.monotonic_ns() - since, _job_ns(pid) - job_before
        used = sum(run.ns - before[n].ns for n, run in kernel.runs(programs).items() if n in before)
    status = Path(f"/proc/{own_pid}/status").read_text()
    anonymous = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))
    return {
        "step": step,
        "own": 100 * own / took,
        "kernel": 100 * used / run_took,
        "all": 100 * (own / took + used / run_took),
        "of job": 100 * used / of_job if of_job else 0.0,
        "memory": anonymous / 1024,
        **tracer.more(),
    }


def _job_ns(pid: int) -> int:
    """Return the CPU time of a process and of its children, ns."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return cpu_ns([pid, *map(int, children)])


def _peers(job: _Job, workload: Workload | None, pid: int, rounds: int) -> Samples:
    """Measure the peers once per round, also beside programs of others, which all conditions share."""
    names = ["none", *(name for name in _PEERS if shutil.which(name))]
    samples = Samples({name: [] for name in names})
    for name in rotated(names, rounds):
        with _tracer(name, pid) as tracer:
            samples.disturbed += bool(kernel.foreign_links(() if tracer is None else [tracer.process.pid]))
            since = time.monotonic()
            metrics = _measure(job, workload, pid, tracer)
            if tracer is not None:
                metrics["written"] = tracer.stop() / 1024 / (time.monotonic() - since) * 60
            samples.by_condition[name].append(metrics)
    return samples


def _pairs(job: _Job, workload: Workload, recorder: _Recorder) -> list[tuple[float, float]]:
    """Return the CPU time per step, ns, in neighbouring spans with the recorder's hooks and without; which is first
    alternates."""
    found = []
    for turn in range(_PAIRS):
        steps = {}
        for on in (True, False) if turn % 2 else (False, True):
            recorder.attach(on)
            _work(job, workload, _SETTLE_S)
            steps[on] = _work(job, workload, _HALF_S)[0]
        found.append((steps[True], steps[False]))
    recorder.attach(True)
    return found


def median_interval(values: list[float]) -> Spread:
    """Return the median and its 95 % interval, by the binomial distribution of the ranks."""
    ordered = sorted(values)
    n = len(ordered)
    rank, below = 0, 0.5**n
    while below <= 0.025:  # P(the median lies below the value of this rank)
        rank += 1
        below += math.comb(n, rank) * 0.5**n
    return Spread(statistics.median(ordered), ordered[max(rank - 1, 0)], ordered[n - max(rank, 1)])


def _recorded(report: Report, job: _Job, workload: Workload | None, pid: int) -> None:
    """Measure the recorder: its cost, and what it adds to a step."""
    with _tracer("recorded", pid) as recorder:
        assert isinstance(recorder, _Recorder)
        disturbed = bool(kernel.foreign_links([recorder.process.pid]))
        since = time.monotonic()
        metrics = _measure(job, workload, pid, recorder)
        pairs = _pairs(job, workload, recorder) if workload is not None else []
        cost = recorder.cost()
        metrics["written"] = recorder.stop() / 1024 / (time.monotonic() - since) * 60
    samples = Samples({"recorded": [metrics]}, int(disturbed))
    _row(report, job, samples, "recorded")
    detail = ", ".join(f"process {pid} from {ns / 1e6:g} ms" for pid, ns in cost["lowered"].items()) or "all from 1 ms"
    report.notes.append(f"{job.what}: waits at last: {detail} ({len(cost['reasons'])} changes)")
    if pairs:
        ratio = median_interval([on / off for on, off in pairs])
        alone = spread([off for _, off in pairs]).text("ns CPU")
        met = True if ratio.high < _STEP_GOAL else False if ratio.low > _STEP_GOAL else None
        text = f"x {ratio.median:.4f} (95 %: {ratio.low:.4f} to {ratio.high:.4f})"
        report.rows.append(Row(f"{job.what}: a step", text, alone, goal=f"< x {_STEP_GOAL}", met=met))
    report.notes += [f"{job.what}: {note}" for note in samples.notes()]


def _row(report: Report, job: _Job, samples: Samples, name: str) -> None:
    share, ours, what = samples.spread(name, "all"), name == "recorded", f"{job.what}: {_NAMES[name]}"
    own, programs, of_job = (samples.spread(name, one).text("%", 2) for one in ("own", "kernel", "of job"))
    text = share.text("% of a core", 2)
    goal = f"<= {_CPU_GOAL:g} % of a core" if ours else ""
    met = share.median <= _CPU_GOAL if ours else None
    report.rows.append(Row(what, text if ours else "", "" if ours else text, goal=goal, met=met))
    memory, written = (samples.spread(name, one) for one in ("memory", "written"))
    more = f"; lost events {samples.spread(name, 'lost').text()}" if ours else ""
    report.notes.append(
        f"{what}: own process {own}, programs in the kernel {programs}, {of_job} of the job's CPU time; private memory "
        f"{memory.text('MiB')}; written {written.text('KiB a minute')}{more}"
    )


def _rows(report: Report, job: _Job, workload: Workload | None, pid: int, rounds: int) -> None:
    _recorded(report, job, workload, pid)
    if not job.peers:
        return
    peers = _peers(job, workload, pid, rounds)
    for name in peers.by_condition:
        if name != "none":
            _row(report, job, peers, name)
            ratio = peers.ratio(name, "step", "none")
            report.rows.append(Row(f"{job.what}: {_NAMES[name]}: a step", "", f"x {ratio.text('', 3)}"))
    report.notes += [f"{job.what}: {note}" for note in peers.notes()]


def run(rounds: int) -> Report:
    """Measure, in some ten minutes; nothing stays attached, whatever happens."""
    report = Report("The continuous recorder of the watch: its cost, and that of a step of the job")
    report.notes.append("in the column of the peer: the step without a recorder, or the cost of the peer")
    report.notes.append(f"steps with the recorder: {_PAIRS} pairs of neighbouring spans of {_HALF_S} s")
    for job in _JOBS:
        with _started(job) as workload:
            if isinstance(workload, subprocess.Popen):
                _rows(report, job, None, workload.pid, min(rounds, _ROUNDS))
                workload.kill()
            else:
                _rows(report, job, workload, workload.pid, min(rounds, _ROUNDS))
    return report


def _started(job: _Job) -> AbstractContextManager[Workload | subprocess.Popen[bytes]]:
    cpu = str(max(os.sched_getaffinity(0)))
    if job.source.endswith(".py"):
        return PythonWorkload(job.source)
    if job.source:
        return Workload(job.source, cpu, cpu)
    return subprocess.Popen(child_command(["sleep", "36000"]))
