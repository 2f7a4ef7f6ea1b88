"""Build findings, and grade the share of a thread's time that was lost."""

from __future__ import annotations

from collections.abc import Mapping

from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.recording.target import Target


def severity(window_pct: float) -> Severity:
    """Return the severity of losing this share of a thread's time: from 40 % critical, from 10 % major, else minor."""
    if window_pct >= 40:
        return Severity.CRITICAL
    return Severity.MAJOR if window_pct >= 10 else Severity.MINOR


def finding(
    kind: str,
    subject: Subject,
    interval: Interval,
    metrics: Mapping[str, float | None],
    bad: Severity | None = None,
    attributes: Mapping[str, str] | None = None,
) -> Finding:
    """Return an abnormal finding of severity `bad`, or a normal one without it. Unknown (None) metrics are left out."""
    return Finding(
        kind=kind,
        subject=subject,
        interval=interval,
        metrics={name: float(value) for name, value in metrics.items() if value is not None},
        attributes=dict(attributes or {}),
        severity=bad or Severity.INFO,
        polarity=Polarity.ABNORMAL if bad else Polarity.NORMAL,
    )


def window(window_ns: int) -> Interval:
    """Return the interval of a whole window."""
    return Interval(start_ns=0, end_ns=window_ns)


def any_thread(target: Target) -> Subject:
    """Return the subject of a finding about all threads of `target`."""
    return Subject(type="thread", pid=target.sole_pid, comm=target.comm, cgroup=target.cgroup)
