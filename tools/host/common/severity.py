"""Grade the share of a thread's time that was lost."""

from __future__ import annotations

from whystall.tools.contract.findings import Severity


def severity(window_pct: float) -> Severity:
    """Return the severity of losing this share of a thread's time: from 40 % critical, from 10 % major, else minor."""
    if window_pct >= 40:
        return Severity.CRITICAL
    return Severity.MAJOR if window_pct >= 10 else Severity.MINOR
