"""Diagnoses made from cards: what a site sees when the incident of a card happens to one of its jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from whystall.knowledge_base import features as facts
from whystall.knowledge_base.models import (
    Assessment,
    CauseState,
    Culprit,
    Diagnosis,
    Incident,
    Lang,
    Step,
    Verdict,
    Victim,
)
from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.contract.kinds import KINDS
from whystall.tools.contract.result import Coverage

_DEVICES = {"nvme": "nvme0n1", "scsi": "sda", "virtual": "vda", "loop": "loop0", "mapped": "dm-0", "raid": "md0"}
_DEVICES |= {"mmc": "mmcblk0", "network": "nbd0", "zram": "zram0"}
_PLACES = {"shm": "/dev/shm/", "tmp": "/tmp/"}
# Kind of finding that carries the features of system calls and stacks, which most kinds do not.
_STACK = "offcpu.blocked"
_LETTERS = str.maketrans("0123456789", "abcdefghij")


@dataclass(frozen=True)
class Reported:
    """How an incident is reported: number of the job, host, language, and how often it was reported before."""

    job: int
    host: str
    visit: int = 0
    lang: Lang = "en"


def diagnosis_of(incident: Incident, reported: Reported, cause: str | None = None) -> Diagnosis:
    """Return a diagnosis with the findings of `incident`: of `cause`, or inconclusive without one."""
    # Digits of file names do not distinguish faults.
    path = _path(incident, f"job-{reported.job}".translate(_LETTERS))
    findings = _findings(incident, path)
    comm = next(iter(_values(incident, "program")), "python")
    sure = cause is not None
    ids = [finding.id for finding in findings]
    culprit = Culprit(pid=reported.job + 1, comm=comm, path=path, syscall=next(iter(_values(incident, "op")), None))
    return Diagnosis(
        id=f"d{reported.job}-{reported.visit}" + ("-cause" if sure else ""),
        created="2025-01-01T00:00:00Z",
        target=f"pid {reported.job + 1} ({comm})",
        symptom=incident.symptom.get(reported.lang),
        verdict=Verdict.CONFIRMED if sure else Verdict.INCONCLUSIVE,
        cause=cause,
        severity=Severity.MAJOR,
        victim=_victim(reported.job + 1, comm),
        culprit=culprit if sure else None,
        chain=ids,
        assessments=[Assessment(cause=cause, state=CauseState.SUPPORTED, for_=ids)] if cause is not None else [],
        findings=findings,
        steps=[Step(tools=[*incident.checks], why="first_look", window_s=10, findings=ids, status={})],
        coverage=[_coverage(reported)],
    )


def carried(incident: Incident) -> list[str]:
    """Return the features of the card that the findings of its incident have."""
    path = _path(incident, "job")
    found = {feature for finding in _findings(incident, path) for feature in facts.of_finding(finding)}
    found |= {f"program:{name}" for name in _values(incident, "program")}
    return [feature for feature in facts.normalized(incident.features) if feature in found]


def _values(incident: Incident, kind: str) -> list[str]:
    return [value for name, _, value in (f.partition(":") for f in incident.features) if name == kind and value]


def _path(incident: Incident, job: str) -> str:
    place = next((_PLACES[name] for name in _values(incident, "place") if name in _PLACES), "/data/")
    ending = next(iter(_values(incident, "file")), "")
    return f"{place}{job}/part" + (f".{ending}" if ending else "")


def _findings(incident: Incident, path: str) -> list[Finding]:
    kinds = list(incident.kinds)
    if _STACK not in kinds and (_values(incident, "op") or _values(incident, "frame") or not kinds):
        kinds.append(_STACK)
    return [_finding(incident, kind, path, f"f{number}") for number, kind in enumerate(kinds)]


def _finding(incident: Incident, kind: str, path: str, id: str) -> Finding:
    spec = KINDS[kind]
    words = {name: text for name, make in _ATTRIBUTES.items() if name in spec.attributes and (text := make(incident))}
    if "." in kind and kind.split(".")[0] not in ("rank", "link"):
        words.pop("operation", None)  # there it is a request to a device, not a collective
    quota, period = _values(incident, "quota"), _values(incident, "period")
    metrics = {name: 1.0 for name in spec.metrics if name == spec.share}
    metrics |= {"quota_cpus": float(quota[0])} if quota and "quota_cpus" in spec.metrics else {}
    metrics |= {"period_s": float(period[0])} if period and "period_s" in spec.metrics else {}
    device = next((_DEVICES[name] for name in _values(incident, "device") if name in _DEVICES), None)
    return Finding(
        id=id,
        kind=kind,
        subject=Subject(type=spec.subject, path=path, device=device, cgroup=next(iter(_cgroups(incident)), None)),
        interval=Interval(start_ns=0, end_ns=10_000_000_000),
        metrics=metrics,
        attributes=words,
        severity=Severity.MAJOR,
        polarity=Polarity.ABNORMAL,
    )


def _cgroups(incident: Incident) -> list[str]:
    return [f"/{name}/job" for name in _values(incident, "cgroup")]


def _code(incident: Incident) -> str:
    function, _, file = next(iter(_values(incident, "code")), "").partition("@")
    return f"{function} ({file}:1)" if file else ""


def _first(kind: str) -> Callable[[Incident], str]:
    return lambda incident: next(iter(_values(incident, kind)), "")


# Attributes of findings, by the features that `features.of_finding` takes from them.
_ATTRIBUTES: dict[str, Callable[[Incident], str]] = {
    "syscall": lambda incident: " ".join(_values(incident, "op")),
    "operations": lambda incident: ", ".join(_values(incident, "op")),
    "kernel_path": lambda incident: " < ".join(_values(incident, "frame")),
    "code": _code,
    "function": _code,
    "filesystem": _first("fs"),
    "neighbour": _first("neighbour"),
    "interrupt": _first("irq"),
    "reason": _first("reason"),
    "mostly": _first("wake"),
    "what": _first("mismatch"),
    "operation": _first("collective"),
    "wait": _first("wait"),
    "root_wait": _first("root"),
    "role": _first("role"),
    "mode": _first("mode"),
}


def _victim(pid: int, comm: str) -> Victim:
    return Victim(
        pid=pid,
        tid=pid,
        comm=comm,
        chosen_by="main_thread",
        user_pct=50,
        system_pct=5,
        runnable_pct=0,
        blocked_pct=40,
        idle_pct=5,
        lost_pct=45,
    )


def _coverage(reported: Reported) -> Coverage:
    return Coverage(
        recording="r",
        host=reported.host,
        kernel="6.8",
        start="2025-01-01T00:00:00Z",
        window_s=10,
        requested_s=10,
        target=f"pid {reported.job + 1}",
        collectors=[],
        not_seen=[],
    )
