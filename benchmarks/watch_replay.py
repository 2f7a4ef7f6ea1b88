"""Replay the waits that a watcher has recorded through its detector, faster than real time, and repeated for a day.

    python -m benchmarks.watch_replay DIRECTORY [--hours N] [--pid PID] [--out FILE]

DIRECTORY is that of a watcher (``WHYSTALL_HOME/watch``) of a healthy job. The recorded time is repeated with shifted
instants; where a repetition begins, one interval of each place is odd. What is reported are the deviations that the
detector notices, each of which would be looked at: the diagnosis is not replayed. ``--out`` replaces this benchmark's
section in a report.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from benchmarks.common import Report, Row, publish
from whystall.agent_server.watch.progress import ProcessProgress, Wait
from whystall.bpf.layout import OFF_R
from whystall.tools.collect.slice_log import read_log
from whystall.tools.collect.slice_parts import RECORDS
from whystall.tools.collect.slice_scan import Scan, Waits

TITLE = "Watch: a healthy job, replayed for a day"
NS = 1_000_000_000
_LEARN_NS = 60 * NS
_HOUR_S = 3600


def recorded(directory: Path, pid: int | None) -> tuple[int, list[Wait]]:
    """Return the process `pid`, else that with most waits, and its waits in the order of their ends."""
    scan, found = Scan(), Waits()
    for entry in read_log(directory / "slices"):
        if entry.kind == RECORDS:
            scan.read(entry.data, found)
    if not len(found):
        sys.exit("watch_replay: the log has no waits")
    chosen = pid if pid is not None else Counter(found.tgid).most_common(1)[0][0]
    columns = (found.tid, found.place, found.start_ns, found.end_ns, found.runnable_ns, found.state)
    rows = zip(found.tgid, *columns, strict=True)
    waits = [Wait(*row[:-1], row[-1] == OFF_R) for tgid, *row in rows if tgid == chosen]
    return chosen, sorted(waits, key=lambda one: one.end_ns)


def replay(waits: list[Wait], progress: ProcessProgress, hours: float) -> tuple[Counter[str], list[float]]:
    """Feed `waits` again and again, a second at a time, for `hours`; return the deviations by kind, and the memory of
    this process at the end of each hour, MiB."""
    begun, end = waits[0].start_ns, waits[-1].end_ns
    noticed: Counter[str] = Counter()
    memory: list[float] = []
    shift = now = 0
    while now < hours * _HOUR_S * NS:
        at = 0
        for tick in range(begun + NS, end, NS):
            rows = []
            while at < len(waits) and waits[at].end_ns < tick:
                one = waits[at]
                rows.append(one._replace(start_ns=one.start_ns + shift, end_ns=one.end_ns + shift))
                at += 1
            for stall in progress.feed(rows, tick + shift):
                noticed[stall.kind if not stall.ongoing else "ongoing"] += 1
            now += NS
            if now % (_HOUR_S * NS) == 0:
                memory.append(_resident_mib())
        shift += end - begun
    return noticed, memory


def _resident_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:")) / 1024


def main(arguments: list[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--pid", type=int)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    pid, waits = recorded(options.directory, options.pid)
    span = (waits[-1].end_ns - waits[0].start_ns) / 1e9
    began = time.process_time()
    noticed, memory = replay(waits, ProcessProgress(pid, _LEARN_NS), options.hours)
    took = time.process_time() - began
    growth = memory[-1] - memory[0] if memory else 0.0
    report = Report(TITLE)
    kinds = ", ".join(f"{kind}: {count}" for kind, count in noticed.items()) or "none"
    report.rows = [
        Row("deviations noticed", kinds, goal="none", met=not noticed),
        Row("memory, first to last hour", f"{growth:+.1f} MiB", goal="< 2 MiB", met=growth < 2),
        Row("faster than real time", f"{options.hours * _HOUR_S / took:.0f} times"),
    ]
    report.notes = [f"{span:.0f} s recorded, {len(waits)} waits, repeated for {options.hours:g} h"]
    return publish(report, options.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
