"""Merge the answers of many hosts into one. Pure, but for pages of a joint judgement, which are stored.

The same finding on many hosts is one row with a hostlist; ranks are ignored in this comparison. Of a host without an
answer nothing is known, so a fleet is `clear` only if every host answered, and observed all that was asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, SerializeAsAny

from whystall.agent_server.fleet.answers import MISSING, Answer, Located
from whystall.agent_server.fleet.comparable import Disputed, Joint
from whystall.agent_server.fleet.hops import Followed, HostPath
from whystall.agent_server.fleet.hostlist import fold
from whystall.agent_server.fleet.joint import judged
from whystall.agent_server.fleet.joint_path import path_of
from whystall.agent_server.fleet.reading import Reported, in_part, read
from whystall.tools.contract.findings import Finding, Severity
from whystall.tools.contract.result import SCHEMA_VERSION, Artifact, Model

FleetVerdict = Literal["abnormal", "clear", "clear_in_part", "unknown"]
"""`abnormal`: a host has an abnormal finding, or a diagnosis with a cause; `clear`: every host answered in full and
none has; `clear_in_part`: none has among those that answered in full; `unknown`: no host answered in full.
"""
LISTED = 1000
"""Maximum rows of hosts; those with the worst findings first, then those without an answer."""
_FINDINGS = 50
_DETAILS = 3
_CODE = ("function", "code", "root_code", "holder_code", "frame")


class Suspect(Model):
    """Where to look: rank, host, process, line, as far as the finding states them."""

    host: str
    rank: int | None = None
    pid: int | None = None
    comm: str | None = None
    line: str | None = None


class FleetHost(Model):
    """One host. `severity`: of its worst abnormal finding; `abnormal`: how many it has; `in_part`: it could not observe
    everything, or did not decide; `diagnosis`: verdict and cause; `unread`: findings that are not of our vocabulary.
    """

    host: str
    status: str
    detail: str = ""
    severity: Severity | None = None
    abnormal: int = 0
    in_part: bool = False
    diagnosis: str = ""
    unread: int = 0
    pid: int | None = None
    ranks: list[int] = Field(default_factory=list)
    seconds: float = 0.0
    bytes: int = 0


class FleetFinding(Model):
    """An abnormal finding, and the `hosts` that report it. `finding`: the worst instance; `suspect`: where that is."""

    hosts: str
    count: int
    ranks: list[int] = Field(default_factory=list)
    suspect: Suspect
    finding: Finding


class Missing(Model):
    """Hosts without an answer, of which nothing is known, by `status`; `details`: the most frequent reasons."""

    status: str
    hosts: str
    count: int
    details: list[str]


class FleetResult(Model):
    """The merged answer. `asked`: hosts, or pods of a job in Kubernetes; `in_full`: hosts that answered and observed
    everything; `without`: of these, those without an abnormal finding; `absent`: hosts where nothing of the job runs.
    `suspect`: if the worst finding is on one host only. `joint`: the tables of the tool, of a tool that judges the
    reports of all hosts as one job; `disputed`: ranks that several hosts reported. `paths`: waits that cross hosts.
    `artifacts`: pages and pictures.
    """

    schema_version: str = SCHEMA_VERSION
    tool: str
    verdict: FleetVerdict
    asked: int
    answered: int
    in_full: int
    without: int
    absent: int
    suspect: Suspect | None = None
    joint: SerializeAsAny[Model] | None = None
    disputed: list[Disputed] = Field(default_factory=list)
    paths: list[HostPath] = Field(default_factory=list)
    findings: list[FleetFinding] = Field(default_factory=list)
    missing: list[Missing] = Field(default_factory=list)
    hosts: list[FleetHost] = Field(default_factory=list)
    left_out: int = 0
    artifacts: list[Artifact] = Field(default_factory=list)


@dataclass(kw_only=True)
class _Host(Reported):
    """An answer, and what it reports."""

    answer: Answer

    @property
    def abnormal(self) -> bool:
        return bool(self.findings) or self.diagnosed

    @property
    def worst(self) -> Severity | None:
        return max((one.severity for one in self.findings), key=lambda severity: severity.rank, default=None)


def merge(
    tool: str,
    answers: Sequence[Answer],
    arguments: Mapping[str, Any] | None = None,
    paths: Followed | None = None,
) -> FleetResult:
    """Return `answers` of `tool`, which was called with `arguments`, as one result. `paths`: waits that cross hosts."""
    given = arguments or {}
    answers = [read(tool, given, answer) for answer in answers]
    joint = judged(tool, given, answers)
    hosts = _of_hosts(answers) if joint is None else _of_judged(joint)
    replied = [one for one in hosts if one.answer.status == "answered"]
    full = [one for one in replied if not one.in_part]
    absent = sum(one.answer.status == "absent" for one in hosts)
    findings = _of_joint(joint) if joint else _folded(replied)
    without = sum(not one.abnormal for one in full)
    verdict: FleetVerdict = "unknown"
    if joint.abnormal if joint else any(one.abnormal for one in replied):
        verdict = "abnormal"
    elif full and (joint is None or joint.abnormal is False):
        verdict = "clear" if len(full) + absent == len(hosts) else "clear_in_part"
    rows = [_row(one) for one in sorted(hosts, key=_order)]
    return FleetResult(
        tool=tool,
        verdict=verdict,
        asked=len(hosts),
        answered=len(replied),
        in_full=len(full),
        without=without,
        absent=absent,
        suspect=_suspect(findings) if paths is None or not paths.paths else _led_to(replied, paths),
        joint=joint.data if joint else None,
        disputed=joint.disputed if joint else [],
        paths=paths.paths if paths is not None else [],
        findings=findings[:_FINDINGS],
        missing=list(_missing(one.answer for one in hosts)),
        hosts=rows[:LISTED],
        left_out=max(0, len(rows) - LISTED),
        artifacts=list(joint.artifacts) if joint else [],
    )


def _of_hosts(answers: Iterable[Answer]) -> list[_Host]:
    return [_Host(answer=one, **vars(one.part)) if one.status == "answered" else _Host(answer=one) for one in answers]


def _of_judged(joint: Joint) -> list[_Host]:
    """Return the hosts of a joint judgement, each with the findings that are about it alone."""
    found = []
    for answer in joint.answers:
        own = [finding for hosts, finding in joint.findings if hosts == [answer.host]]
        unread = joint.unread.get(answer.host, 0)
        found.append(_Host(answer=answer, findings=own, unread=unread, in_part=bool(unread) or in_part(answer.reply)))
    return found


def _folded(read: Iterable[_Host]) -> list[FleetFinding]:
    """Return the abnormal findings, each once, the most severe first."""
    groups: dict[str, list[tuple[Finding, Answer]]] = defaultdict(list)
    for one in read:
        for finding in one.findings:
            groups[_same(finding)].append((finding, one.answer))
    rows = []
    for instances in groups.values():
        finding, answer = max(instances, key=lambda each: _weight(each[0]))
        hosts = dict.fromkeys(each.host for _, each in instances)
        ranks = {rank for each, where in instances if (rank := _rank(each, where.located)) is not None}
        suspect = suspect_of(finding, answer)
        rows.append(
            FleetFinding(hosts=fold(hosts), count=len(hosts), ranks=sorted(ranks), suspect=suspect, finding=finding)
        )
    return sorted(rows, key=_worst_first)


def _worst_first(row: FleetFinding) -> tuple[float, float, int, str]:
    severity, share = _weight(row.finding)
    return -severity, -share, row.count, row.hosts


def _of_joint(joint: Joint) -> list[FleetFinding]:
    rows = []
    for hosts, finding in joint.findings:
        ranks = [finding.subject.rank] if finding.subject.rank is not None else []
        suspect = suspect_of(finding, Answer(hosts[0], "answered"))
        rows.append(FleetFinding(hosts=fold(hosts), count=len(hosts), ranks=ranks, suspect=suspect, finding=finding))
    return sorted(rows, key=_worst_first)


def _same(finding: Finding) -> str:
    """Return what is equal for the same finding of other hosts and ranks."""
    if finding.subject.rank is None and finding.subject.cgroup is None:
        return finding.fingerprint
    subject = finding.subject.model_copy(update={"rank": None, "cgroup": None, "host": None})
    values = finding.model_dump(mode="json", exclude={"fingerprint", "subject"})
    return Finding.model_validate({**values, "subject": subject}).fingerprint


def _weight(finding: Finding) -> tuple[int, float]:
    return finding.severity.rank, finding.window_pct


def suspect_of(finding: Finding, answer: Answer) -> Suspect:
    """Return rank, host, process and line of `finding` in `answer`."""
    subject, words = finding.subject, finding.attributes
    return Suspect(
        host=subject.host or answer.host,
        rank=_rank(finding, answer.located),
        pid=subject.pid,
        comm=subject.comm,
        line=next((words[name] for name in _CODE if words.get(name)), None),
    )


def _rank(finding: Finding, located: Located | None) -> int | None:
    if finding.subject.rank is not None or located is None:
        return finding.subject.rank
    pid = finding.subject.pid if finding.subject.pid is not None else located.pid
    return (located.ranks or {}).get(pid)


def _suspect(findings: Sequence[FleetFinding]) -> Suspect | None:
    """Return where the most severe finding is, if one host has it and no other finding is as severe elsewhere."""
    if not findings or findings[0].count > 1 or findings[0].finding.severity is Severity.INFO:
        return None
    first = findings[0]
    rivals = [row for row in findings[1:] if row.finding.severity is first.finding.severity]
    return None if any(row.hosts != first.hosts for row in rivals) else first.suspect


def _led_to(read: Sequence[_Host], paths: Followed) -> Suspect | None:
    """Return where the most severe findings are, or lead to if they are waits for other hosts, if that is one host."""
    worst = max((one.worst for one in read if one.worst is not None), key=lambda each: each.rank, default=None)
    if worst is None or worst is Severity.INFO:
        return None
    found: list[tuple[bool, float, Suspect]] = []
    for one in read:
        for finding in (each for each in one.findings if each.severity is worst):
            path = path_of(finding, one.answer.host, paths)
            if path is not None and path.outcome != "found":
                return None
            suspect = _end_of(path) if path is not None else suspect_of(finding, one.answer)
            found.append((path is not None, finding.window_pct, suspect))
    hosts = {suspect.host for *_, suspect in found}
    return max(found, key=lambda each: each[:2])[2] if len(hosts) == 1 else None


def _end_of(path: HostPath) -> Suspect:
    last = path.hops[-1]
    if last.by_pid is not None:
        return Suspect(host=last.host, pid=last.by_pid, comm=last.by_comm or None, line=last.line or None)
    return Suspect(host=last.host, rank=last.rank, pid=last.pid, comm=last.comm or None, line=last.line or None)


def _missing(answers: Iterable[Answer]) -> Iterable[Missing]:
    by_status: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        by_status[answer.status].append(answer)
    for status in MISSING:
        if not (group := by_status.get(status)):
            continue
        details: dict[str, int] = defaultdict(int)
        for answer in group:
            details[answer.detail] += 1
        often = sorted((text for text in details if text), key=lambda text: -details[text])[:_DETAILS]
        hosts = list(dict.fromkeys(answer.host for answer in group))
        yield Missing(status=status, hosts=fold(hosts), count=len(group), details=often)


def _order(read: _Host) -> tuple[int, int, str]:
    severity = read.worst.rank + 1 if read.worst is not None else int(read.diagnosed)
    return -severity, int(read.answer.status in ("answered", "absent")), read.answer.host


def _row(read: _Host) -> FleetHost:
    answer, located = read.answer, read.answer.located
    return FleetHost(
        host=answer.host,
        status=answer.status,
        detail=answer.detail,
        severity=read.worst,
        abnormal=len(read.findings),
        in_part=read.in_part,
        diagnosis=read.diagnosis,
        unread=read.unread,
        pid=located.pid if located else None,
        ranks=sorted((located.ranks or {}).values()) if located else [],
        seconds=answer.seconds,
        bytes=answer.bytes,
    )
