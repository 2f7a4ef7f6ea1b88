"""Judge reclaim: a cgroup whose limit is too small for the files in use, and kswapd."""

from __future__ import annotations

from whystall.tools.contract.findings import Finding, Subject
from whystall.tools.host.common.cache_measures import Cgroup, Measures
from whystall.tools.host.common.cache_streams import KSWAPD_PCT, RECLAIMS, STALL_PCT, Judged, grade
from whystall.tools.host.common.findings import finding, severity, window
from whystall.tools.recording.target import Target

# Usage is a single reading, which may be just after a reclaim.
_FULL_PCT = 90.0
# Share of time in which the cgroup's tasks stalled on memory (PSI, Documentation/accounting/psi.rst).
_PSI_PCT = 5.0
# Share of the host's memory; with less available, a larger cgroup limit would only move the shortage.
_LEFT_PCT = 10.0
_FINDINGS = 8


def memory_findings(m: Measures, judged: Judged, target: Target, *, sure: bool) -> list[Finding]:
    """Return findings about cgroups with a limit and about kswapd. `sure`: no page cache event was missed."""
    limited = [c for c in m.cgroups if c.row.limit_bytes is not None]
    found = [one for c in limited if (one := _limit(c, m, judged, target, sure=sure)) is not None]
    return found[:_FINDINGS] + _kswapd(m)


def _limit(c: Cgroup, m: Measures, judged: Judged, target: Target, *, sure: bool) -> Finding | None:
    limit = c.row.limit_bytes or 0
    full = c.row.usage_bytes is not None and 100 * c.row.usage_bytes >= _FULL_PCT * limit
    hit = bool(c.limit_hits) or bool(c.reclaimed)
    inside = [u for u, _ in judged.thrash if m.scope(u.pid) == c.path]
    streams = [s for s in judged.accused if m.scope(s.use.pid) == c.path]
    waits = [
        100 * s.total_ns / max(m.window_ns, 1)
        for s in m.stalls
        if s.what in RECLAIMS and s.what != "direct_reclaim" and m.scope(s.pid) == c.path
    ]
    worst, psi = max(waits, default=0.0), c.row.psi_some_pct or 0.0
    refault_pct = _refault_pct(c, m)
    bad = None
    if full and hit and _host_has_free_memory(m) and (inside or not streams):
        if inside:
            bad = max([severity(max(worst, psi)), *(grade(u, m) for u in inside)], key=lambda g: g.rank)
        elif worst >= STALL_PCT or psi >= _PSI_PCT:
            bad = severity(max(worst, psi))
    suffers = bool(inside) or worst >= STALL_PCT or psi >= _PSI_PCT or bool(streams)
    if bad is None and (suffers or not sure or c.row.usage_bytes is None):
        return None  # the limit may be part of a problem, or events were missed
    metrics = {
        "limit_bytes": limit,
        "usage_bytes": c.row.usage_bytes,
        "anon_bytes": c.row.anon_bytes,
        "file_bytes": c.row.file_bytes,
        "refault_rate": c.row.refault_rate,
        "reclaim_rate": c.row.reclaim_rate,
        "refault_pct": refault_pct,
        "limit_hit_rate": c.row.limit_hit_rate,
        "psi_some_pct": c.row.psi_some_pct,
        "host_available_bytes": m.host.available_bytes,
    }
    subject = Subject(type="cgroup", cgroup=c.path, pid=target.sole_pid, comm=target.comm)
    return finding("cache.limit_small", subject, window(m.window_ns), metrics, bad)


def _refault_pct(c: Cgroup, m: Measures) -> float | None:
    """Return the share of the pages added by the cgroup's processes that had been evicted shortly before, percent."""
    own = [u for u in m.uses if m.scope(u.pid) == c.path]
    added = sum(u.added for u in own)
    return 100 * sum(u.back for u in own) / added if added else None


def _host_has_free_memory(m: Measures) -> bool:
    if m.host.available_bytes is None or not m.memory_bytes:
        return False
    return 100 * m.host.available_bytes >= _LEFT_PCT * m.memory_bytes


def _kswapd(m: Measures) -> list[Finding]:
    pct = m.host.kswapd_cpu_pct
    if pct is None:
        return []
    bad = severity(pct / 2) if pct >= KSWAPD_PCT else None
    metrics = {"cpu_pct": pct, "steal_rate": m.host.reclaim_rate, "scan_rate": m.kswapd_scan_rate}
    return [finding("memory.kswapd", Subject(type="host"), window(m.window_ns), metrics, bad)]
