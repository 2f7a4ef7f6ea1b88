"""Judge waits for locks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from whystall.tools.contract.findings import Finding, Polarity, Subject
from whystall.tools.host.common.findings import any_thread, finding, severity, window
from whystall.tools.host.common.lock_groups import Group, Waiter
from whystall.tools.host.lock_wait.interpreter import Share
from whystall.tools.recording.store import Recording

# Waits for a lock are abnormal from this share of a thread's time on (as in offcputime).
_LOCK_PCT = 5.0
_MOST = 20
_ABNORMAL = ("lock", "interpreter", "file")
_KIND = {"lock": "lock.wait", "interpreter": "lock.interpreter", "file": "lock.file"}


class Held(NamedTuple):
    """The holder of a lock (thread or process, as id and text), what it did while others waited, at which line, and for
    what share of their waiting, percent. `owner`: as read from memory or the kernel at the end of the window."""

    tid: int | None = None
    name: str = ""
    doing: str = ""
    code: str = ""
    pct: float | None = None
    owner: int | None = None


def findings_of(
    recording: Recording,
    groups: Sequence[Group],
    held: Mapping[int, Held],
    parts: Mapping[int, Sequence[Share]],
) -> list[Finding]:
    """Return a finding per lock that a thread waits for longer than the threshold; normal findings if none does."""
    window_ns = max(recording.manifest.window_ns, 1)
    found = []
    for group in groups:
        if group.what in _ABNORMAL and _share(group.longest, window_ns) >= _LOCK_PCT:
            found.append(_finding(group, held[id(group)], parts.get(id(group), ()), window_ns))
            if (owned := _owned(group, held[id(group)], window_ns)) is not None:
                found.append(owned)
    found.sort(key=lambda f: -f.metrics.get("window_pct", 0.0))
    undecided = any(g.what == "unknown" and g.evidence == "program_line" for g in groups)
    return found[:_MOST] + _normal(recording, found, groups, undecided=undecided)


def _share(waiter: Waiter, window_ns: int) -> float:
    return min(100.0, 100 * waiter.total_ns / window_ns)


def _finding(group: Group, held: Held, parts: Sequence[Share], window_ns: int) -> Finding:
    most = group.longest
    share = _share(most, window_ns)
    metrics: dict[str, float | None] = {
        "window_pct": share,
        "total_ms": most.total_ns / 1e6,
        "max_ms": most.max_ns / 1e6,
        "count": most.count,
        "threads": len(group.waiters),
        "holder_pct": held.pct,
    }
    attributes = {
        "code": most.code,
        "holder": held.name,
        "holder_code": held.code,
        "holder_doing": held.doing,
        "open": "yes" if most.open_ns else "no",
    }
    if group.what == "interpreter":
        metrics["held_pct"] = parts[0].held_pct if parts else None
    else:
        attributes["evidence"] = group.evidence
    subject = Subject(type="thread", pid=most.line.pid, tid=most.line.tid, comm=most.line.comm, path=group.path or None)
    known = {name: text for name, text in attributes.items() if text}
    return finding(_KIND[group.what], subject, window(window_ns), metrics, severity(share), known)


def _owned(group: Group, held: Held, window_ns: int) -> Finding | None:
    """Return the finding about the holder that memory or the kernel names at the end of the window."""
    if held.owner is None or not any(w.open_ns for w in group.waiters.values()):
        return None
    most = group.longest
    subject = Subject(type="thread", pid=most.line.pid, tid=most.line.tid, comm=most.line.comm, path=group.path or None)
    attributes = {"holder": held.name, "holder_code": held.code, "holder_doing": held.doing}
    known = {name: text for name, text in attributes.items() if text}
    share = _share(most, window_ns)
    return finding("lock.held", subject, window(window_ns), {"window_pct": share}, severity(share), known)


def _normal(
    recording: Recording, found: Sequence[Finding], groups: Sequence[Group], *, undecided: bool
) -> list[Finding]:
    """Return normal findings for kinds of locks that no thread waits long for; none if unknown waits may be for
    them."""
    target = recording.manifest.target
    if target.everything or undecided or not recording.manifest.saw_everything("switches"):
        return []
    bad = {f.kind for f in found if f.polarity is Polarity.ABNORMAL}
    window_ns = max(recording.manifest.window_ns, 1)
    results = []
    for what in ("lock", "interpreter"):
        if _KIND[what] not in bad and (what == "lock" or recording.has("objects")):
            most = max((_share(g.longest, window_ns) for g in groups if g.what == what), default=0.0)
            results.append(finding(_KIND[what], any_thread(target), window(window_ns), {"window_pct": most}))
    return results
