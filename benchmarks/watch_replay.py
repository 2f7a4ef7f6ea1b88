"""Replay the waits that a watcher has recorded through its detector, faster than real time, and repeated for a day.

    python -m benchmarks.watch_replay DIRECTORY [--hours N] [--pid PID] [--out FILE]

DIRECTORY is that of a watcher (``WHYSTALL_HOME/watch``) of a healthy job. The recorded time is repeated with shifted
instants. Deviations become cases under the watcher's limits; each that is due is investigated on what was recorded, as
live, but for looks at the running process; the same one of a later repetition gets the same answer. Deviations across
the end of a repetition are left out. ``--out`` replaces this benchmark's section in a report.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from benchmarks.common import Report, Row, publish
from whystall.agent_server.watch.cases import Case, CaseLimits, Cases
from whystall.agent_server.watch.investigate import investigate
from whystall.agent_server.watch.investigation import request_of
from whystall.agent_server.watch.jobs import WatchedJob
from whystall.agent_server.watch.pause_account import Wait
from whystall.agent_server.watch.process_progress import ProcessProgress
from whystall.agent_server.watch.progress import Stall
from whystall.agent_server.watch.requests import Answer
from whystall.bpf.layout import OFF_R
from whystall.tools.collect.slice_log import read_log
from whystall.tools.collect.slice_parts import RECORDS
from whystall.tools.collect.slice_scan import Scan, Waits
from whystall.tools.contract.errors import ToolError

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
    columns = (found.tid, found.place, found.start_ns, found.end_ns, found.runnable_ns, found.state, found.timed)
    rows = zip(found.tgid, *columns, strict=True)
    waits = [Wait(*row[:-2], row[-2] == OFF_R, row[-1]) for tgid, *row in rows if tgid == chosen]
    return chosen, sorted(waits, key=lambda one: one.end_ns)


class Replay:
    """The detector and the cases of one process, with what happened. `span_ns`: the length of what is repeated."""

    def __init__(self, directory: Path, pid: int, waits: list[Wait]) -> None:
        self._directory, self._pid, self._waits = directory, pid, waits
        self._progress = ProcessProgress(pid, _LEARN_NS)
        self._cases = Cases(CaseLimits())
        self._job = WatchedJob("replay", "replay", {pid: 0}, pids=frozenset((pid,)))
        self._answers: dict[tuple[int, int | None], Answer] = {}
        self._begun, self._end = waits[0].start_ns, waits[-1].end_ns
        self.span_ns = self._end - self._begun
        self.noticed: Counter[str] = Counter()
        self.results: Counter[str] = Counter()
        self.memory: list[float] = []

    def run(self, hours: float) -> None:
        """Feed the waits again and again, a second at a time, for `hours`; note the memory of each hour, MiB."""
        shift = now = 0
        while now < hours * _HOUR_S * NS:
            at = 0
            for tick in range(self._begun + NS, self._end, NS):
                rows = []
                while at < len(self._waits) and self._waits[at].end_ns < tick:
                    one = self._waits[at]
                    rows.append(one._replace(start_ns=one.start_ns + shift, end_ns=one.end_ns + shift))
                    at += 1
                for stall in self._progress.feed(rows, tick + shift):
                    self._add(stall, shift, tick + shift)
                self._judge(shift, tick + shift)
                now += NS
                if now % (_HOUR_S * NS) == 0:
                    self.memory.append(_resident_mib())
            shift += self.span_ns

    def _add(self, stall: Stall, shift: int, now: int) -> None:
        self.noticed[stall.kind if not stall.ongoing else "ongoing"] += 1
        if stall.start_ns < self._begun + shift:
            self.results["across the end of a repetition"] += not stall.ongoing
        else:
            self._cases.add(self._job, self._pid, stall, now)

    def _judge(self, shift: int, now: int) -> None:
        thread = self._progress.thread
        for case in list(self._cases.open):
            if case.end_ns is None and (thread is None or thread.open is None):
                self._cases.drop(case)  # it ended as a usual pause
        allowance = thread.pauses.allowance_ns if thread is not None else 0
        while (case := self._cases.due(now, allowance)) is not None:
            self._cases.drop(case)
            if case.skipped:
                self.results[f"not looked at: {case.skipped}"] += 1
                continue
            _, stall = case.main()
            answer = self._answer(case, shift)
            self.results[f"{answer.action}: {answer.why or answer.error}"] += 1
            if answer.usual and thread is not None and stall.end_ns is not None:
                thread.pauses.accept(stall.place, stall.end_ns - stall.start_ns)

    def _answer(self, case: Case, shift: int) -> Answer:
        """Investigate `case` on the recorded time."""
        request, stall = request_of(case, self._directory, self._end + shift, final=True, tickets=False)
        end = None if stall.end_ns is None else stall.end_ns - shift
        key = (stall.start_ns - shift, end)
        if key not in self._answers:
            then = replace(stall, start_ns=key[0], end_ns=end)
            times = {"start_ns": request.start_ns - shift, "end_ns": request.end_ns - shift, "live_pid": None}
            try:
                self._answers[key] = investigate(replace(request, stall=then, **times))
            except ToolError as error:
                self._answers[key] = Answer(error=error.code.value)
        return self._answers[key]


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
    replay = Replay(options.directory, pid, waits)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="whystall-replay-") as home:
        os.environ["WHYSTALL_HOME"] = home
        replay.run(options.hours)
    took, memory = time.monotonic() - began, replay.memory
    growth = memory[-1] - memory[len(memory) // 2] if memory else 0.0
    report = Report(TITLE)
    tickets = sum(count for what, count in replay.results.items() if what.startswith("ticket"))
    report.rows = [
        Row("tickets", str(tickets), goal="0", met=tickets == 0),
        Row("deviations noticed", ", ".join(f"{kind}: {count}" for kind, count in replay.noticed.items()) or "none"),
        Row("what became of them", ", ".join(f"{what}: {count}" for what, count in replay.results.items()) or "none"),
        Row("memory, second half of the time", f"{growth:+.1f} MiB", goal="< 2 MiB", met=growth < 2),
        Row("faster than real time", f"{options.hours * _HOUR_S / took:.0f} times"),
    ]
    report.notes = [f"{span:.0f} s recorded, {len(waits)} waits, repeated for {options.hours:g} h"]
    return publish(report, options.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
