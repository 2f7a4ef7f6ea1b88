"""Who stalls, where and how long, from the evidence of a conclusion. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from whystall.agent_server.diagnosis.verdict import Conclusion, agree
from whystall.knowledge_base.causes import device_of, matches
from whystall.knowledge_base.models import Actor, Awaited, Cause, Culprit, Victim
from whystall.tools.contract.findings import Finding
from whystall.tools.contract.kinds import Mechanism

_MAX_ACTORS = 3
# Waits of a thread that cannot run, or may not for a part of the time.
_HELD = ("stopped", "traced", "frozen", "quota")
# Ends of chains of waits that show nothing of what is waited for.
_NOT_KNOWN = ("", "unknown", "not_followed")
# worker (812), worker (813 of 812) +3
_THREAD = re.compile(r".*\((?P<tid>\d+)(?: of (?P<pid>\d+))?\)(?: \+\d+)?")


def culprit(
    conclusion: Conclusion,
    findings: Sequence[Finding],
    causes: Mapping[str, Cause] | None = None,
    victim: Victim | None = None,
) -> Culprit | None:
    """Return who stalls, where and how long, from the findings of the causal chain; each fact from the first with it.

    With `causes`, also the processes that do it to `victim`, if the cause has `culprits` patterns.
    """
    by_id = {f.id: f for f in findings}
    chain = [by_id[i] for i in conclusion.chain]
    if not chain or conclusion.verdict.no_fault:
        return None
    first = chain[0]
    same = [f for f in chain if agree(first, f)]

    def fact(name: str) -> str | None:
        return next((f.attributes[name] for f in same if f.attributes.get(name)), None)

    path = next((f.subject.path for f in same if f.subject.path is not None), None)
    cause = (causes or {}).get(conclusion.cause or "")
    file = fact("example") or path
    about = _about_file(file, findings)
    devices = _names(map(device_of, same)) or _names(map(device_of, about))
    mounts = _names(f.attributes.get("mount") for f in (*same, *about))
    metrics = first.metrics
    latency = metrics.get("episode_ms", metrics.get("p50_ms"))
    if latency is None and metrics.get("oncpu_s") and metrics.get("count"):
        latency = 1e3 * metrics["oncpu_s"] / metrics["count"]
    if latency is None and metrics.get("total_ms") and metrics.get("count"):
        latency = metrics["total_ms"] / metrics["count"]
    count = metrics.get("episodes", metrics.get("count"))
    if first.kind == "path.running":  # its count is one of samples
        latency = count = None
    return Culprit(
        **{
            name: next((v for f in same if (v := getattr(f.subject, name)) is not None), None)
            for name in ("pid", "tid", "comm", "cgroup", "container", "pod")
        },
        device=devices.pop() if len(devices) == 1 else None,
        mount=mounts.pop() if len(mounts) == 1 else None,
        path=file,
        series=path if path is not None and fact("example") not in (None, path) else None,
        syscall=fact("syscall"),
        operations=fact("operations"),
        kernel_path=fact("kernel_path"),
        code=fact("function") or fact("code"),
        count=int(count) if count is not None else None,
        latency_ms=latency,
        max_ms=metrics.get("episode_max_ms" if "episode_ms" in metrics else "max_ms"),
        period_s=metrics.get("period_s"),
        window_pct=first.window_pct or None,
        rank=next((f.subject.rank for f in same if f.subject.rank is not None), None),
        host=next((f.subject.host for f in same if f.subject.host is not None), None),
        name=next(
            (f.attributes["name"] for f in same if f.spec.mechanism is Mechanism.WORK and "name" in f.attributes), None
        ),
        per_step_ms=next((f.metrics["lost_ms"] for f in same if "lost_ms" in f.metrics), None),
        actors=_actors(cause, chain, victim),
        awaited=_awaited(first),
    )


def _awaited(first: Finding) -> Awaited | None:
    """Return the other thread for which the thread of a row of the critical path waits; None if it is not known."""
    words = first.attributes
    known = _THREAD.fullmatch(words.get("root_by", ""))
    if first.kind != "path.wait" or known is None or words.get("root_wait", "") in _NOT_KNOWN:
        return None
    tid = int(known["tid"])
    return Awaited(
        thread=words["root_by"],
        pid=int(known["pid"] or tid),
        tid=tid,
        code=words.get("root_code", ""),
        object=words.get("root_object", ""),
    )


def _names(found: Iterable[str | None]) -> set[str]:
    return {name for name in found if name}


def _about_file(path: str | None, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings about the file `path`."""
    return [
        f
        for f in findings
        if path is not None and path in (f.subject.path, f.attributes.get("example"), f.attributes.get("object"))
    ]


def _ends(wait: Finding, other: Finding) -> bool:
    """Return whether `other` is about the thread at the end of `wait`."""
    via = other.attributes.get("via")
    return wait.kind == "path.wait" and other.kind == "path.waker" and via == wait.attributes.get("function")


def _links_only(wait: Finding) -> bool:
    """Return whether both ends of a connection wait for each other: what is between them takes the time."""
    words = wait.attributes
    return words.get("root_mutual") == "yes" and words.get("wait") in ("socket", "socket_full")


def _actors(cause: Cause | None, chain: Sequence[Finding], victim: Victim | None) -> list[Actor]:
    """Return the processes that match the cause's `culprits`, the worst first; without these, processes that cannot run
    and for which the victim waits, else the one at the end of its wait."""
    if cause is None:
        return []
    found = [f for f in chain if any(matches(p, f, victim) for p in cause.culprits)]
    if not cause.culprits and victim is not None:
        others = [f for f in chain if f.subject.pid not in (None, victim.pid)]
        found = [f for f in others if f.attributes.get("wait") in _HELD]
        if not found and not _links_only(chain[0]):
            found = [f for f in others if _ends(chain[0], f)][:1]
    found.sort(key=lambda f: (-f.severity.rank, -f.metrics.get("rate", 0.0)))
    return [
        Actor(
            pid=f.subject.pid,
            comm=f.subject.comm,
            path=f.subject.path,
            cgroup=f.subject.cgroup,
            container=f.subject.container,
            pod=f.subject.pod,
            rate=f.metrics.get("rate"),
            code=f.attributes.get("code") if f.kind == "path.waker" else None,
        )
        for f in found[:_MAX_ACTORS]
    ]
