"""How bad a share of a thread's time is."""

from __future__ import annotations

from whystall.tools.contract.findings import Severity


def severity(window_pct: float) -> Severity:
    """Severity by the share of a thread's time that was lost: 40 % and more critical, 10 % major, else minor."""
    if window_pct >= 40:
        return Severity.CRITICAL
    return Severity.MAJOR if window_pct >= 10 else Severity.MINOR
