"""Watch jobs without end: record, learn their rhythm, and have stalls investigated in a process of their own.

One thread. Nothing large is imported here; what is kept in memory is bounded.
"""

from __future__ import annotations

import os
import resource
import secrets
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whystall.agent_server.metrics.families import text
from whystall.agent_server.metrics.of_server import info
from whystall.agent_server.metrics.of_watch import watch_families
from whystall.agent_server.metrics.stall_seconds import StallSeconds
from whystall.agent_server.watch.cases import Case, CaseLimits, Cases
from whystall.agent_server.watch.jobs import JobList, Selection, WatchedJob
from whystall.agent_server.watch.own_process import resident_mib, run_delay_s, suspended_ns, used_ns, yield_memory
from whystall.agent_server.watch.progress import ProcessProgress, Stall, Wait
from whystall.agent_server.watch.requests import Answer, Request
from whystall.agent_server.watch.rhythm import NS
from whystall.agent_server.watch.status import StatusFiles
from whystall.bpf.layout import OFF_R
from whystall.tools.collect.continuous import ContinuousRecorder
from whystall.tools.collect.continuous_budget import Limits
from whystall.tools.collect.slice_history import JobName
from whystall.tools.contract.errors import ToolError
from whystall.tools.recording.target import Target

if TYPE_CHECKING:
    from whystall.tools.collect.slice_scan import Waits

_TICK_S = 1.0
_STATUS_S = 10.0
# A tick that comes this much too late, without the process having waited for a CPU: a paused virtual machine.
_LATE_S = 2.0
# Before the last sign of progress and after the next, in the recording of a stall: ordinary waits are no part of it.
_BEFORE_NS, _AFTER_NS = NS // 50, NS // 20
_SLOW_NS = 10 * NS  # of a slowdown, this much is judged
_LOOK_S = 6.0
_FLUSH_NS = 2 * NS  # a snapshot of the holders costs some 100 ms of a CPU
_CHILD_S = 300.0
_RECORDINGS = 50
# A thread that runs, or waits for a CPU, for this share of a stall in progress is at work.
_ACTIVE, _USES = 0.3, 2000


@dataclass(frozen=True)
class WatchOptions:
    """How to watch. `learn_s`: after a process is first seen, nothing is reported for so long; `tickets`: open tickets,
    not only log stalls."""

    selection: Selection = field(default_factory=Selection)
    learn_s: float = 60.0
    min_age_s: float = 10.0
    limits: CaseLimits = field(default_factory=CaseLimits)
    recorder: Limits = field(default_factory=Limits)
    tickets: bool = True


@dataclass
class _Child:
    process: subprocess.Popen[str]
    case: Case
    pid: int
    stall: Stall
    final: bool
    since: float


