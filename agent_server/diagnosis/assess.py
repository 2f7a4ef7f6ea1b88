"""Assess every cause by the findings: supported, ruled out, unsupported or not examined. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whystall.agent_server.diagnosis.verdict import STALL_PCT
from whystall.knowledge_base.causes import about, device_of, matches, measured
from whystall.knowledge_base.models import Assessment, Cause, CauseState, Pattern, Victim
from whystall.tools.contract.findings import Finding
from whystall.tools.contract.kinds import Mechanism
from whystall.tools.contract.text import path_pattern


@dataclass(frozen=True)
class Link:
    """The victim waits for thread `tid`, according to `findings` (ids), in `window_pct` of the window."""

    pid: int
    tid: int
    findings: tuple[str, ...]
    window_pct: float


def assess(
    causes: Mapping[str, Cause],
    findings: Sequence[Finding],
    victim: Victim | None,
    ran: Sequence[str],
    links: Sequence[Link] = (),
) -> list[Assessment]:
    """Return one assessment per cause, the one that explains most first; ties go to the more specific cause.

    `ran`: the tools whose collectors worked. A cause acts on the victim directly, or on a thread that the victim waits
    for (`links`); it then explains at most the time of that wait.
    """
    reaches = _reaches(victim, links)
    found = [
        # most kinds of findings say nothing about most causes
        _assess(cause, [f for f in findings if f.kind in cause.kinds], victim, ran, reaches)
        for cause in causes.values()
    ]
    return sorted(
        found,
        key=lambda a: (a.state is not CauseState.SUPPORTED, -a.explained_pct, -causes[a.cause].specificity),
    )


def _assess(
    cause: Cause, findings: Sequence[Finding], victim: Victim | None, ran: Sequence[str], reaches: Sequence[_Reach]
) -> Assessment:
    by = [tool for tool in cause.examined_by if tool in ran]
    best: Assessment | None = None
    for reach in reaches:
        found = _supported(cause, findings, reach, by)
        if found is not None and (best is None or found.explained_pct > best.explained_pct):
            best = found
    if best is not None:
        return best
    if not by:
        return Assessment(cause=cause.id, state=CauseState.NOT_EXAMINED)
    denied = _ids(cause.refuted + cause.against, findings, victim)
    denied = _on_same_device(cause, denied, findings, _primary(cause, findings, victim))
    state = CauseState.RULED_OUT if denied else CauseState.UNSUPPORTED
    return Assessment(cause=cause.id, state=state, against=denied, by=by)


@dataclass(frozen=True)
class _Reach:
    """A thread on which a cause may act. `lost_pct`: share of the window that the victim lost; `limit_pct`: the most
    that can be explained by way of this thread; `via`: the findings that link it to the victim.
    """

    victim: Victim | None
    lost_pct: float
    limit_pct: float
    via: tuple[str, ...] = ()


def _reaches(victim: Victim | None, links: Sequence[Link]) -> list[_Reach]:
    if victim is None:
        return [_Reach(None, 100.0, 100.0)]
    # Waiting for a blocked thread is lost time too, though the victim appears idle.
    reaches = [_Reach(victim, victim.lost_pct, 100.0)]
    for link in links:
        other = victim.model_copy(update={"pid": link.pid, "tid": link.tid})
        reaches.append(_Reach(other, max(victim.lost_pct, link.window_pct), link.window_pct, link.findings))
    return reaches


def _supported(cause: Cause, findings: Sequence[Finding], reach: _Reach, by: list[str]) -> Assessment | None:
    primary = _primary(cause, findings, reach.victim)
    against = _ids(cause.against, findings, reach.victim)
    if not primary or _on_same_device(cause, against, findings, primary):
        return None
    required = _on_same_device(cause, _ids(cause.required, findings, reach.victim), findings, primary)
    culprits = _ids(cause.culprits, findings, reach.victim)
    if (cause.required and not required) or (cause.culprits and not culprits):
        return None
    # Time that other findings account for, which the primary ones measure without attribution.
    elsewhere = combined_share([f for f in findings if any(matches(p, f, reach.victim) for p in cause.less)])
    share = combined_share(primary) - elsewhere
    share = max(min(share, reach.limit_pct, _bound(required, findings, primary)), 0.0)
    if elsewhere and share < STALL_PCT:
        return None
    primary.sort(key=lambda f: -f.window_pct)
    supporting = required + culprits + _ids(cause.supporting, findings, reach.victim)
    ids = [f.id for f in primary] + list(reach.via) + supporting
    return Assessment(
        cause=cause.id,
        state=CauseState.SUPPORTED,
        explained_pct=_explained_pct(cause, share, reach, primary[0]),
        window_pct=share,
        by=by,
    ).model_copy(update={"for_": list(dict.fromkeys(ids))})


def _on_same_device(cause: Cause, ids: list[str], findings: Sequence[Finding], primary: Sequence[Finding]) -> list[str]:
    """Return the findings `ids` without those about other disks than the primary ones, if the cause asks for that and
    these are known."""
    devices = {device_of(f) for f in primary}
    if not cause.same_device or not devices or None in devices:
        return ids
    return [f.id for f in findings if f.id in ids and device_of(f) in (None, *devices)]


def _explained_pct(cause: Cause, share: float, reach: _Reach, first: Finding) -> float:
    """Return the share of the lost time that a cause explains; of an ordinary cause, the share of the window. So of a
    wait of a thread that otherwise has nothing to do, such as an event loop whose answer another thread awaits."""
    if cause.ordinary or (reach.lost_pct <= 0 and first.kind == "path.wait"):
        return share
    return min(100.0, 100.0 * share / reach.lost_pct) if reach.lost_pct > 0 else 0.0


def _primary(cause: Cause, findings: Sequence[Finding], victim: Victim | None) -> list[Finding]:
    """Return the findings that the cause may explain: no estimates of what was measured, and, if the cause has
    `same_file` or `same_device` patterns, only findings about files, or on disks, that match them.
    """
    found = [f for f in findings if any(matches(p, f, victim) for p in cause.primary)]
    known = any(measured(p, f, victim) for p in cause.measured for f in findings)
    found = [f for f in found if not any(matches(p, f, victim) for p in (cause.estimates if known else cause.exact))]
    devices = {device_of(f) for f in findings if any(matches(p, f, victim) for p in cause.same_device)}
    if devices:
        found = [f for f in found if device_of(f) is None or device_of(f) in devices]
    if not cause.same_file:
        return found
    files = {
        path_pattern(f.subject.path)
        for f in findings
        if f.subject.path is not None and any(matches(p, f, victim) for p in cause.same_file)
    }
    return [f for f in found if not files or f.subject.path is None or path_pattern(f.subject.path) in files]


def combined_share(primary: Sequence[Finding]) -> float:
    """Return the share of the window that findings about one thread account for, in percent.

    Findings of one account add up; different accounts measure the same time, so the largest sum counts. Each mechanism
    is an account; the rows of the critical path are a separate one, and so is each recurring pause.
    """
    by_account: dict[tuple[Mechanism, str], float] = {}
    handlers: dict[tuple[str, int | None, str], float] = {}
    for finding in primary:
        mechanism, share = finding.spec.mechanism, finding.window_pct
        if "interrupt" in finding.attributes:  # two tools report the same handlers: count the larger
            key = (finding.kind, finding.subject.tid, finding.attributes["interrupt"])
            known = handlers.get(key, 0.0)
            handlers[key] = max(known, share)
            share = max(0.0, share - known)
        account = (mechanism, _path_account(finding))
        by_account[account] = by_account.get(account, 0.0) + share
    return min(max(by_account.values(), default=0.0), 100.0)


def _path_account(finding: Finding) -> str:
    """Return the account of a finding of the critical path; empty for all others."""
    if finding.kind in ("path.running", "path.wait"):
        return "path"
    return f"{finding.kind}:{finding.attributes.get('function', '')}" if finding.kind.startswith("path.") else ""


def _bound(required: Sequence[str], findings: Sequence[Finding], primary: Sequence[Finding]) -> float:
    """Return the largest share that the required findings allow: a thread is throttled no longer than its cgroup."""
    found = [f for f in findings if f.id in required and f not in primary]
    return max(f.window_pct for f in found) if found and all(f.spec.share for f in found) else 100.0


def _ids(patterns: Sequence[Pattern], findings: Sequence[Finding], victim: Victim | None) -> list[str]:
    return [f.id for f in findings if any(matches(p, f, victim) for p in patterns)]


def links(findings: Sequence[Finding], victim: Victim | None) -> list[Link]:
    """Return the threads at the ends of the chains of the critical path, for which the victim waits, with their
    shares."""
    if victim is None:
        return []
    rows = {f.attributes.get("function", ""): f.id for f in findings if f.kind == "path.wait" and about(f, victim)}
    found = []
    for finding in findings:
        if finding.kind == "path.waker" and "wait" in finding.attributes and about(finding, victim):
            via = rows.get(finding.attributes.get("via", ""))
            ids = (via, finding.id) if via is not None else (finding.id,)
            found.append(Link(finding.subject.pid or 0, finding.subject.tid or 0, ids, finding.window_pct))
    return found
