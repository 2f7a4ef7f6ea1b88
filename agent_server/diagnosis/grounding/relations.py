"""Check a relation between two findings, or a finding and a cause, as a model claims it. Pure.

Each relation has one rule; `fault` returns what contradicts a claim, or that nothing supports it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from whystall.agent_server.diagnosis.grounding import links
from whystall.agent_server.diagnosis.grounding.links import abnormal, layer
from whystall.knowledge_base.causes import about, device_of, matches
from whystall.knowledge_base.models import Assessment, Cause, CauseState, Claim, Victim
from whystall.tools.contract.findings import Finding, Polarity

# A share may be rounded to an integer.
_ROUNDED = 0.5
# Less of a thread's time than this is no symptom of anything, percent.
_NOTICEABLE_PCT = 5.0
_HALF = 50.0
# A finding shows an order in time only if it does not span the window, as totals do; this share of it is slack.
_WHOLE = 0.001
# From this layer on a finding is about what others do, and no symptom.
_ORIGIN = 5
_DISKS = ("disk.contended", "disk.saturated", "block.")
_LOCAL = ("ext4", "xfs", "btrfs", "f2fs", "ext3", "ext2")
# From this layer on it is about what lies beneath the operations of a thread: disks, limits, memory.
_BESIDE = 3
# A finding of this layer or above may be why a cause acts; one below only shows that it does.
_WORKS = 2


@dataclass(frozen=True)
class Fault:
    """Why a claim is refused: a code (``struck`` in ``prompts/words``), and the finding that contradicts it, if any."""

    code: str
    finding: str = ""


@dataclass(frozen=True)
class CaseFacts:
    """The evidence of a case. `reliable`: ids of findings of tools verified to work; `window_ns`: length of the window
    of each finding; `assessments`: of every cause of the catalogue.
    """

    findings: Mapping[str, Finding]
    assessments: Mapping[str, Assessment]
    causes: Mapping[str, Cause]
    victim: Victim | None
    reliable: frozenset[str] = frozenset()
    window_ns: Mapping[str, int] = field(default_factory=dict)


def fault(claim: Claim, case: CaseFacts) -> Fault | None:
    """Return the fault of `claim`; None if the findings support it."""
    if claim.subject not in case.findings:
        return Fault("no_finding")
    subject = case.findings[claim.subject]
    if claim.object in case.causes:
        rule = _OF_CAUSES.get(claim.relation)
        return rule(claim, subject, case.assessments[claim.object], case) if rule else Fault("wrong_object")
    if claim.object not in case.findings:
        return Fault("no_finding")
    if claim.object == claim.subject:
        return Fault("wrong_object", claim.subject)
    between = _OF_FINDINGS.get(claim.relation)
    return between(claim, subject, case.findings[claim.object], case) if between else Fault("wrong_object")


# --- between two findings ---------------------------------------------------------------------------------------------


def _waits_for(claim: Claim, subject: Finding, other: Finding, case: CaseFacts) -> Fault | None:
    """The wait must name the thread, process, peer, file or disk that the other finding is about."""
    found = links.roles(subject, other) or links.roles_in_chain(subject, other, case.findings.values())
    if not found:
        return Fault("reversed" if links.roles(other, subject) else "not_named", subject.id)
    return Fault("role", subject.id) if claim.role and claim.role not in found else None


def _causes(claim: Claim, subject: Finding, other: Finding, case: CaseFacts) -> Fault | None:
    """The other finding must wait for the subject, or a supported cause or the same operation must tie both."""
    waits = links.waits(other, subject, case.findings.values())
    if claim.role and claim.role not in waits:
        return Fault("role", other.id)
    if not abnormal(subject) and not _evidence(subject, case):
        return Fault("normal", subject.id)
    if not abnormal(other) and not waits and not _suffers(subject, other) and not _evidence(other, case):
        return Fault("normal", other.id)
    if (waits and abnormal(subject)) or _brings_about(subject, other, case):
        return None
    if (links.waits(subject, other, case.findings.values()) and abnormal(other)) or _brings_about(other, subject, case):
        return Fault("reversed", other.id)
    return Fault("not_tied", subject.id)


def _is_symptom_of(claim: Claim, subject: Finding, other: Finding, case: CaseFacts) -> Fault | None:
    return _causes(claim, other, subject, case)


def _brings_about(subject: Finding, other: Finding, case: CaseFacts) -> bool:
    """Return whether `subject` is nearer to the origin than `other`, and tied to it."""
    # What a thread did while another one waited is no other thing than its own waits and work. Threads of a process
    # hold each other up only where one waits.
    itself = subject.kind == "path.waker" and links.same_thread(subject, other)
    a, b = subject.subject, other.subject
    beside = a.pid is not None and a.pid == b.pid and None not in (a.tid, b.tid) and a.tid != b.tid
    if itself or beside or layer(subject) <= layer(other) or _other_disk(subject, other, case):
        return False
    if other.kind != "thread.time":
        # What the catalogue calls evidence of one cause, and is not two sides of the same time.
        tied = layer(subject) >= _BESIDE or links.same_topic(subject, other, chain=True)
        if tied and any(other.id in a.for_ or _effect(other, a, case) for a in _evidence(subject, case)):
            return True
        if not (abnormal(subject) and abnormal(other) and links.same_topic(subject, other)):
            return False
    elif not _suffers(subject, other):
        return any(_suffers(case.findings[i], other) for a in _evidence(subject, case) for i in a.for_)
    if links.same_thread(subject, other):
        return links.same_object(subject, other) and subject.interval.overlaps(other.interval)
    device = subject.subject.device
    return (device is not None and device == device_of(other)) or _shared_host(subject, other)


def _effect(finding: Finding, assessment: Assessment, case: CaseFacts) -> bool:
    """Return whether an abnormal `finding` measures what evidence of a supported cause does, of the same thread.

    Time that the catalogue subtracts from a cause is that of another one.
    """
    if any(matches(pattern, finding, case.victim) for pattern in case.causes[assessment.cause].less):
        return False
    return abnormal(finding) and any(
        links.same_thread(finding, of)
        and links.topics(finding) & links.topics(of)
        and links.same_object(finding, of)
        and not (links.in_different_rows(finding, of) and finding.id != of.id)
        for of in (case.findings[i] for i in assessment.for_ if i in case.findings)
    )


def _suffers(cause: Finding, time: Finding) -> bool:
    """Return whether `time` is the account of the thread of `cause`, with a noticeable share of what that brings."""
    return time.kind == "thread.time" and links.same_thread(cause, time) and _limit(cause, time) >= _NOTICEABLE_PCT


def _other_disk(subject: Finding, other: Finding, case: CaseFacts) -> bool:
    """Return whether `subject` is about a disk that `other` does not use, as far as is known, or a process beside none.

    If no finding of the case names the disk of a file (older recordings), the only slow disk counts for files on
    local file systems.
    """
    findings = case.findings.values()
    if subject.kind == "disk.neighbour" and not other.kind.startswith(_DISKS):
        disks = [f for f in findings if f.kind.startswith(_DISKS) and abnormal(f)]
        return all(_other_disk(disk, other, case) for disk in disks)
    if not subject.kind.startswith(_DISKS) or subject.subject.device is None:
        return False
    alike = [f for f in findings if links.same_thread(f, other) and links.same_object(f, other) and abnormal(f)]
    known = {device_of(other)} - {None} or {device_of(f) for f in alike if f.kind.startswith("file.")} - {None}
    if known or other.kind.startswith(_DISKS):
        return subject.subject.device not in known
    if any(f.attributes.get("device") for f in findings):
        return True
    slow = {f.subject.device for f in findings if f.kind.startswith(_DISKS) and abnormal(f)}
    local = other.kind == "process.io_wait" or other.attributes.get("filesystem") in _LOCAL
    return len(slow) > 1 or not local


def _shared_host(subject: Finding, other: Finding) -> bool:
    """Return whether a process beside the target makes the CPUs of the host busy."""
    return (subject.kind, other.kind) == ("cpu.neighbour", "cpu.saturated")


def _explains(claim: Claim, subject: Finding, other: Finding, case: CaseFacts) -> Fault | None:
    """The share must not exceed what either finding measured, and they must measure the same time."""
    share = subject.window_pct
    if share <= 0.0:
        return Fault("share", subject.id)
    waits = links.waits(other, subject, case.findings.values())
    parts = links.in_different_rows(subject, other)
    same = links.same_thread(subject, other) and links.same_object(subject, other) and not parts
    if not waits and not (same and links.same_topic(subject, other)):
        return Fault("reversed" if links.roles(subject, other) else "not_tied", subject.id)
    if not waits and (layer(subject) < layer(other) or subject.kind == "path.waker"):
        return Fault("reversed", other.id)
    limit, claimed = _limit(subject, other), claim.share_pct or 0.0
    if claimed > share + _ROUNDED:
        return Fault("share", subject.id)
    return Fault("share", other.id) if limit <= 0.0 or claimed > limit + _ROUNDED else None


def _limit(subject: Finding, other: Finding) -> float:
    """Return the most that `subject` can explain of what `other` measured, in percent of the window."""
    if other.kind != "thread.time":
        return other.window_pct
    own = {name: other.metrics.get(f"{name}_pct", 0.0) for name in ("user", "system", "runnable", "blocked")}
    topics = links.topics(subject)
    if "running" in topics:
        return own["user"] + own["system"]
    if "cpu" in topics:
        return own["runnable"]
    # A sleep that a signal may interrupt is in none of the four.
    uninterruptible = subject.attributes.get("state") == "D" or subject.metrics.get("sleep_pct", 0.0) < _HALF
    slept = not ("storage" in topics and uninterruptible)
    return own["blocked"] + (100.0 - sum(own.values()) if slept else 0.0)


def _precedes(claim: Claim, subject: Finding, other: Finding, case: CaseFacts) -> Fault | None:
    """The subject must begin before the other finding, and neither may be a total of the whole window."""
    for finding in (subject, other):
        window = case.window_ns.get(finding.id, 0)
        if finding.interval.start_ns <= _WHOLE * window and finding.interval.end_ns >= (1 - _WHOLE) * window:
            return Fault("no_instant", finding.id)
    return None if subject.interval.start_ns < other.interval.start_ns else Fault("order", other.id)


# --- between a finding and a cause ------------------------------------------------------------------------------------


def _evidence(finding: Finding, case: CaseFacts) -> list[Assessment]:
    """Return the supported causes that `finding` is evidence for."""
    return [a for a in case.assessments.values() if a.state is CauseState.SUPPORTED and finding.id in a.for_]


def _supported(subject: Finding, cause: Assessment, case: CaseFacts) -> Fault | None:
    if cause.state is CauseState.SUPPORTED:
        if subject.id in cause.for_:
            files = [f for i in cause.for_ if (f := case.findings.get(i)) and f.kind.startswith("file.")]
            beside = files and all(_other_disk(subject, of, case) for of in files)
            return Fault("not_tied", subject.id) if beside else None
        return Fault("normal" if not abnormal(subject) else "not_evidence", subject.id)
    if cause.state is CauseState.NOT_EXAMINED:
        return Fault("not_examined")
    return Fault("contradicted", cause.against[0] if cause.against else "")


def _causes_cause(claim: Claim, subject: Finding, cause: Assessment, case: CaseFacts) -> Fault | None:
    """The finding must be evidence for the cause, and more than a symptom of it if another one is."""
    wrong = _supported(subject, cause, case)
    about = case.causes[cause.cause]
    needed = {p.kind for p in (*about.primary, *about.required, *about.culprits)} | {"path.waker"}
    if wrong is not None or layer(subject) >= (_WORKS if subject.kind in needed else _BESIDE):
        return wrong
    if layer(subject) == 0:
        return Fault("reversed", subject.id)
    deeper = [i for i in cause.for_ if i in case.findings and layer(case.findings[i]) >= _WORKS]
    return Fault("reversed", deeper[0]) if deeper else None


def _symptom_of_cause(claim: Claim, subject: Finding, cause: Assessment, case: CaseFacts) -> Fault | None:
    """The finding must be evidence for the cause, or measure what such evidence does, and be about who suffers."""
    if cause.state is CauseState.SUPPORTED and subject.id not in cause.for_:
        evidence = [case.findings[i] for i in cause.for_ if i in case.findings]
        if _effect(subject, cause, case) or any(_suffers(of, subject) for of in evidence):
            return None
    wrong = _supported(subject, cause, case)
    return wrong or (Fault("reversed", subject.id) if layer(subject) >= _ORIGIN else None)


def _explains_cause(claim: Claim, subject: Finding, cause: Assessment, case: CaseFacts) -> Fault | None:
    """The finding must be evidence for the cause, and have measured that share."""
    wrong = _supported(subject, cause, case)
    if wrong is not None:
        return wrong
    if subject.window_pct <= 0.0:
        return Fault("share", subject.id)
    if claim.share_pct is not None and claim.share_pct > min(subject.window_pct, cause.window_pct) + _ROUNDED:
        return Fault("share", subject.id)
    return None


def _rules_out(claim: Claim, subject: Finding, cause: Assessment, case: CaseFacts) -> Fault | None:
    """The finding must be one that the catalogue takes for a refutation, or be all that the cause needs, and normal."""
    if cause.state is CauseState.SUPPORTED:
        return Fault("contradicted", cause.for_[0])
    if subject.id not in case.reliable:
        return Fault("not_examined", subject.id)
    if not abnormal(subject):
        for other in case.findings.values():
            if other.kind == subject.kind and abnormal(other) and _concerns(other, case):
                return Fault("contradicted", other.id)
    if subject.id in cause.against:
        return None
    if cause.state is CauseState.NOT_EXAMINED:
        return Fault("not_examined")
    return None if _lacks(subject, case.causes[cause.cause], case) else Fault("not_covered", subject.id)


def _concerns(finding: Finding, case: CaseFacts) -> bool:
    return case.victim is not None and about(finding, case.victim)


def _lacks(subject: Finding, cause: Cause, case: CaseFacts) -> bool:
    """Return whether `subject` shows that something the cause needs is normal, and all its alternatives are too."""
    if subject.polarity is not Polarity.NORMAL or not _concerns(subject, case):
        return False
    findings = [f for f in case.findings.values() if f.id in case.reliable and _concerns(f, case)]
    for group in (cause.primary, cause.required):
        if any(pattern.polarity is Polarity.NORMAL for pattern in group):
            continue
        needed = {pattern.kind for pattern in group}
        measured = {kind: [f for f in findings if f.kind == kind] for kind in needed}
        if subject.kind in needed and all(
            found and not any(map(abnormal, found)) and not kind.startswith("path.") for kind, found in measured.items()
        ):
            return True
    return False


_OF_FINDINGS: Mapping[str, Callable[[Claim, Finding, Finding, CaseFacts], Fault | None]] = {
    "causes": _causes,
    "waits_for": _waits_for,
    "explains_share_of": _explains,
    "is_symptom_of": _is_symptom_of,
    "precedes": _precedes,
}
_OF_CAUSES: Mapping[str, Callable[[Claim, Finding, Assessment, CaseFacts], Fault | None]] = {
    "causes": _causes_cause,
    "explains_share_of": _explains_cause,
    "is_symptom_of": _symptom_of_cause,
    "rules_out": _rules_out,
}
