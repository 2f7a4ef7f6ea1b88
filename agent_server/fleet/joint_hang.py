"""`hang` on many hosts: their ranks judged once as one job. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from whystall.agent_server.fleet.answers import Answer
from whystall.agent_server.fleet.comparable import TOP, Disputed, Joint, of_one_job, of_one_size, together
from whystall.tools.host.hang import judge as hang
from whystall.tools.host.hang.failures import Failure, Failures, in_order
from whystall.tools.host.hang.ranks import DEFAULT_GROUP, GroupKey, RankState
from whystall.tools.host.hang.tables import FailedRow, RankRow
from whystall.tools.host.hang.tool import Params as HangParams
from whystall.tools.host.hang.tool import judge_ranks

_HANGS = frozenset(
    {hang.LATE, hang.COMPUTING, hang.SPINNING, hang.CYCLE, hang.MISMATCH, hang.ALL_INSIDE, hang.FIRST_FAILURE}
)
# Members of all groups that one host reports: a list of the absent ones must not fill the memory.
_MEMBERS = 1_000_000


@dataclass(frozen=True)
class HangReport:
    """What a host reports. `unread`: how many rows are not valid, or were left out; `failed`: ranks that have failed or
    left; `left`: ranks that left within the window."""

    ranks: list[RankState]
    unread: int
    failed: list[Failure]
    left: list[int]


def read_hang(_arguments: Mapping[str, Any], answer: Answer) -> Answer:
    """Return `answer` with its `HangReport`."""
    ranks, unread = _states(answer)
    failed = []
    for row in (_table(answer, "failed") or [])[:TOP]:
        with suppress(ValidationError):
            failed.append(FailedRow.model_validate(row).failure(answer.host))
    # a boolean is no rank
    left = [rank for rank in (_table(answer, "just_left") or [])[:TOP] if type(rank) is int]
    return replace(answer, part=HangReport(ranks, unread, failed, left))


def judge_hang(arguments: Mapping[str, Any], answers: Sequence[Answer]) -> Joint:
    """Return one judgement of `hang` on the ranks that all hosts report (`read_hang`)."""
    params = HangParams.model_validate({k: v for k, v in arguments.items() if k in HangParams.model_fields})
    stored = "recording" in arguments
    answers = together(of_one_job(answers), params.duration, stored)
    processes: dict[str, dict[int, RankState]] = defaultdict(dict)
    unread: dict[str, int] = Counter()
    for answer in answers:
        if answer.status == "answered":
            unread[answer.host] += answer.part.unread
            for one in answer.part.ranks:  # a host with several pods of the job answers once for each
                processes[answer.host].setdefault(one.pid, one)
    answers = of_one_size(answers, {host: _size(of.values()) for host, of in processes.items()})
    states = {one.host: list(processes[one.host].values()) for one in answers if one.status == "answered"}
    claims = _disputed(states)
    rejected = {(host, one.rank) for one in claims for host in one.hosts}
    ranks = [one for host, of in states.items() for one in of if (host, one.rank) not in rejected]
    ranks.sort(key=lambda one: (one.rank, one.host, one.pid))
    disputed = {one.rank for one in claims}
    failures = _failures([one for one in answers if one.status == "answered"], ranks, disputed)
    found = judge_ranks(ranks, failures, int(params.duration * 1e9), params.top)
    findings = [([one.subject.host or ""], one) for one in found.findings]
    verdict = found.data.verdict
    abnormal = True if verdict in _HANGS else False if verdict == hang.MOVING else None
    return Joint(found.data, abnormal, answers, findings, claims, unread)


def _states(answer: Answer) -> tuple[list[RankState], int]:
    """Return the ranks that a host reports, and how many of its rows are not valid, or were left out."""
    if (rows := _table(answer, "rows")) is None:
        return [], 1
    found: list[RankState] = []
    keys: set[GroupKey] = set()
    for row in rows[:TOP]:
        try:
            read = RankRow.model_validate({name: row[name] for name in RankRow.model_fields if name in row})
            one = read.state(answer.host)
        except (ValidationError, ValueError, TypeError):
            continue
        keys |= one.groups.keys()
        if sum(key.size for key in keys) <= _MEMBERS:
            found.append(one)
    totals = (answer.reply or {}).get("totals")
    total = totals.get("rows") if isinstance(totals, dict) else None
    return found, max(total if isinstance(total, int) else 0, len(rows)) - len(found)


def _failures(answers: Sequence[Answer], ranks: Sequence[RankState], disputed: Set[int]) -> Failures:
    """Return the ranks that hosts report as failed or left, without those that live elsewhere, or that several hosts
    claim (`disputed`). A host infers from what is missing which rank has ended: of two hosts that report the same rank,
    only one that knows how it ended is believed."""
    living = {one.rank for one in ranks} | disputed
    job = range(_size(ranks))
    reported: dict[int, list[Failure]] = defaultdict(list)
    left: set[int] = set()
    for answer in answers:
        for one in answer.part.failed:
            if one.rank in job:
                reported[one.rank].append(one)
        left |= {rank for rank in answer.part.left if rank in job}
    found = []
    for rank, of in reported.items():
        of = of if len(of) == 1 else [one for one in of if one.sure]
        if len(of) == 1 and rank not in living:
            found += of
        elif rank in living:  # its process lives, but its program has ended
            found += [one for one in of if (one.host, one.pid) in {(each.host, each.pid) for each in ranks}]
    gone = {one.rank for one in found} | living
    return Failures(in_order(found), tuple(sorted(left - gone)))


def _table(answer: Answer, name: str) -> list[Any] | None:
    """Return a list of the result's data, None if there is none."""
    data = (answer.reply or {}).get("data")
    rows = data.get(name) if isinstance(data, dict) else None
    return rows if isinstance(rows, list) else None


def _size(states: Iterable[RankState]) -> int:
    """Return the size of the group of all ranks, 0 if it is unknown."""
    return max((key.size for one in states for key in one.groups if key.name == DEFAULT_GROUP), default=0)


def _disputed(states: Mapping[str, Iterable[RankState]]) -> list[Disputed]:
    """Return the ranks that several hosts, or processes of one, claim: of the job, or in a group."""
    claims: dict[object, list[RankState]] = defaultdict(list)
    for of in states.values():
        for one in of:
            if one.rank >= 0:
                claims[one.rank].append(one)
            for key, member in one.groups.items():
                claims[(key, member.rank)].append(one)
    hosts: dict[int, set[str]] = defaultdict(set)
    for claimed in claims.values():
        if len(claimed) > 1:
            for one in claimed:
                hosts[one.rank].update(each.host for each in claimed)
    return [Disputed(rank=rank, hosts=sorted(of)) for rank, of in sorted(hosts.items())]
