"""Watch jobs without end: record, learn their rhythm, and have stalls investigated in a process of their own.

One thread. Nothing large is imported here; what is kept in memory is bounded.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whystall.agent_server.metrics.families import text
from whystall.agent_server.metrics.of_server import info
from whystall.agent_server.metrics.of_watch import watch_families
from whystall.agent_server.watch.cases import Case, CaseLimits, Cases
from whystall.agent_server.watch.investigation import Investigation, recordings, request_of, tidy
from whystall.agent_server.watch.jobs import JobList, Selection, WatchedJob
from whystall.agent_server.watch.memory import Identity, Memory, identity_of
from whystall.agent_server.watch.own_process import (
    io_calls,
    resident_mib,
    run_delay_s,
    suspended_ns,
    thread_ended,
    used_ns,
    yield_memory,
)
from whystall.agent_server.watch.pause_account import Wait
from whystall.agent_server.watch.process_progress import ProcessProgress
from whystall.agent_server.watch.progress import Stall, ThreadProgress
from whystall.agent_server.watch.progress_sources import NamedProgress, SourceNames
from whystall.agent_server.watch.rhythm import NS
from whystall.agent_server.watch.stall_log import StallLog
from whystall.agent_server.watch.status import StatusFiles
from whystall.bpf.layout import OFF_R
from whystall.tools.collect.continuous import MOST_RECORDED, ContinuousRecorder
from whystall.tools.collect.continuous_budget import Limits
from whystall.tools.collect.slice_history import JobName
from whystall.tools.contract.errors import ToolError
from whystall.tools.recording.target import Target

if TYPE_CHECKING:
    from whystall.tools.collect.slice_scan import Waits

_TICK_S = 1.0
_STATUS_S, _REMEMBER_S = 10.0, 60.0
# A tick that comes this much too late, without the process having waited for a CPU: a paused virtual machine.
_LATE_S = 2.0
_FLUSH_NS = 2 * NS  # a snapshot of the holders costs some 100 ms of a CPU
# A thread that runs, or waits for a CPU, for this share of a stall in progress is at work.
_ACTIVE, _USES = 0.3, 2000
_UNEXPLAINED = ("own_work", "no_cause", "weak")


@dataclass(frozen=True)
class WatchOptions:
    """How to watch. `learn_s`: after a process is first seen, nothing is reported for so long; `tickets`: open tickets,
    not only log stalls; `progress`: signs of progress of the one job that is selected."""

    selection: Selection = field(default_factory=Selection)
    learn_s: float = 60.0
    min_age_s: float = 10.0
    limits: CaseLimits = field(default_factory=CaseLimits)
    recorder: Limits = field(default_factory=Limits)
    tickets: bool = True
    progress: SourceNames = field(default_factory=SourceNames)


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
        """Raises `ToolError` (bad_argument) for a sign of progress that cannot be one."""
        self._options = options
        self._directory = directory
        self._note = note
        self._profiles = profiles
        self._jobs = JobList(options.selection, options.min_age_s)
        self._processes: dict[int, ProcessProgress] = {}
        self._job_of: dict[int, WatchedJob] = {}
        self._cases = Cases(options.limits)
        self._child: Investigation | None = None
        self._files = StatusFiles(directory)
        self._log = StallLog(self._files, note)
        self._began = time.time()
        self._flushed = 0
        self._thresholds_ns: dict[int, int] = {}
        self._notes: frozenset[str] = frozenset()
        self._failed = self._unsaved = ""
        self._reported_no_job = False
        self._first_use: dict[tuple[int, int], tuple[int, int]] = {}
        self._faultless: dict[int, int] = {}  # by process: the start of a stall in progress that was found to be none
        self._memory = Memory(directory)
        self._identities: dict[int, Identity] = {}
        self._named = NamedProgress(options.progress, int(options.learn_s * NS))
        self._recorder: ContinuousRecorder | None = None

    def run(self, stopped: Callable[[float], bool]) -> None:
        """Watch until `stopped`, which waits for the given seconds, returns true. Raises `ToolError` if nothing can be
        recorded."""
        yield_memory()
        try:
            recordings(self._directory).mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            self._note(f"warning: recordings of stalls cannot be kept in {self._directory}: {error.strerror}")
        if why := self._memory.load():
            self._note(f"warning: what was learnt before cannot be read ({why}); learning again")
        self._recorder = ContinuousRecorder(Target(everything=False), self._options.recorder, self._directory)
        self._recorder.start()
        try:
            self._loop(self._recorder, stopped)
        finally:
            self._named.close()
            self._recorder.close()
            self._remember()
            if self._child is not None:
                self._child.end()
            self._write(self._status(running=False))

    def _loop(self, recorder: ContinuousRecorder, stopped: Callable[[float], bool]) -> None:
        due, status_due = time.monotonic(), 0.0
        remember_due = due + _REMEMBER_S
        suspended, delay = suspended_ns(), run_delay_s()
        begin = time.monotonic()
        # a tick that took long, as when the disk of its files does not answer, makes the next one no later
        while not stopped(max(0.0, due - begin)):
            now = time.monotonic()
            late, due = now - max(due, begin), now + _TICK_S
            slept, waited = suspended_ns(), run_delay_s()
            if slept - suspended > NS or late - (waited - delay) > _LATE_S:
                self._unobserved("the host was suspended or paused")
            suspended, delay = slept, waited
            if self._jobs.renew(now):
                self._retarget(recorder)
            self._report_no_job()
            waits = recorder.poll()
            self._note_thresholds(recorder)
            self._feed(waits)
            self._look_at_signs()
            self._investigate(recorder)
            if now >= remember_due:
                remember_due = now + _REMEMBER_S
                self._remember()
            if now >= status_due:
                status_due = now + _STATUS_S
                status = self._status(running=True)
                self._report_notes(status["cost"].get("notes", ()))
                self._write(status)
            begin = time.monotonic()

    def _note_thresholds(self, recorder: ContinuousRecorder) -> None:
        """Forget what is not seen of processes that have less detail now."""
        before, self._thresholds_ns = self._thresholds_ns, {pid: recorder.min_ns_of(pid) for pid in self._processes}
        for pid, threshold in self._thresholds_ns.items():
            if threshold > before.get(pid, self._options.recorder.min_ns):
                self._processes[pid].forget_short(threshold)
            if threshold >= NS:  # what is visited in less than a second is not seen
                self._processes[pid].unobserved(time.monotonic_ns())

    # --- what is watched ------------------------------------------------------------------------------------------

    def _write(self, status: dict[str, Any]) -> None:
        """Replace the status and the metrics; report when this begins to fail."""
        before = self._failed
        self._failed = (
            self._files.write(status)
            or self._files.write_metrics(text([info(), *watch_families(status, time.time())]))
            or self._unsaved
            or self._log.failed
        )
        if self._failed and self._failed != before:
            self._note(f"warning: files of the watcher cannot be written: {self._failed}")

    def _retarget(self, recorder: ContinuousRecorder) -> None:
        wanted = {pid: job for job in self._jobs.jobs for pid in job.leaders}
        for pid in self._processes.keys() - wanted.keys():
            self._left(pid)
        for pid, job in wanted.items():
            before = self._job_of.get(pid)
            if before is None or before.leaders.get(pid) != job.leaders[pid]:
                if pid in self._processes:
                    self._left(pid)
                self._processes[pid] = self._known(pid, job)
                self._note(f"watching {job.name} ({job.id}), process {pid}")
        self._job_of = wanted
        jobs = {pid: JobName(job.id, job.name) for job in self._jobs.jobs for pid in (*job.pids, *job.leaders)}
        recorder.retarget(frozenset([*wanted, *(jobs.keys() - wanted.keys())][:MOST_RECORDED]), jobs)

    def _report_no_job(self) -> None:
        """Report once if there is no job to watch."""
        if not self._jobs.jobs and not self._reported_no_job:
            which = "looks like training or serving" if self._options.selection.everything else "was named"
            self._note(f"no job that {which} runs now; each is watched {self._options.min_age_s:g} s after its start")
        self._reported_no_job = True

    def _known(self, pid: int, job: WatchedJob) -> ProcessProgress:
        """Return the progress of a new process, with what was learnt of it before."""
        progress = ProcessProgress(pid, int(self._options.learn_s * NS))
        identity = identity_of(pid, job.leaders[pid], job.ranks.get(pid))
        learnt = self._memory.find(identity) if identity is not None else None
        if identity is not None:
            self._identities[pid] = identity
        if identity is not None and learnt is not None:
            progress.restore(learnt, same=learnt.run == identity.run)
            self._log.count("known_before")
        return progress

    def _remember(self) -> None:
        """Keep what was learnt of all watched processes."""
        for pid in self._processes:
            self._keep(pid)
        self._unsaved = self._memory.save()

    def _keep(self, pid: int) -> None:
        identity = self._identities.get(pid)
        learnt = self._processes[pid].learnt(identity.run, time.time()) if identity is not None else None
        if identity is not None and learnt is not None:
            self._memory.keep(identity, learnt)

    def _left(self, pid: int) -> None:
        """Forget a process that has ended. A pause that its end cut short is no stall."""
        self._keep(pid)
        self._identities.pop(pid, None)
        del self._processes[pid]
        for case in list(self._cases.open):
            if case.state == "open" and pid in case.stalls and case.stalls[pid].ongoing:
                del case.stalls[pid]
                if not case.stalls:
                    self._cases.drop(case)
                    self._log.log(case, "ended_with_the_process")

    def _report_notes(self, notes: Iterable[str]) -> None:
        """Report what is newly not as wanted in the recorder, such as a log without a file."""
        current = frozenset(notes)
        for note in sorted(current - self._notes):
            self._note(f"the recorder: {note}")
        self._notes = current

    def _unobserved(self, why: str) -> None:
        now = time.monotonic_ns()
        self._note(why)
        self._log.count("unobserved")
        for progress in self._processes.values():
            progress.unobserved(now)
        self._named.unobserved(now)
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
                        waits.timed[index],
                    )
                )
        for pid, rows in by_process.items():
            progress, job = self._processes[pid], self._job_of[pid]
            for stall in progress.feed(rows, now, partial(io_calls, pid)):
                if not stall.ongoing or not self._forgotten(job, pid, stall.tid):
                    self._noticed(job, pid, stall, now)
            self._resumed(pid, progress)

    def _forgotten(self, job: WatchedJob, pid: int, tid: int) -> bool:
        """Forget the thread `tid` if it has ended, and those that would be followed then and have, too; return whether
        it has. Whether others go on in its place is unknown."""
        progress, started = self._processes.get(pid), job.leaders[pid]
        if progress is None or not thread_ended(pid, tid, started):
            return False
        progress.forget(tid)
        while (thread := progress.thread) is not None and thread_ended(pid, thread.tid, started):
            progress.forget(thread.tid)
        return True

    def _look_at_signs(self) -> None:
        """Look at the signs of progress that were named. A stall is one of the process that stalls too, else of the
        first rank."""
        job = next(iter(self._jobs.jobs), None)
        if job is None or not job.leaders:
            return
        now = time.monotonic_ns()
        stalled = (pid for pid in job.leaders if (found := self._thread(pid)) is not None and found.open is not None)
        pid = next(stalled, min(job.leaders, key=lambda one: (job.ranks.get(one, 0), one)))
        thread = self._thread(pid)
        for stall in self._named.look(now, thread.tid if thread is not None else pid):
            self._noticed(job, pid, stall, now)

    def _thread(self, pid: int) -> ThreadProgress | None:
        progress = self._processes.get(pid)
        return progress.thread if progress is not None else None

    def _noticed(self, job: WatchedJob, pid: int, stall: Stall, now: int) -> None:
        self._log.count(stall.kind if not stall.ongoing else "ongoing")
        self._cases.add(job, pid, stall, now)
        if stall.ongoing and self._recorder is not None and now - self._flushed >= _FLUSH_NS:
            self._flushed = now
            self._recorder.flush()  # who holds now what it waits for

    def _resumed(self, pid: int, progress: ProcessProgress) -> None:
        """Drop an open stall that has ended as a usual pause, of which no stall is reported."""
        thread = progress.thread
        of_thread = thread is not None and thread.open is not None
        for case in list(self._cases.open):
            stall = case.stalls.get(pid)
            still = of_thread or (stall is not None and stall.kind == "signal" and self._named.stalled)
            if stall is not None and stall.ongoing and not still and case.state == "open":
                del case.stalls[pid]
                if not case.stalls:
                    self._cases.drop(case)
                    self._log.count("usual_pause")

    # --- investigating --------------------------------------------------------------------------------------------

    def _investigate(self, recorder: ContinuousRecorder) -> None:
        if self._child is not None:
            self._finish(self._child)
        if self._child is not None:
            return
        now = time.monotonic_ns()
        self._look_whether_they_run(now)
        while (case := self._cases.due(now, self._allowance())) is not None and case.skipped:
            self._log.log(case, case.skipped)
            self._cases.drop(case)
        if case is None:
            self._end_reported()
            return
        final = case.end_ns is not None or self._cases.is_hang(case, now)
        try:
            recorder.flush()
            self._child = self._started(case, final, now)
            case.state = "looking"
        except (ToolError, OSError) as error:
            self._note(f"a stall of {case.job.name} cannot be investigated: {error}")
            self._cases.drop(case)

    def _started(self, case: Case, final: bool, now: int) -> Investigation:
        request, stall = request_of(case, self._directory, now, final=final, tickets=self._options.tickets)
        return Investigation.start(request, case, stall, final=final, errors=self._files.errors())

    def _look_whether_they_run(self, now: int) -> None:
        """Mark the stalls in progress whose threads run, or could: the waits of these cannot tell."""
        for case in self._cases.open:
            if case.end_ns is not None or case.state != "open":
                continue
            active = []
            for pid, stall in case.stalls.items():
                if stall.kind != "signal":
                    self._forgotten(case.job, pid, stall.tid)  # `_resumed` drops its stall
                since, before = self._first_use.setdefault((pid, stall.start_ns), (now, used_ns(pid, stall.tid)))
                if now - since >= NS:
                    active.append((used_ns(pid, stall.tid) - before) / (now - since))
            case.active = min(active, default=None)
            case.ran = case.active is None or case.active >= _ACTIVE
        if len(self._first_use) > _USES:
            self._first_use.clear()

    def _finish(self, child: Investigation) -> None:
        """Take the answer of an investigation that has ended."""
        answer = child.poll()
        if answer is None:
            return
        self._child = None
        case = child.case
        if answer.usual and child.stall.end_ns is not None:
            self._accept(child.pid, child.stall)
        if answer.diagnosis:
            self._faultless = {pid: at for pid, at in self._faultless.items() if pid in self._processes}
            self._faultless.update({pid: one.start_ns if answer.usual else 0 for pid, one in case.stalls.items()})
        if child.final and answer.why in _UNEXPLAINED and not case.tried and len(case.stalls) > 1 and not case.skipped:
            case.tried.add(child.pid)  # a rank that waited for it shows what it did as a cause
            case.state = "open"
        elif child.final:
            case.cause = answer.cause if answer.action == "ticket" else ""
            self._log.log(case, answer.why or "failed", answer)
            case.state = "reported"
            if case.end_ns is not None:
                self._cases.drop(case)
        else:
            case.state, case.looked = "open", answer.diagnosis or "-"
            self._resumed_all()
        tidy(self._directory)

    def _resumed_all(self) -> None:
        for pid, progress in self._processes.items():
            self._resumed(pid, progress)

    def _end_reported(self) -> None:
        for case in list(self._cases.open):
            if case.state == "reported" and case.end_ns is not None:
                self._cases.drop(case)
                self._log.log(case, "ended")
            elif case.state == "reported":
                for pid, stall in list(case.stalls.items()):
                    thread = self._thread(pid)
                    still = (thread is not None and thread.open is not None) or (
                        stall.kind == "signal" and self._named.stalled
                    )
                    if pid not in self._processes or (stall.ongoing and not still):
                        case.stalls[pid] = replace(stall, end_ns=time.monotonic_ns())

    def _accept(self, pid: int, stall: Stall) -> None:
        thread = self._thread(pid)
        if stall.end_ns is None:
            return
        if stall.kind == "signal":
            self._named.accept(stall.end_ns - stall.start_ns)
        elif thread is not None:
            thread.pauses.accept(stall.place, stall.end_ns - stall.start_ns)

    def _allowance(self) -> int:
        threads = (self._thread(pid) for pid in self._processes)
        return max((thread.pauses.allowance_ns for thread in threads if thread is not None), default=0)

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
            "progress": self._named.state(),
            "beyond": self._jobs.beyond,
            "cost": cost,
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
            "memory_mib": round(resident_mib(), 1),
            "pending": len(self._cases.open),
            "counts": self._log.counts,
            "stalls": list(self._log.seconds.rows()),
            **({"profiles": self._profiles()} if self._profiles is not None else {}),
            "recent": list(self._log.recent),
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
