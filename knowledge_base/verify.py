"""Compares the findings of the same observation before and after a fix. Pure functions."""

from __future__ import annotations

from whystall.knowledge_base.models import Diagnosis, Verdict
from whystall.knowledge_base.signatures import evidence
from whystall.knowledge_base.ticket_models import Check, Verification
from whystall.tools.contract.findings import Finding, Polarity, Subject

# A fix worked if its finding is gone or at most this share of its former size.
_SOLVED = 0.5
# Coverage gaps that make an absent finding inconclusive.
_BLIND = (
    *("events_lost", "cut_short", "target_exited", "target_oom_killed", "not_proven", "sampled", "not_permitted"),
    "no_engine",
)
# Kinds whose presence proves that the key was measured: the page cache, or all waits of a thread, were observed.
_PROOF = {
    "process.io_wait": ("path.running", "path.wait", "offcpu.blocked"),
    "cache.streaming": ("cache.use", "memory.reclaim_stall"),
    "cache.thrash": ("cache.use", "memory.reclaim_stall"),
}
# A periodic stall that is absent proves nothing unless the window covers this many periods.
_PERIODS = 2.0
_PREFERRED = ("p50_ms", "max_ms", "util_pct", "psi_some_pct", "rate")


def compare(before: Diagnosis, after: Diagnosis) -> Verification:
    """Return what became of the evidence of `before` in `after`.

    `solved`: True if every finding is at most half of its size, gone, or no longer delays the victim; False if one is
    not; None if `after` is inconclusive: `missing` has the reasons (``no_evidence``, ``no_victim``, ``not_measured``,
    ``too_short``, ``no_load``, or codes of `BLIND_SPOTS`). A finding still present counts even with gaps in coverage.
    """
    wanted = evidence(before)
    checks = [check for finding in wanted if (check := _check(finding, after)) is not None]
    if any(not check.improved for check in checks):
        return Verification(at=after.created, checks=checks, solved=False)
    missing = _missing(wanted, checks, after)
    return Verification(at=after.created, checks=checks, solved=None if missing else True, missing=missing)


def _check(finding: Finding, after: Diagnosis) -> Check | None:
    """Compare `finding` with its counterpart in `after`; None if it has no number."""
    name = _measure(finding)
    if name is None:
        return None
    now = [
        f.metrics[name]
        for f in after.findings
        if f.fingerprint == finding.fingerprint and name in f.metrics and not _harmless(f, after)
    ]
    value, old = max(now, default=None), finding.metrics[name]
    return Check(
        fingerprint=finding.fingerprint,
        kind=finding.kind,
        subject=describe(finding.subject),
        metric=name,
        unit=finding.spec.metrics[name],
        before=old,
        after=value,
        improved=value is None or value <= _SOLVED * old,
    )


def _of_ranks(finding: Finding) -> bool:
    """Return whether its kind is measured whenever ranks are found to be even."""
    return finding.spec.subject in ("rank", "job")


def _harmless(finding: Finding, after: Diagnosis) -> bool:
    """Return whether `finding` is about another thread than the healthy victim: a checkpoint moved to the background is
    as slow as before, and delays nothing.
    """
    tid, victim = finding.subject.tid, after.victim
    return after.verdict is Verdict.HEALTHY and victim is not None and tid is not None and tid != victim.tid


def describe(subject: Subject) -> str:
    """Return the subject in a few words: its file, device, cgroup or command."""
    if subject.rank is not None:
        return f"rank {subject.rank}"
    return subject.path or subject.device or subject.cgroup or subject.comm or subject.type


def _measure(finding: Finding) -> str | None:
    """Return the metric that measures `finding`: its share of the window, else a latency, else the first."""
    share = finding.spec.share
    names = [*([share] if share else []), *_PREFERRED, *finding.spec.metrics]
    return next((name for name in names if name in finding.metrics), None)


def _missing(wanted: list[Finding], checks: list[Check], after: Diagnosis) -> list[str]:
    missing = [] if checks else ["no_evidence"]
    if after.victim is None:
        missing.append("no_victim")
    # A tool that measured a kind as normal emits a normal finding; the absence of any finding proves nothing.
    measured = {f.kind for f in after.findings}
    even = any(f.kind == "rank.even" and f.polarity is Polarity.NORMAL for f in after.findings)
    unseen = [f for f in wanted if measured.isdisjoint((f.kind, *_PROOF.get(f.kind, ())))]
    if any(not (even and _of_ranks(finding)) for finding in unseen):
        missing.append("not_measured")
    if after.verdict is Verdict.IDLE:  # under load the fault may still be there
        missing.append("no_load")
    window = max((coverage.window_s for coverage in after.coverage), default=0.0)
    if window < _PERIODS * max((f.metrics.get("period_s", 0.0) for f in wanted), default=0.0):
        missing.append("too_short")
    seen = {spot.code for coverage in after.coverage for spot in coverage.not_seen}
    return missing + [code for code in _BLIND if code in seen]