class WatchService:
    """See the module. `directory`: for slices, recordings, log and status; `note` is called with lines for people;
    `profiles`: returns the state of sending profiles, if it is on."""

    def __init__(
        self,
        options: WatchOptions,
        directory: Path,
        note: Callable[[str], None] = lambda line: None,
        profiles: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self._options = options
        self._directory = directory
        self._note = note
        self._profiles = profiles
        self._jobs = JobList(options.selection, options.min_age_s)
        self._processes: dict[int, ProcessProgress] = {}
        self._job_of: dict[int, WatchedJob] = {}
        self._cases = Cases(options.limits)
        self._child: _Child | None = None
        self._files = StatusFiles(directory)
        self._counts: dict[str, int] = {}
        self._began = time.time()
        self._flushed = 0
        self._stalls = StallSeconds()
        self._first_use: dict[tuple[int, int], tuple[int, int]] = {}
        self._faultless: dict[int, int] = {}  # by process: the start of a stall in progress that was found to be none
        self._recorder: ContinuousRecorder | None = None
        self._recent: deque[dict[str, Any]] = deque(maxlen=20)

    def run(self, stopped: Callable[[float], bool]) -> None:
        """Watch until `stopped`, which waits for the given seconds, returns true. Raises `ToolError` if nothing can be
        recorded."""
        yield_memory()
        recordings = self._directory / "recordings"
        recordings.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._recorder = ContinuousRecorder(Target(everything=False), self._options.recorder, self._directory)
        self._recorder.start()
        try:
            self._loop(self._recorder, stopped)
        finally:
            self._recorder.close()
            if self._child is not None:
                self._child.process.terminate()
                self._child.process.wait()
            self._files.write(self._status(running=False))

    def _loop(self, recorder: ContinuousRecorder, stopped: Callable[[float], bool]) -> None:
        due, status_due = time.monotonic(), 0.0
        suspended, delay = suspended_ns(), run_delay_s()
        while not stopped(max(0.0, due - time.monotonic())):
            now = time.monotonic()
            late, due = now - due, now + _TICK_S
            slept, waited = suspended_ns(), run_delay_s()
            if slept - suspended > NS or late - (waited - delay) > _LATE_S:
                self._unobserved("the host was suspended or paused")
            suspended, delay = slept, waited
            if self._jobs.renew(now):
                self._retarget(recorder)
            self._feed(recorder.poll())
            self._investigate(recorder)
            if now >= status_due:
                status_due = now + _STATUS_S
                status = self._status(running=True)
                self._files.write(status)
                self._files.write_metrics(text([info(), *watch_families(status, time.time())]))

    # --- what is watched ------------------------------------------------------------------------------------------

    def _retarget(self, recorder: ContinuousRecorder) -> None:
        wanted = {pid: job for job in self._jobs.jobs for pid in job.leaders}
        for pid in self._processes.keys() - wanted.keys():
            self._left(pid)
        for pid, job in wanted.items():
            before = self._job_of.get(pid)
            if before is None or before.leaders.get(pid) != job.leaders[pid]:
                self._processes[pid] = ProcessProgress(pid, int(self._options.learn_s * NS))
                self._note(f"watching {job.name} ({job.id}), process {pid}")
        self._job_of = wanted
        jobs = {pid: JobName(job.id, job.name) for job in self._jobs.jobs for pid in (*job.pids, *job.leaders)}
        recorder.retarget(frozenset(jobs), jobs)

    def _left(self, pid: int) -> None:
        """Forget a process that has ended. A pause that its end cut short is no stall."""
        del self._processes[pid]
        for case in list(self._cases.open):
            if case.state == "open" and pid in case.stalls and case.stalls[pid].ongoing:
                del case.stalls[pid]
                if not case.stalls:
                    self._cases.drop(case)
                    self._log(case, "ended_with_the_process")

    def _unobserved(self, why: str) -> None:
        now = time.monotonic_ns()
        self._note(why)
        self._count("unobserved")
        for progress in self._processes.values():
            progress.unobserved(now)
        for case in [case for case in self._cases.open if case.end_ns is None and case.state == "open"]:
            self._cases.drop(case)

    def _feed(self, waits: Waits) -> None:
        now = time.monotonic_ns()
        by_process: dict[int, list[Wait]] = {pid: [] for pid in self._processes}
        for index, tgid in enumerate(waits.tgid):
            rows = by_process.get(tgid)
            if rows is not None:
                rows.append(
                    Wait(
                        waits.tid[index],
                        waits.place[index],
                        waits.start_ns[index],
                        waits.end_ns[index],
                        waits.runnable_ns[index],
                        waits.state[index] == OFF_R,
                    )
                )
        for pid, rows in by_process.items():
            progress, job = self._processes[pid], self._job_of[pid]
            for stall in progress.feed(rows, now):
                self._noticed(job, pid, stall, now)
            self._resumed(pid, progress)

    def _noticed(self, job: WatchedJob, pid: int, stall: Stall, now: int) -> None:
        self._count(stall.kind if not stall.ongoing else "ongoing")
        self._cases.add(job, pid, stall, now)
        if stall.ongoing and self._recorder is not None and now - self._flushed >= _FLUSH_NS:
            self._flushed = now
            self._recorder.flush()  # who holds now what it waits for

    def _resumed(self, pid: int, progress: ProcessProgress) -> None:
        """Drop an open stall that has ended as a usual pause, of which no stall is reported."""
        thread = progress.thread
        still = thread is not None and thread.open is not None
        for case in list(self._cases.open):
            stall = case.stalls.get(pid)
            if stall is not None and stall.ongoing and not still and case.state == "open":
                del case.stalls[pid]
                if not case.stalls:
                    self._cases.drop(case)
                    self._count("usual_pause")

    # --- investigating --------------------------------------------------------------------------------------------

    def _investigate(self, recorder: ContinuousRecorder) -> None:
        if self._child is not None:
            self._finish(self._child)
        if self._child is not None:
            return
        now = time.monotonic_ns()
        self._look_whether_they_run(now)
        while (case := self._cases.due(now, self._allowance())) is not None and case.skipped:
            self._log(case, case.skipped)
            self._cases.drop(case)
        if case is None:
            self._end_reported()
            return
        pid, stall = case.main()
        final = case.end_ns is not None or self._cases.is_hang(case, now)
        try:
            recorder.flush()
            self._child = self._started(case, pid, stall, final, now)
        except (ToolError, OSError) as error:
            self._note(f"a stall of {case.job.name} cannot be investigated: {error}")
            self._cases.drop(case)

    def _look_whether_they_run(self, now: int) -> None:
        """Mark the stalls in progress whose threads run, or could: the waits of these cannot tell."""
        for case in self._cases.open:
            if case.end_ns is not None or case.state != "open":
                continue
            active = []
            for pid, stall in case.stalls.items():
                since, before = self._first_use.setdefault((pid, stall.start_ns), (now, used_ns(pid, stall.tid)))
                if now - since >= NS:
                    active.append((used_ns(pid, stall.tid) - before) / (now - since))
            case.ran = not active or min(active) >= _ACTIVE
        if len(self._first_use) > _USES:
            self._first_use.clear()

    def _started(self, case: Case, pid: int, stall: Stall, final: bool, now: int) -> _Child:
        directory = (
            self._directory / "recordings" / f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        )
        start, end = case.start_ns - _BEFORE_NS, (case.end_ns or now) + _AFTER_NS
        if stall.kind in ("slowdown", "drift"):
            start = max(start, end - _SLOW_NS)
        request = Request(
            job=case.job.id,
            name=case.job.name,
            pid=pid,
            pids=(pid,),  # its main thread is accounted for; whom it waits for is recorded, too
            rank=case.job.ranks.get(pid),
            stall=replace(stall, end_ns=None if case.end_ns is None else stall.end_ns),
            start_ns=start,
            end_ns=min(end, now),
            noticed_ns=case.noticed_ns,
            slices=str(self._directory),
            recording=str(directory),
            live_pid=pid if case.end_ns is None and not case.looked else None,
            live_s=_LOOK_S,
            earlier=case.looked if case.looked not in ("", "-") else "",
            tickets=self._options.tickets and final,
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "whystall.agent_server.watch.investigate"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._files.errors(),
            text=True,
        )
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        process.stdin.write(request.to_json())
        process.stdin.close()
        process.stdin = None  # else communicate() flushes it
        case.state = "looking"
        return _Child(process, case, pid, stall, final, time.monotonic())

    def _finish(self, child: _Child) -> None:
        """Take the answer of an investigation that has ended."""
        if child.process.poll() is None:
            if time.monotonic() - child.since < _CHILD_S:
                return
            child.process.kill()
        self._child = None
        output = child.process.communicate()[0] if child.process.stdout else ""
        try:
            answer = Answer.from_json(output.splitlines()[-1])
        except (ValueError, TypeError, IndexError):
            answer = Answer(error=f"the investigation ended with status {child.process.returncode}")
        case = child.case
        if answer.usual and child.stall.end_ns is not None:
            self._accept(child.pid, child.stall)
        if answer.diagnosis:
            self._faultless = {pid: at for pid, at in self._faultless.items() if pid in self._processes}
            self._faultless.update({pid: one.start_ns if answer.usual else 0 for pid, one in case.stalls.items()})
        if child.final:
            case.cause = answer.cause if answer.action == "ticket" else ""
            self._log(case, answer.why or "failed", answer)
            case.state = "reported"
            if case.end_ns is not None:
                self._cases.drop(case)
        else:
            case.state, case.looked = "open", answer.diagnosis or "-"
            self._resumed_all()
        self._tidy()

    def _resumed_all(self) -> None:
        for pid, progress in self._processes.items():
            self._resumed(pid, progress)

    def _end_reported(self) -> None:
        for case in list(self._cases.open):
            if case.state == "reported" and case.end_ns is not None:
                self._cases.drop(case)
                self._log(case, "ended")
            elif case.state == "reported":
                for pid, stall in list(case.stalls.items()):
                    progress = self._processes.get(pid)
                    thread = progress.thread if progress is not None else None
                    if progress is None or (stall.ongoing and (thread is None or thread.open is None)):
                        case.stalls[pid] = replace(stall, end_ns=time.monotonic_ns())

    def _accept(self, pid: int, stall: Stall) -> None:
        progress = self._processes.get(pid)
        thread = progress.thread if progress is not None else None
        if thread is not None and stall.end_ns is not None:
            thread.pauses.accept(stall.place, stall.end_ns - stall.start_ns)

    def _allowance(self) -> int:
        threads = (progress.thread for progress in self._processes.values())
        return max((thread.pauses.allowance_ns for thread in threads if thread is not None), default=0)

    def _tidy(self) -> None:
        """Keep the latest recordings of stalls."""
        kept = sorted((self._directory / "recordings").iterdir(), reverse=True)
        for old in kept[_RECORDINGS:]:
            shutil.rmtree(old, ignore_errors=True)

    # --- log and tickets ------------------------------------------------------------------------------------------

    def _log(self, case: Case, why: str, answer: Answer | None = None) -> None:
        self._count(f"why_{why}")
        stall = next(iter(case.stalls.values()), None)
        entry: dict[str, Any] = {
            "at": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "job": case.job.id,
            "name": case.job.name,
            "why": why,
            "noticed_ns": case.noticed_ns,
        }
        if stall is not None:
            pid, stall = case.main()
            self._count_seconds(case)
            entry |= {"pid": pid, "stall": asdict(stall), "processes": sorted(case.stalls)}
        if answer is not None:
            entry["answer"] = asdict(answer)
            if answer.ticket:
                word = "ticket" if answer.new else "seen again, ticket"
                self._note(
                    f"{case.job.name}: {answer.title or 'no cause found'} ({answer.verdict}); {word} {answer.ticket}"
                )
                self._count("tickets" if answer.new else "tickets_again")
        self._recent.append({key: value for key, value in entry.items() if key != "stall"})
        self._files.log(entry)

    def _count_seconds(self, case: Case) -> None:
        """Count the stalls of `case` that have ended; a slowdown has no length."""
        for pid, stall in case.stalls.items():
            if stall.end_ns is not None and stall.kind not in ("slowdown", "drift"):
                length = (stall.end_ns - stall.start_ns) / 1e9
                self._stalls.add(case.job.name, case.job.ranks.get(pid), case.cause, length)

    def _count(self, what: str) -> None:
        self._counts[what] = self._counts.get(what, 0) + 1

    def _status(self, *, running: bool) -> dict[str, Any]:
        now = time.monotonic_ns()
        jobs = [
            {"id": job.id, "name": job.name, "processes": [self._process(job, pid, now) for pid in job.leaders]}
            for job in self._jobs.jobs
        ]
        cost = asdict(self._recorder.cost()) if running and self._recorder is not None else {}
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "pid": os.getpid(),
            "running": running,
            "since": self._began,
            "written": time.time(),
            "jobs": jobs,
            "beyond": self._jobs.beyond,
            "cost": cost,
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
            "memory_mib": round(resident_mib(), 1),
            "pending": len(self._cases.open),
            "counts": self._counts,
            "stalls": list(self._stalls.rows()),
            **({"profiles": self._profiles()} if self._profiles is not None else {}),
            "recent": list(self._recent),
        }

    def _process(self, job: WatchedJob, pid: int, now: int) -> dict[str, Any]:
        progress = self._processes.get(pid)
        thread = progress.thread if progress is not None else None
        stall = thread.open if thread is not None else None
        counts = stall is not None and self._faultless.get(pid) != stall.start_ns
        return {
            "pid": pid,
            "rank": job.ranks.get(pid),
            "places": thread.regular if thread is not None else 0,
            "step_ms": round(thread.step_ns / 1e6, 2) if thread is not None else 0.0,
            "stalled": stall is not None,
            "stalled_s": round((now - stall.start_ns) / 1e9, 3) if stall is not None and counts else 0.0,
        }
