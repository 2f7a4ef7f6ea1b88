"""Choose the victim, the thread whose progress is the job's, and account for its time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from whystall.knowledge_base.models import Victim
from whystall.tools.contract.findings import Finding, Polarity

if TYPE_CHECKING:
    from whystall.tools.host.host_bound.data import Dispatcher

# A thread is a candidate if it used at least this share of the busiest thread's CPU time.
_CANDIDATE = 0.2
# If no thread uses this much CPU, the job hangs: the victim is the thread that is stuck in an operation.
_WORKS_PCT = 1.0
# A main thread that runs or is blocked for this share of the window is a candidate, however little CPU it used. One
# that mostly idles, such as a launcher, is not.
_ACTIVE_PCT = 50.0
# A worker thread is a peer of the one that computes most if it computes at least this share as much.
_PEER = 0.5
FEEDS = "feeds_accelerator"
_SPINS = "sched_yield"
# Rows of the critical path: those of one thread sum to the window.
PATH_ROWS = ("path.running", "path.wait")
# Reasons for which a thread waits by its own choice: no time is taken from it, though an accelerator idles.
_BY_CHOICE = frozenset({"sleep", "poll", "colleague", "call", "stopped"})


def choose_victim(findings: Sequence[Finding]) -> Victim | None:
    """Return the victim among the threads with a ``thread.time`` finding; None without any.

    In this order:
    1. The thread that an accelerator waits for; the accelerator's loss is its loss, except waits by its own choice.
    2. If no thread uses CPU: the thread with the longest unfinished operation.
    3. The main thread. Of several of one program (the ranks of a job), the one that loses most.
    4. The worker that loses most among those that compute most; a slow helper thread does not stall the job.
    """
    threads = [f for f in findings if f.kind == "thread.time" and f.subject.tid is not None]
    if not threads:
        return None
    feeder = max(threads, key=lambda f: _accelerator_wait_pct(f, findings))
    if _accelerator_wait_pct(feeder, findings):
        victim = _victim(feeder, findings, FEEDS)
        lost = _accelerator_wait_pct(feeder, findings, _BY_CHOICE)
        return victim.model_copy(update={"lost_pct": max(victim.lost_pct, lost)})
    busiest = max(_cpu(f) for f in threads)
    if busiest < _WORKS_PCT:
        stuck = _stuck_thread(findings)
        for finding in threads:
            if finding.subject.tid == stuck:
                return _victim(finding, findings, "stuck_thread")
    candidates = [f for f in threads if _cpu(f) >= _CANDIDATE * busiest]
    mains = [f for f in threads if f.subject.tid == f.subject.pid and (f in candidates or _active(f, findings))]
    if len(mains) == 1:
        return _victim(mains[0], findings, "main_thread")
    if mains:
        job = max(mains, key=_user).subject.comm
        peers = [f for f in mains if f.subject.comm == job]
    else:
        most = max(_user(f) for f in candidates)
        peers = [f for f in candidates if _user(f) >= _PEER * most]
    return max((_victim(f, findings, "loses_most") for f in peers), key=lambda v: v.lost_pct)


_OWN = "user"
_SYSTEM = ("system", "fault", "swap_in", "copy", "interrupt")


def victim_on_path(findings: Sequence[Finding], pid: int, tid: int, comm: str, chosen_by: str) -> Victim:
    """Return thread `tid` as the victim, with its time as the rows of its critical path account for it.

    Lost are waits that are not a normal state, time without a CPU, and running that is no progress (abnormal rows, but
    not the program's own code); of an event loop also the stretches in which it does not poll, since all other requests
    wait meanwhile.
    """
    own = [f for f in findings if f.kind in PATH_ROWS and f.subject.tid == tid]
    runs = [f for f in own if f.kind == "path.running"]
    waits = {wait: sum(f.window_pct for f in own if f.attributes.get("wait") == wait) for wait in ("cpu", "quota")}
    idle = sum(f.window_pct for f in own if f.kind == "path.wait" and f.polarity is Polarity.NORMAL)
    system = sum(f.window_pct for f in runs if f.attributes.get("mode") in _SYSTEM)
    runnable = sum(waits.values())
    waited = sum(f.window_pct for f in own if f.kind == "path.wait")
    lags = [f for f in findings if f.kind == "path.loop_lag" and f.subject.tid == tid and _bad(f)]
    lag = max((f.window_pct for f in lags), default=0.0)
    return Victim(
        pid=pid,
        tid=tid,
        comm=comm,
        chosen_by=chosen_by,
        user_pct=max(sum(f.window_pct for f in runs) - system, 0.0),
        system_pct=system,
        runnable_pct=runnable,
        blocked_pct=max(waited - idle - runnable, 0.0),
        idle_pct=idle,
        lost_pct=min(max(sum(f.window_pct for f in own if _bad(f) and not _own_code(f)), lag), 100.0),
    )


def _bad(finding: Finding) -> bool:
    return finding.polarity is Polarity.ABNORMAL


def _own_code(row: Finding) -> bool:
    return row.kind == "path.running" and row.attributes.get("mode", _OWN) == _OWN


def choose_feeder(findings: Sequence[Finding], dispatchers: Sequence[Dispatcher]) -> Victim | None:
    """Return the thread that an accelerator waits for most; None without any.

    For recordings of scheduler events alone: its times are those of the trace, which does not separate user and kernel.
    """
    waits: dict[int, float] = {}
    for row in dispatchers:
        own = [f for f in findings if _accelerator_waits_for(f, row.tid)]
        if own:
            waits[row.tid] = sum(f.window_pct for f in own if f.attributes.get("reason") not in _BY_CHOICE)
    if not waits:
        return None
    row = max((row for row in dispatchers if row.tid in waits), key=lambda row: waits[row.tid])
    runnable = row.ready_pct + row.interrupt_pct
    return Victim(
        pid=row.pid if row.pid > 0 else row.tid,
        tid=row.tid,
        comm=row.comm,
        chosen_by=FEEDS,
        user_pct=row.running_pct,
        system_pct=0.0,
        runnable_pct=runnable,
        blocked_pct=0.0,
        idle_pct=row.blocked_pct,
        lost_pct=min(max(runnable, waits[row.tid]), 100.0),
    )


def _accelerator_waits_for(finding: Finding, tid: int | None) -> bool:
    return finding.kind == "accel.host_bound" and finding.polarity is Polarity.ABNORMAL and finding.subject.tid == tid


def _accelerator_wait_pct(thread: Finding, findings: Sequence[Finding], without: frozenset[str] = frozenset()) -> float:
    """Return the share of the window in which an accelerator waited for this thread, `without` those reasons."""
    waits = (f for f in findings if _accelerator_waits_for(f, thread.subject.tid))
    return min(sum(f.window_pct for f in waits if f.attributes.get("reason") not in without), 100.0)


def _user(finding: Finding) -> float:
    return finding.metrics["user_pct"]


def _cpu(finding: Finding) -> float:
    return finding.metrics["user_pct"] + finding.metrics["system_pct"]


def _active(thread: Finding, findings: Sequence[Finding]) -> bool:
    """Return whether the thread ran, was runnable or was blocked most of the window."""
    active = _cpu(thread) + thread.metrics.get("runnable_pct", 0.0) + _blocked_pct(thread, findings, locks=False)
    return active >= _ACTIVE_PCT


def _stuck_thread(findings: Sequence[Finding]) -> int | None:
    waits = [
        f
        for f in findings
        if f.subject.tid is not None
        and f.polarity is Polarity.ABNORMAL
        and (f.attributes.get("in_flight") == "yes" or f.attributes.get("open") == "yes")
    ]
    return max(waits, key=lambda f: f.metrics["max_ms"]).subject.tid if waits else None


def _victim(thread: Finding, findings: Sequence[Finding], chosen_by: str) -> Victim:
    subject = thread.subject
    if subject.pid is None or subject.tid is None:
        raise ValueError("thread.time without a thread")
    metrics = thread.metrics
    runnable = metrics.get("runnable_pct", 0.0)
    off_cpu = max(0.0, 100.0 - _cpu(thread) - runnable)
    blocked = min(_blocked_pct(thread, findings, locks=True), off_cpu)
    spinning = sum(
        f.window_pct
        for f in findings
        if f.kind == "syscall.cpu_time" and f.subject.tid == subject.tid and f.attributes.get("syscall") == _SPINS
    )
    return Victim(
        pid=subject.pid,
        tid=subject.tid,
        comm=subject.comm or "",
        chosen_by=chosen_by,
        user_pct=metrics["user_pct"],
        system_pct=metrics["system_pct"],
        runnable_pct=runnable,
        blocked_pct=blocked,
        idle_pct=min(_idle_pct(findings, subject.tid), off_cpu - blocked),
        lost_pct=min(max(metrics["system_pct"] - spinning, 0.0) + runnable + blocked, 100.0),
    )


def _blocked_pct(thread: Finding, findings: Sequence[Finding], *, locks: bool) -> float:
    """Return the share of the window in which the thread was blocked: by its measured waits, else by samples.

    Slow file operations count too: on FUSE and NFS the thread sleeps in a state that looks idle.
    """
    own = [f for f in findings if f.subject.tid == thread.subject.tid]
    waits = sum(
        f.window_pct
        for f in own
        if f.kind in ("offcpu.blocked", "offcpu.lock_wait")
        and (f.polarity is Polarity.ABNORMAL or f.attributes.get("state") == "D")
        and (locks or f.kind != "offcpu.lock_wait")
    )
    files = sum(
        f.window_pct * (f.metrics.get("blocked_pct", 0.0) + f.metrics.get("sleep_pct", 0.0)) / 100
        for f in own
        if f.kind.startswith("file.") and f.polarity is Polarity.ABNORMAL
    )
    measured = any(f.kind.startswith("offcpu.") for f in findings)
    sampled = 0.0 if measured else thread.metrics.get("blocked_pct", 0.0)
    return max(waits, files, sampled, thread.metrics.get("block_io_pct", 0.0))


def _idle_pct(findings: Sequence[Finding], tid: int) -> float:
    """Return the share of the window in which the thread waited idle: for a timer, input, work or events."""
    return sum(
        f.window_pct
        for f in findings
        if f.kind in ("offcpu.blocked", "offcpu.lock_wait")
        and f.polarity is Polarity.NORMAL
        and f.subject.tid == tid
        and f.attributes.get("state") != "D"
    )
