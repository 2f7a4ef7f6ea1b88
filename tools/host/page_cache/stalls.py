"""Judge the time that threads lose to memory management: reclaim, throttled writers, contended file locks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from whystall.tools.contract.findings import Finding, Interval, Subject
from whystall.tools.contract.kinds import KINDS
from whystall.tools.host.common.cache_measures import Measures, Stall
from whystall.tools.host.common.cache_streams import RECLAIMS, STALL_PCT, THROTTLED
from whystall.tools.host.common.findings import finding, severity, window
from whystall.tools.recording.target import Target

THROTTLE, LOCK = "dirty_throttle", "file_lock"
_KINDS = ("memory.reclaim_stall", "writeback.throttled", "file.lock_contention")
# A single wait this long is noticed, whatever its share of the window (as for file operations).
_LONG_MS = 1000.0
_FINDINGS = 8


def stall_findings(m: Measures, target: Target, requested: Callable[[int], bool], *, sure: bool) -> list[Finding]:
    """Return findings about the requested threads. `sure`: no event was missed, so that normal findings are allowed."""
    stalls = [s for s in m.stalls if requested(s.pid)]
    found = [
        *_reclaim([s for s in stalls if s.what in RECLAIMS], m),
        *_throttled([s for s in stalls if s.what == THROTTLE], m),
        *_locks([s for s in stalls if s.what == LOCK and s.path], m),
    ]
    if sure and not target.everything:
        main = target.sole_pid
        covered = {f.kind for f in found if main is None or f.spec.subject == "file" or f.subject.tid == main}
        found += [_normal(kind, target, m) for kind in _KINDS if kind not in covered]
    return found


def _reclaim(stalls: list[Stall], m: Measures) -> list[Finding]:
    """Return findings per thread and kind of reclaim; throttling within a reclaim is part of that reclaim's time."""
    reclaiming = {s.tid for s in stalls if s.what != THROTTLED}
    stalls = [s for s in stalls if s.what != THROTTLED or s.tid not in reclaiming]
    groups = _grouped(stalls, lambda s: (s.pid, s.tid, s.what))
    found = []
    for group in groups[:_FINDINGS]:
        first = group[0]
        attributes = {"what": first.what} | _flight(group)
        metrics = _waited(group, m) | {"pages": float(sum(s.pages for s in group))}
        subject = Subject(type="thread", pid=first.pid, tid=first.tid, comm=first.comm)
        found.append(_finding("memory.reclaim_stall", subject, group, metrics, attributes, m))
    return found


def _throttled(stalls: list[Stall], m: Measures) -> list[Finding]:
    """Return findings per thread, with the file it waited for longest as example."""
    found = []
    for group in _grouped(stalls, lambda s: (s.pid, s.tid))[:_FINDINGS]:
        first = group[0]
        metrics: dict[str, float | None] = {
            **_waited(group, m),
            "dirtied_bytes": float(sum(s.pages for s in group) * m.page),
            "dirty_bytes": m.host.dirty_bytes,
            "dirty_limit_bytes": m.host.dirty_limit_bytes,
        }
        attributes = ({"example": first.path} if first.path else {}) | _flight(group)
        subject = Subject(type="thread", pid=first.pid, tid=first.tid, comm=first.comm, path=first.path or None)
        found.append(_finding("writeback.throttled", subject, group, metrics, attributes, m))
    return found


def _locks(stalls: list[Stall], m: Measures) -> list[Finding]:
    """Return findings per process and file; the share is that of the thread that waited longest."""
    found = []
    for group in _grouped(stalls, lambda s: (s.pid, s.path))[:_FINDINGS]:
        by_thread = _grouped(group, lambda s: (s.tid,))
        worst = sum(s.total_ns for s in by_thread[0])
        metrics = _waited(group, m) | {
            "window_pct": min(100.0, 100 * worst / max(m.window_ns, 1)),
            "threads": float(len(by_thread)),
        }
        use = next((u for u in m.uses if u.pid == group[0].pid and group[0].path in (u.path, u.example)), None)
        attributes = ({"operations": use.operations} if use is not None and use.operations else {}) | _flight(group)
        subject = Subject(type="file", pid=group[0].pid, comm=group[0].comm, path=group[0].path)
        found.append(_finding("file.lock_contention", subject, group, metrics, attributes, m))
    return found


def _grouped(stalls: Iterable[Stall], key: Callable[[Stall], tuple[object, ...]]) -> list[list[Stall]]:
    """Return stalls grouped by `key`, the group with most time first."""
    groups: dict[tuple[object, ...], list[Stall]] = {}
    for stall in stalls:
        groups.setdefault(key(stall), []).append(stall)
    return sorted(groups.values(), key=lambda group: -sum(s.total_ns for s in group))


def _waited(group: list[Stall], m: Measures) -> dict[str, float | None]:
    total = sum(s.total_ns for s in group)
    return {
        "window_pct": min(100.0, 100 * total / max(m.window_ns, 1)),
        "total_ms": total / 1e6,
        "max_ms": max(s.max_ns for s in group) / 1e6,
        "count": float(sum(s.count for s in group)),
    }


def _flight(group: list[Stall]) -> dict[str, str]:
    return {"in_flight": "yes" if any(s.in_flight for s in group) else "no"}


def _finding(
    kind: str,
    subject: Subject,
    group: list[Stall],
    metrics: dict[str, float | None],
    attributes: dict[str, str],
    m: Measures,
) -> Finding:
    share = metrics["window_pct"] or 0.0
    bad = share >= STALL_PCT or (metrics["max_ms"] or 0.0) >= _LONG_MS
    longest = max(group, key=lambda s: s.max_ns)
    # Only the start of the longest stall is known.
    start = min(longest.at_ns, m.window_ns) if longest.count == 1 and len(group) == 1 else 0
    interval = Interval(start_ns=start, end_ns=m.window_ns)
    return finding(kind, subject, interval, metrics, severity(share) if bad else None, attributes)


def _normal(kind: str, target: Target, m: Measures) -> Finding:
    """Return the finding that this did not happen to the target's main thread, or to any of several processes."""
    about, pid = KINDS[kind].subject, target.sole_pid
    subject = Subject(type=about, pid=pid, tid=pid if about == "thread" else None, comm=target.comm)
    return finding(kind, subject, window(m.window_ns), {"window_pct": 0.0, "count": 0.0})
