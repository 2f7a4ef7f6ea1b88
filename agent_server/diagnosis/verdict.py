"""Conclude from assessed causes: the verdict, its cause and its evidence. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from whystall.agent_server.diagnosis.victim import PATH_ROWS
from whystall.knowledge_base.causes import about, device_of, matches
from whystall.knowledge_base.models import Assessment, Cause, CauseState, Verdict, Victim
from whystall.tools.contract.findings import Finding, Polarity, Severity
from whystall.tools.contract.kinds import Mechanism
from whystall.tools.contract.result import BlindSpot
from whystall.tools.contract.text import path_pattern

# Losing less of a thread's time than this is no stall: step times vary as much on a healthy host.
STALL_PCT = 5.0
# Share of the victim's lost time that a cause must explain.
_CONFIRMED_PCT = 50.0
_LIKELY_PCT = 25.0
# Losing less than this share of the time in which it has something to do slows no job down noticeably: healthy programs
# lose as much to waits of all kinds, and one observation cannot tell whether that is new.
_NOTICED_PCT = 10.0
# A cause that explains this share of what the leading cause explains is a rival.
_RIVAL = 0.5
# An ordinary cause does not lead if another cause takes this share of the window.
_OTHER_PCT = 10.0
# Kinds of waiting for a CPU. A runnable thread is neither blocked nor running: causes of this part of the lost time are
# no rivals of causes of the rest.
_RUNNABLE = (
    *("sched.runqueue_delay", "offcpu.preempted", "sched.preempted_by", "sched.wakeup_latency", "sched.throttled"),
    *("sched.queue_latency", "sched.migrations", "irq.steal"),
)
# A more specific cause leads if it explains this share of what the strongest explains. Sampling measures each call too
# short by up to two periods, so the share of sampled calls is a lower bound.
_NEARLY, _NEARLY_SAMPLED = 0.7, 0.25
# The same for a cause that explains a part of the very wait that the strongest cause names.
_NEARLY_SAME_WAIT = 0.5
# What runs within a function counts as an effect of its work below this share of it.
_SIDE_EFFECT = 0.5
# More idle time than this without a sleep is not healthy: the job may wait for something that was not observed.
_IDLE_PCT = 50.0
_SLEEPS = ("nanosleep", "clock_nanosleep")
# Waiting this long for other threads of the job is not healthy: they may be the slow ones.
_WAITS_PCT = 25.0
# A process that waits at its poll for more than this share of the window is idle.
_NOTHING_ASKED_PCT = 85.0
# A thread that sleeps for this share, and only looks for work in between.
_LOOKS_PCT = 50.0
# A process that runs for more than this share of the window handles requests.
_SERVES_PCT = 3.0
# What a thread did at the end of a chain of waits, if it was not observed there.
_NOT_FOLLOWED = ("unknown", "not_followed")
# A thread that runs for this share does its own work for most of the time.
_WORKS_PCT = 50.0
# Least share of a wait that the thread at the end of its chain must account for to confirm it.
_MOSTLY = 0.6
# Samples show where time went, trials what could be done, metrics of a server which requests suffer: none confirms a
# cause.
_NO_EVIDENCE = (Mechanism.SAMPLES, Mechanism.TRIAL, Mechanism.METRICS)
# Blind spots that exclude `confirmed`; also the codes in `Conclusion.missing`.
_WEAKENS = ("sampled", "events_lost", "no_engine", "not_permitted", "other_time")

ONE_SOURCE = "one_source"
"""Code in `Conclusion.missing`: all findings come from one set of traces. A tracer that errs in the time of an
operation errs in what ran beside it too, so that its findings do not confirm each other."""


@dataclass(frozen=True)
class Conclusion:
    """A verdict with its cause. `chain`: ids of its evidence; `missing`: codes of what a higher verdict lacks."""

    verdict: Verdict
    cause: str | None = None
    explained_pct: float = 0.0
    severity: Severity = Severity.INFO
    chain: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def conclude(
    causes: Mapping[str, Cause],
    assessments: Sequence[Assessment],
    findings: Sequence[Finding],
    victim: Victim | None,
    blind: Sequence[BlindSpot],
    preferred: str | None = None,
    *,
    reported: Literal["", "hangs", "slow"] = "",
) -> Conclusion:
    """Return the verdict on `assessments`, which are in the order of `assess`. `reported`: what the symptom says.

    The leading cause is ``confirmed`` if nothing is missing: a second mechanism, half of the lost time explained, a
    victim, no rival, and no blind spot that matters. `preferred`: name this cause instead if it is a rival of the
    leading one.
    """
    by_id = {f.id: f for f in findings}
    weak = [code for code in _WEAKENS if any(spot.code == code for spot in blind)]
    leader = _leader(causes, assessments, by_id, _NEARLY_SAMPLED if "sampled" in weak else _NEARLY)
    unexamined = [a for a in assessments if a.state is CauseState.NOT_EXAMINED]
    if leader is None:
        exited = any(spot.code in ("target_exited", "target_oom_killed") for spot in blind)
        if victim is not None and any(f.kind in PATH_ROWS and f.subject.tid == victim.tid for f in findings):
            found = _by_path(victim, findings, weak, exited, reported)
        else:
            found = _without_cause(victim, findings, weak, bool(unexamined), exited)
        if reported == "hangs" and found.verdict is Verdict.HEALTHY:
            return Conclusion(verdict=Verdict.INCONCLUSIVE, missing=["symptom_not_observed"])
        return found
    rivals = _rivals(causes, leader, assessments, by_id)
    if preferred in rivals:
        leader = next(a for a in assessments if a.cause == preferred)
    evidence = [by_id[i] for i in leader.for_]
    confirming = _confirming(evidence)
    missing = list(weak)
    if confirming is None:
        missing.append("second_mechanism")
    if leader.explained_pct < _CONFIRMED_PCT:
        missing.append("low_explained_share")
    small = _is_small(causes[leader.cause], leader, victim)
    if small:
        missing.append("small_share")
    if victim is None:
        missing.append("no_victim")
    if rivals or unexamined:
        missing.append("rivals_open")
    waits = _waits_pct(victim, findings, leader.for_) if victim is not None and not _on_path(evidence) else 0.0
    if waits and waits >= _RIVAL * leader.window_pct:
        missing.append("waits_for_thread")
    if not _tied(causes[leader.cause], evidence, victim):
        missing.append("not_tied")
    first = evidence[0]
    if not missing:
        verdict = Verdict.CONFIRMED
    # a small part of the time is the answer to a symptom that is about it
    elif (
        victim is not None
        and not small
        and (leader.explained_pct >= _LIKELY_PCT or _is_asked_about(causes[leader.cause], first, victim))
    ):
        verdict = Verdict.LIKELY
    else:
        verdict = Verdict.INCONCLUSIVE
    chain = [first.id, *([confirming.id] if confirming else []), *(f.id for f in evidence[1:] if f is not confirming)]
    return Conclusion(
        verdict=verdict,
        cause=leader.cause,
        explained_pct=leader.explained_pct,
        severity=first.severity,
        chain=chain,
        missing=missing,
    )


def _leader(
    causes: Mapping[str, Cause], assessments: Sequence[Assessment], by_id: Mapping[str, Finding], nearly: float
) -> Assessment | None:
    """Return the supported cause that explains most, or a more specific one that explains nearly as much."""
    stalls = [a for a in assessments if a.state is CauseState.SUPPORTED and a.window_pct >= causes[a.cause].stall_pct]
    if not stalls:
        return None
    ordinary = [a for a in stalls if causes[a.cause].ordinary]
    faults = [a for a in stalls if a not in ordinary and not any(_is_side_effect(by_id, a, of) for of in ordinary)]
    stalls = [*faults, *ordinary]
    # A cause that the symptom selected counts at any size.
    if any(a.window_pct >= _OTHER_PCT or causes[a.cause].symptoms for a in faults):
        stalls = faults
    most = max(stalls, key=lambda a: a.explained_pct)
    within = min(nearly, _NEARLY_SAME_WAIT)
    close = [
        a for a in stalls if a.explained_pct >= (within if a.for_[0] == most.for_[0] else nearly) * most.explained_pct
    ]
    return max(close, key=lambda a: (causes[a.cause].specificity, a.explained_pct))


def _is_asked_about(cause: Cause, first: Finding, victim: Victim) -> bool:
    """Return whether the symptom is about the cause, or about its first finding, which need not cost time yet."""
    return bool(cause.symptoms) or any(p.symptoms and matches(p, first, victim) for p in cause.primary)


def _is_small(cause: Cause, leader: Assessment, victim: Victim | None) -> bool:
    """Return whether a cause takes too little of the thread's time to be what somebody noticed.

    Causes of short pauses, and those about which the symptom asks, count at any size.
    """
    if cause.symptoms or cause.stall_pct < STALL_PCT:
        return False
    busy = 100.0 - victim.idle_pct if victim is not None else 100.0
    return leader.window_pct < _NOTICED_PCT * busy / 100.0


def _is_side_effect(by_id: Mapping[str, Finding], one: Assessment, of: Assessment) -> bool:
    """Return whether `one` is part of `of`, or what running its function brings about, and far less than it: who makes
    many objects also runs the garbage collector; who gives memory back spends time in munmap."""
    first, other = by_id[one.for_[0]], by_id[of.for_[0]]
    same = first.attributes.get("function", "") == other.attributes.get("function") != ""
    running = first.kind == other.kind == "path.running" and same
    return (running or first.id in of.for_) and one.window_pct < _SIDE_EFFECT * of.window_pct


def _rivals(
    causes: Mapping[str, Cause], leader: Assessment, assessments: Sequence[Assessment], by_id: Mapping[str, Finding]
) -> list[str]:
    """Return the other supported causes that could explain the same time.

    No rivals: causes of another part of the time, less specific ones that rest on the leader's own evidence, and what
    healthy programs show too.
    """
    own = set(leader.for_)
    first = by_id[leader.for_[0]]
    return [
        a.cause
        for a in assessments
        if a is not leader
        and a.state is CauseState.SUPPORTED
        and a.window_pct >= STALL_PCT
        and (causes[leader.cause].ordinary or not causes[a.cause].ordinary)
        and a.explained_pct >= _RIVAL * leader.explained_pct
        and _same_part(first, by_id[a.for_[0]])
        and (
            a.cause in causes[leader.cause].rivals
            or not (set(a.for_) & own and causes[a.cause].specificity < causes[leader.cause].specificity)
        )
    ]


def _same_part(first: Finding, other: Finding) -> bool:
    """Return whether two findings may account for the same time: rows of the critical path share none."""
    if first.kind in PATH_ROWS and other.kind in PATH_ROWS:
        return first.id == other.id
    return _runnable(first) is _runnable(other)


def _runnable(finding: Finding) -> bool:
    return finding.kind in _RUNNABLE or finding.attributes.get("wait") in ("cpu", "quota")


def _tied(cause: Cause, evidence: Sequence[Finding], victim: Victim | None) -> bool:
    """Return whether what the cause requires was observed on the victim: a slow disk may be slow for others only."""
    own = [p for p in cause.required if p.victim]
    return not cause.required or any(matches(p, f, victim) for p in own for f in evidence)


def _on_path(evidence: Sequence[Finding]) -> bool:
    return any(f.kind.startswith("path.") for f in evidence)


def _by_path(
    victim: Victim, findings: Sequence[Finding], weak: list[str], exited: bool, reported: Literal["", "hangs", "slow"]
) -> Conclusion:
    """Return the verdict on a thread whose whole time is accounted for, if no cause is supported.

    ``idle``: it waits at its poll, and no request is unanswered. ``healthy``: it does its own work; if it is `reported`
    to be slow, one observation cannot tell whether that work has grown. What a server waits for is requests; if any
    other process is reported to be slow or to hang, whether it waits for too long cannot be told either. Else
    ``inconclusive``, with the reasons.
    """
    if exited:
        return Conclusion(verdict=Verdict.INCONCLUSIVE, missing=[*weak, "target_exited"])
    own = [f for f in findings if f.kind in PATH_ROWS and f.subject.tid == victim.tid]
    if sum(f.window_pct for f in own if f.attributes.get("between")) >= _LOOKS_PCT:
        return Conclusion(verdict=Verdict.INCONCLUSIVE, missing=[*weak, "looks_for_work"])
    served = [f.metrics["requests_in_flight"] for f in own if "requests_in_flight" in f.metrics]
    in_flight = max(served, default=0.0)
    runs = victim.user_pct + victim.system_pct
    events = sum(f.window_pct for f in own if f.attributes.get("wait") == "events")
    if reported and events >= _IDLE_PCT and not served and victim.lost_pct < 2 * STALL_PCT:
        return Conclusion(verdict=Verdict.INCONCLUSIVE, missing=[*weak, "waits_for_events"])
    if victim.idle_pct >= _NOTHING_ASKED_PCT and victim.lost_pct < STALL_PCT and runs < _SERVES_PCT:
        if in_flight:
            return Conclusion(verdict=Verdict.INCONCLUSIVE, missing=[*weak, "requests_unanswered"])
        return Conclusion(verdict=Verdict.IDLE)
    unknown = sum(f.window_pct for f in own if f.attributes.get("wait") in ("unknown", "other"))
    if victim.lost_pct < 2 * STALL_PCT and unknown < STALL_PCT:
        if reported == "slow" and runs >= _WORKS_PCT:
            return Conclusion(verdict=Verdict.INCONCLUSIVE, missing=["own_work"])
        return Conclusion(verdict=Verdict.HEALTHY)
    missing = [*weak, "unexplained_loss"]
    waits = [f for f in own if "root_by" in f.attributes]
    if sum(f.window_pct for f in waits) >= _WAITS_PCT:
        longest = max(waits, key=lambda f: f.window_pct)
        unseen = longest.attributes.get("root_wait") in _NOT_FOLLOWED
        missing.append("waits_for_thread" if unseen else "awaited_unexplained")
    if unknown >= STALL_PCT:
        missing.append("idle_unexplained")
    return Conclusion(verdict=Verdict.INCONCLUSIVE, missing=missing)


def _without_cause(
    victim: Victim | None, findings: Sequence[Finding], weak: list[str], unexamined: bool, exited: bool
) -> Conclusion:
    """Return ``healthy``, or ``inconclusive`` with the reasons. A job that exited in the window is not healthy."""
    idle, waits = (_unexplained_idle(victim, findings), _waits_pct(victim, findings)) if victim else (0.0, 0.0)
    delayed = victim.system_pct + victim.runnable_pct + victim.blocked_pct if victim else 100.0
    if not exited and delayed < STALL_PCT and idle < _IDLE_PCT and waits < _WAITS_PCT:
        # The kernel's own counters leave nothing to explain, however coarse the other measurements.
        return Conclusion(verdict=Verdict.HEALTHY)
    missing = [*weak, *(["target_exited"] if exited else [])]
    if victim is None:
        missing.append("no_victim")
    else:
        if victim.lost_pct >= 2 * STALL_PCT:
            missing.append("unexplained_loss")
        if idle >= _IDLE_PCT:
            missing.append("idle_unexplained")
        if waits >= _WAITS_PCT:
            missing.append("waits_for_thread")
    if unexamined:
        missing.append("rivals_open")
    return Conclusion(verdict=Verdict.INCONCLUSIVE if missing else Verdict.HEALTHY, missing=missing)


def _unexplained_idle(victim: Victim, findings: Sequence[Finding]) -> float:
    """Return the share of the window in which the victim was idle without sleeping on purpose, in percent.

    0 for a thread that feeds an accelerator which does not wait for it.
    """
    if any(f.kind == "accel.host_bound" and f.polarity is Polarity.NORMAL and about(f, victim) for f in findings):
        return 0.0
    slept = sum(
        f.window_pct
        for f in findings
        if f.kind == "offcpu.blocked" and f.subject.tid == victim.tid and f.attributes.get("syscall") in _SLEEPS
    )
    return 100.0 - victim.user_pct - victim.system_pct - victim.runnable_pct - victim.blocked_pct - slept


def _waits_pct(victim: Victim, findings: Sequence[Finding], explained: Sequence[str] = ()) -> float:
    """Return the share of the window in which the victim waited for other threads, without findings in `explained`."""
    return sum(
        f.window_pct
        for f in findings
        if f.kind == "offcpu.lock_wait" and f.subject.tid == victim.tid and f.id not in explained
    )


def _confirming(evidence: Sequence[Finding]) -> Finding | None:
    """Return the finding that confirms the first one: another mechanism, the same subject, overlapping in time."""
    first = evidence[0]
    if first.spec.mechanism in _NO_EVIDENCE:
        return None
    for other in evidence[1:]:
        if (
            other.polarity is Polarity.ABNORMAL
            and other.spec.mechanism not in (first.spec.mechanism, *_NO_EVIDENCE)
            and _supports(first, other)
            and other.interval.overlaps(first.interval)
        ):
            return other
    return None


def _supports(first: Finding, other: Finding) -> bool:
    """Return whether `other` measures what `first` does: the same subject, the two ends of a wait, or the disk
    of the file that the thread at its end waits for."""
    if other.spec.mechanism is Mechanism.WAKER:
        return _ends_wait(first, other)
    if first.spec.mechanism is Mechanism.WAKER:
        return _ends_wait(other, first) or (other.subject.device is not None and agree(first, other))
    return agree(first, other)


def _ends_wait(wait: Finding, waker: Finding) -> bool:
    """Return whether `waker` is about the thread that most of `wait` ends in, whose own switches were recorded."""
    tid = wait.subject.tid
    same = tid is not None and waker.attributes.get("waiter", "").endswith(f"({tid})")
    return (
        same
        and waker.attributes.get("via") == wait.attributes.get("function")
        and (waker.window_pct >= _MOSTLY * wait.window_pct)
    )


def agree(first: Finding, other: Finding) -> bool:
    """Return whether two findings are about the same subject. What only one of them names does not matter, except a
    device that only `other` names: it must be that of the first one's file.
    """
    a, b = first.subject, other.subject
    both = ((getattr(a, name), getattr(b, name)) for name in ("rank", "cgroup", "pid", "tid"))
    if any(x != y and None not in (x, y) for x, y in both):
        return False
    if b.device is not None and b.device != device_of(first):
        return False
    if a.path is not None and b.path is not None and path_pattern(a.path) != path_pattern(b.path):
        return False
    calls, others = _calls(first), _calls(other)
    return not calls or not others or bool(calls & others)


def _calls(finding: Finding) -> set[str]:
    """Return the system calls that a finding names; none for the page cache, which knows only reads and writes."""
    if finding.spec.mechanism in (Mechanism.PAGES, Mechanism.TRIAL):
        return set()
    words = finding.attributes
    return {call for call in (words.get("syscall", ""), *words.get("operations", "").split("+")) if call}
