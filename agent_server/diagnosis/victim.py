"""Who suffers: the thread that makes progress, and where its time went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from whystall.knowledge_base.models import Victim
from whystall.tools.contract.findings import Finding, Polarity

if TYPE_CHECKING:
    from whystall.tools.host.host_bound.data import Dispatcher

# A thread that used less CPU than this share of the busiest thread's does not carry the job.
_CARRIES = 0.2
# Below this nobody works at all, and the one that is stuck in an operation is the victim (a hang).
_WORKS_PCT = 1.0
# A main thread that works or is held up most of the time carries the job, however little CPU is left for it; one that
# mostly idles (a launcher that writes a log now and then) does not.
_HELD_PCT = 50.0
# Beside the thread that computes most, only one that computes half as much may be the victim instead.
_PEER = 0.5
_SPINS = "sched_yield"
_ANY_REASON: frozenset[str] = frozenset()
# What a thread waits for because it wants to takes nothing from it, though an accelerator idles meanwhile.
_BY_CHOICE = frozenset({"sleep", "poll", "colleague", "call", "stopped"})


def choose_victim(findings: Sequence[Finding]) -> Victim | None:
    """The victim among the threads that `findings` account for; None when there is no account of any thread.

    Threads that use CPU make progress; among those the main thread leads. Of several main threads of one program (the
    ranks of a job) it is the one that loses most, of several workers the one that loses most among those that compute
    most: a helper that writes slowly beside them stalls nobody. When none works, the thread with the longest wait in an
    operation is it, else the main thread. Where an accelerator was seen to wait for a thread, that one is the victim,
    and what the accelerator lost by no choice of the thread, it lost.
    """
    threads = [f for f in findings if f.kind == "thread.time" and f.subject.tid is not None]
    if not threads:
        return None
    if feeders := [f for f in threads if _accelerators_wait(f, findings, _ANY_REASON)]:
        feeder = max(feeders, key=lambda f: _accelerators_wait(f, findings, _ANY_REASON))
        victim = _victim(feeder, findings, "feeds_accelerator")
        return victim.model_copy(
            update={"lost_pct": max(victim.lost_pct, _accelerators_wait(feeder, findings, _BY_CHOICE))}
        )
    busiest = max(_cpu(f) for f in threads)
    if busiest < _WORKS_PCT:
        stuck = _stuck_thread(findings)
        for finding in threads:
            if finding.subject.tid == stuck:
                return _victim(finding, findings, "stuck_thread")
    carriers = [f for f in threads if _cpu(f) >= _CARRIES * busiest]
    mains = [f for f in threads if f.subject.tid == f.subject.pid and (f in carriers or _held(f, findings))]
    if len(mains) == 1:
        return _victim(mains[0], findings, "main_thread")
    if mains:
        job = max(mains, key=_user).subject.comm
        peers = [f for f in mains if f.subject.comm == job]
    else:
        most = max(_user(f) for f in carriers)
        peers = [f for f in carriers if _user(f) >= _PEER * most]
    return max((_victim(f, findings, "loses_most") for f in peers), key=lambda v: v.lost_pct)


def choose_feeder(findings: Sequence[Finding], dispatchers: Sequence[Dispatcher]) -> Victim | None:
    """Where nothing but the scheduler's events was recorded: the thread that an accelerator waits for most, by the
    trace's own account of its time, which does not tell the kernel's share.
    """
    fed = {row.tid: [f for f in findings if _waited_for(f, row.tid)] for row in dispatchers}
    waits = {
        tid: sum(f.window_pct for f in mine if f.attributes.get("reason") not in _BY_CHOICE)
        for tid, mine in fed.items()
        if mine
    }
    if not waits:
        return None
    row = max((row for row in dispatchers if row.tid in waits), key=lambda row: waits[row.tid])
    runnable = row.ready_pct + row.interrupt_pct
    return Victim(
        pid=row.pid if row.pid > 0 else row.tid,
        tid=row.tid,
        comm=row.comm,
        chosen_by="feeds_accelerator",
        user_pct=row.running_pct,
        system_pct=0.0,
        runnable_pct=runnable,
        blocked_pct=0.0,
        idle_pct=row.blocked_pct,
        lost_pct=min(max(runnable, waits[row.tid]), 100.0),
    )


def _waited_for(finding: Finding, tid: int) -> bool:
    return finding.kind == "accel.host_bound" and finding.polarity is Polarity.ABNORMAL and finding.subject.tid == tid


def _accelerators_wait(account: Finding, findings: Sequence[Finding], but: frozenset[str]) -> float:
    """Share of the window for which an accelerator waited for this thread, for other reasons than those."""
    mine = (f for f in findings if f.kind == "accel.host_bound" and f.subject.tid == account.subject.tid)
    bad = (f for f in mine if f.polarity is Polarity.ABNORMAL and f.attributes.get("reason") not in but)
    return min(sum(f.window_pct for f in bad), 100.0)


def _user(finding: Finding) -> float:
    return finding.metrics["user_pct"]


def _cpu(finding: Finding) -> float:
    return finding.metrics["user_pct"] + finding.metrics["system_pct"]


def _held(account: Finding, findings: Sequence[Finding]) -> bool:
    held = _cpu(account) + account.metrics.get("runnable_pct", 0.0) + _blocked_pct(account, findings, locks=False)
    return held >= _HELD_PCT


def _stuck_thread(findings: Sequence[Finding]) -> int | None:
    waits = [
        f
        for f in findings
        if f.subject.tid is not None
        and f.polarity is Polarity.ABNORMAL
        and (f.attributes.get("in_flight") == "yes" or f.attributes.get("open") == "yes")
    ]
    return max(waits, key=lambda f: f.metrics["max_ms"]).subject.tid if waits else None


def _victim(account: Finding, findings: Sequence[Finding], chosen_by: str) -> Victim:
    subject = account.subject
    if subject.pid is None or subject.tid is None:
        raise ValueError("thread.time without a thread")
    metrics = account.metrics
    runnable = metrics.get("runnable_pct", 0.0)
    off_cpu = max(0.0, 100.0 - _cpu(account) - runnable)
    blocked = min(_blocked_pct(account, findings, locks=True), off_cpu)
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


def _blocked_pct(account: Finding, findings: Sequence[Finding], *, locks: bool) -> float:
    """Share of the window the thread was held up: as its waits were measured, else as often as it was seen so.

    A file operation may hold it up in a state that the counters do not tell from idling (FUSE, NFS).
    """
    mine = [f for f in findings if f.subject.tid == account.subject.tid]
    waits = sum(
        f.window_pct
        for f in mine
        if f.kind in ("offcpu.blocked", "offcpu.lock_wait")
        and (f.polarity is Polarity.ABNORMAL or f.attributes.get("state") == "D")
        and (locks or f.kind != "offcpu.lock_wait")
    )
    files = sum(
        f.window_pct * (f.metrics.get("blocked_pct", 0.0) + f.metrics.get("sleep_pct", 0.0)) / 100
        for f in mine
        if f.kind.startswith("file.") and f.polarity is Polarity.ABNORMAL
    )
    measured = any(f.kind.startswith("offcpu.") for f in findings)
    seen = 0.0 if measured else account.metrics.get("blocked_pct", 0.0)
    return max(waits, files, seen, account.metrics.get("block_io_pct", 0.0))


def _idle_pct(findings: Sequence[Finding], tid: int) -> float:
    """Share of the window the thread waited without being held up: for time, input, work or events."""
    return sum(
        f.window_pct
        for f in findings
        if f.kind in ("offcpu.blocked", "offcpu.lock_wait")
        and f.polarity is Polarity.NORMAL
        and f.subject.tid == tid
        and f.attributes.get("state") != "D"
    )
