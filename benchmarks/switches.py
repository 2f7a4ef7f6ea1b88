"""Compare our offcputime with that of libbpf-tools on a workload of switches only.

Two processes exchange a byte. On one CPU every switch is charged to one of them, so that their CPU time contains the
whole cost of tracing; on two CPUs a part falls to the idle CPU, and only wall time shows all of it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from benchmarks import kernel, ours, peers
from benchmarks.common import Condition, Metrics, Report, Row, Samples, Workload, child_command, interleave, no_tracer

_TRIPS = 10_000
_PAIRS = {
    # Both trace the same processes, with kernel and user stacks.
    "one of the two": ("ours one", "peer one"),
    "the whole host": ("ours host", "peer host"),
    "another process": ("ours other", "peer other"),
}


def _conditions(pid: int, other: int) -> dict[str, Condition]:
    return {
        "none": no_tracer,
        "ours one": lambda: ours.session("offcputime", [pid]),
        "peer one": lambda: peers.libbpf_offcputime("-p", str(pid)),
        "ours host": lambda: ours.session("offcputime", None),
        "peer host": peers.libbpf_offcputime,
        "ours other": lambda: ours.session("offcputime", [other]),
        "peer other": lambda: peers.libbpf_offcputime("-p", str(other)),
    }


def _measure(workload: Workload) -> Metrics:
    cpu, wall = workload.run(f"pingpong {_TRIPS}")
    return {"CPU": cpu, "wall": wall}


def _bpf_ns(workload: Workload, condition: Condition) -> float:
    """Return the run time of BPF programs per round trip, ns, from the kernel's statistics."""
    with kernel.run_statistics(), condition() as tracers:
        programs: Sequence[int] = sorted(ours.programs().union(*(kernel.programs_of(pid) for pid in tracers)))
        before = kernel.runs(programs)
        workload.run(f"pingpong {_TRIPS}")
        after = kernel.runs(programs)
    return sum(run.ns - before[number].ns for number, run in after.items() if number in before) / _TRIPS


def _rows(where: str, metric: str, samples: Samples) -> list[Row]:
    def slowdown(name: str) -> str:
        ratio, added = samples.ratio(name, metric, "none"), samples.added(name, metric, "none")
        return f"x {ratio.text('', 2)}, {added.median:+.0f} ns"

    base = samples.spread("none", metric).text(f"ns {metric}")
    rows = [Row(f"{where}: round trip, without a tracer", "", base)]
    for target, (own, peer) in _PAIRS.items():
        if peer not in samples.by_condition:
            continue
        beside = samples.ratio(own, metric, peer)
        met = True if beside.median <= 1 else False if beside.low > 1 else None
        rows.append(Row(f"{where}: {target}", slowdown(own), slowdown(peer), beside.text("", 2), "<= peer's", met))
    return rows


def run(rounds: int) -> Report:
    """Measure; nothing stays attached, whatever happens."""
    report = Report("Switches: pipe ping-pong under offcputime, ours beside libbpf-tools'")
    report.notes.append("unclear: the median is above the peer's, and the quartiles lie on both sides of it")
    cpus = sorted(os.sched_getaffinity(0))
    places = {"one CPU": (cpus[-1], cpus[-1], "CPU")}
    if len(cpus) > 1:
        places["two CPUs"] = (cpus[0], cpus[-1], "wall")
    sleeper = subprocess.Popen(child_command(["sleep", "3600"]))
    try:
        for where, (first, second, metric) in places.items():
            with Workload("pingpong.c", str(first), str(second)) as workload:
                conditions = _conditions(workload.pid, sleeper.pid)
                try:
                    with conditions["peer one"]():
                        pass
                except peers.PeerError as error:
                    report.notes.append(f"libbpf-tools' offcputime could not be measured: {error}")
                    conditions = {name: made for name, made in conditions.items() if not name.startswith("peer")}
                samples = interleave(conditions, rounds, lambda *_, workload=workload: _measure(workload))
                report.rows += _rows(where, metric, samples)
                used = [f"{name} {_bpf_ns(workload, made):.0f}" for name, made in conditions.items() if name != "none"]
                report.notes.append(f"{where}: ns in BPF programs per round trip, kernel's count: {', '.join(used)}")
                report.notes += [f"{where}: {note}" for note in samples.notes()]
    finally:
        sleeper.kill()
        sleeper.wait()
    return report
