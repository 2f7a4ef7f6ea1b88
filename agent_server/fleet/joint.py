"""Answers of many hosts about one job, judged once as one job: `hang` and `slow_node_check`. Pure.

Of a rank whose host gave no answer nothing is known: it is absent for the judge, never late. Two hosts that report one
rank contradict each other, and none of them is believed about it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from whystall.agent_server.fleet.answers import Answer, Status
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.result import Model
from whystall.tools.host.hang import judge as hang
from whystall.tools.host.hang.failures import Failure, Failures, in_order
from whystall.tools.host.hang.ranks import DEFAULT_GROUP, GroupKey, RankState
from whystall.tools.host.hang.tables import FailedRow, RankRow
from whystall.tools.host.hang.tool import Params as HangParams
from whystall.tools.host.hang.tool import judge_ranks
from whystall.tools.ranks.slow_node_check import tables as slow
from whystall.tools.ranks.slow_node_check.tool import Params as SlowParams
from whystall.tools.ranks.slow_node_check.tool import judge as judge_slow
from whystall.tools.ranks.traces.gather import disputed, regather
from whystall.tools.recording.packed import unpack
from whystall.tools.recording.store import Recording

TOP = 200
"""Rows that each host is asked for, so that none of its ranks is left out."""
_HANGS = frozenset(
    {hang.LATE, hang.COMPUTING, hang.SPINNING, hang.CYCLE, hang.MISMATCH, hang.ALL_INSIDE, hang.FIRST_FAILURE}
)
# Members of all groups that one host reports: a list of the absent ones must not fill the memory.
_MEMBERS = 1_000_000
_LONGEST_S = 600.0
# Jobs whose name is the same on all hosts.
_COMMON = ("slurm:", "run:", "mpi:")


class Disputed(Model):
    """A rank of which several hosts gave a report; none was used."""

    rank: int
    hosts: list[str]


@dataclass(frozen=True)
class Joint:
    """One judgement on the reports of many hosts. `abnormal`: None if undecided; `findings`: abnormal ones, and the
    hosts that each is about; `answers`: those given, with another status where a report was not used; `unread`: how
    many reports of ranks were not valid, by host.
    """

    data: Model
    abnormal: bool | None
    answers: list[Answer]
    findings: Sequence[tuple[list[str], Finding]] = ()
    disputed: list[Disputed] = field(default_factory=list)
    unread: Mapping[str, int] = field(default_factory=dict)


def judged(tool: str, arguments: Mapping[str, Any], answers: Sequence[Answer]) -> Joint | None:
    """Return the joint judgement of `tool`, which was called with `arguments`; None for a tool without one."""
    judge = _JUDGES.get(tool)
    return judge(arguments, answers) if judge else None


# --- hang ---------------------------------------------------------------------------------------------------------


def _hang(arguments: Mapping[str, Any], answers: Sequence[Answer]) -> Joint:
    params = HangParams.model_validate({k: v for k, v in arguments.items() if k in HangParams.model_fields})
    stored = "recording" in arguments
    answers = _together(_of_one_job(answers), params.duration, stored)
    processes: dict[str, dict[int, RankState]] = defaultdict(dict)
    unread: dict[str, int] = Counter()
    for answer in answers:
        if answer.status == "answered":
            ranks, left_out = _states(answer)
            unread[answer.host] += left_out
            for one in ranks:  # a host with several pods of the job answers once for each
                processes[answer.host].setdefault(one.pid, one)
    answers = _of_one_size(answers, {host: _size(of.values()) for host, of in processes.items()})
    states = {one.host: list(processes[one.host].values()) for one in answers if one.status == "answered"}
    claims = _disputed(states)
    rejected = {(host, one.rank) for one in claims for host in one.hosts}
    ranks = [one for host, of in states.items() for one in of if (host, one.rank) not in rejected]
    ranks.sort(key=lambda one: (one.rank, one.host, one.pid))
    failures = _failures([one for one in answers if one.status == "answered"], ranks)
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


def _failures(answers: Sequence[Answer], ranks: Sequence[RankState]) -> Failures:
    """Return the ranks that hosts report as failed or left, without those that live elsewhere. A host infers from what
    is missing which rank it was: of two hosts that report the same rank, only one that knows how it ended is right."""
    living = {one.rank for one in ranks}
    job = range(_size(ranks))
    reported: dict[int, list[Failure]] = defaultdict(list)
    left: set[int] = set()
    for answer in answers:
        for row in (_table(answer, "failed") or [])[:TOP]:
            try:
                one = FailedRow.model_validate(row).failure(answer.host)
            except ValidationError:
                continue
            if one.rank in job:
                reported[one.rank].append(one)
        left |= {rank for rank in (_table(answer, "just_left") or [])[:TOP] if isinstance(rank, int) and rank in job}
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
    data = (answer.reply or {}).get("data")
    rows = data.get(name) if isinstance(data, dict) else None
    return rows if isinstance(rows, list) else None


def _of_one_job(answers: Sequence[Answer]) -> list[Answer]:
    """Mark hosts that found another job by the same words; the job of most hosts is meant."""
    ids = {i: one.located.job for i, one in enumerate(answers) if one.located and one.located.job.startswith(_COMMON)}
    if len(counts := Counter(ids.values())) < 2:
        return list(answers)
    (meant, count), (_, second), *_ = counts.most_common()
    detail = "its job is {}" if count > second else "hosts found different jobs, equally often; its is {}"
    return [
        _unused(one, "other_job", detail.format(ids[i])) if i in ids and (ids[i] != meant or count == second) else one
        for i, one in enumerate(answers)
    ]


def _size(states: Iterable[RankState]) -> int:
    """Return the size of the group of all ranks, 0 if it is unknown."""
    return max((key.size for one in states for key in one.groups if key.name == DEFAULT_GROUP), default=0)


def _of_one_size(answers: Sequence[Answer], sizes: Mapping[str, int]) -> list[Answer]:
    """Mark hosts whose job has another number of ranks (`sizes`, 0 unknown) than that of most."""
    counts = Counter(size for size in sizes.values() if size > 0)
    usual = counts.most_common(1)[0][0] if counts else 0
    return [
        _unused(one, "other_job", f"its job has {size} ranks")
        if one.status == "answered" and (size := sizes.get(one.host, 0)) > 0 and size != usual
        else one
        for one in answers
    ]


def _together(answers: Sequence[Answer], window_s: float, stored: bool) -> list[Answer]:
    """Mark hosts that did not observe at the instant at which most others did.

    Numbers of operations can be compared only if there was an instant that all windows contain: what stood still in
    each of them stood still at that one. A live window lies between call and reply, and the clock of the centre tells
    when it ran at the latest, or at the earliest; of recordings only the hosts' own clocks are known.
    """
    spans = {i: _span(one, window_s, stored) for i, one in enumerate(answers) if one.status == "answered"}
    known = {i: span for i, span in spans.items() if span is not None}
    count = most = 0
    at = 0.0
    for instant, ends in sorted([(low, 0) for low, _ in known.values()] + [(high, 1) for _, high in known.values()]):
        count += -1 if ends else 1
        if count > most:
            most, at = count, instant
    return [
        _unused(one, "apart", "it did not observe at the same time as the others")
        if i in spans and (i not in known or not known[i][0] <= at <= known[i][1])
        else one
        for i, one in enumerate(answers)
    ]


def _span(answer: Answer, window_s: float, stored: bool) -> tuple[float, float] | None:
    """Return a time, in seconds, that certainly lies within the window of a host; None if there is none."""
    if not stored:
        low, high = answer.ended - window_s, answer.began + window_s
        return (low, high) if low <= high else None
    coverage = (answer.reply or {}).get("coverage")
    try:
        start = datetime.fromisoformat(str(coverage["start"]).replace("Z", "+00:00")).timestamp()  # type: ignore[index]
        length = float(coverage["window_s"])  # type: ignore[index]
        return (start, start + length) if 0 <= length <= _LONGEST_S else None
    except (TypeError, KeyError, ValueError, OverflowError):
        return None


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


# --- slow_node_check ----------------------------------------------------------------------------------------------


def _slow(arguments: Mapping[str, Any], answers: Sequence[Answer]) -> Joint:
    params = SlowParams.model_validate({k: v for k, v in arguments.items() if k in SlowParams.model_fields})
    recordings: dict[str, Recording] = {}
    marked = []
    for answer in answers:
        if answer.status == "answered":
            try:
                recordings[answer.host] = unpack(answer.content, {"ranks": COLLECTORS["ranks"]})
            except ToolError as error:
                answer = _unused(answer, "invalid", f"its ranks cannot be read: {error.message}")
        marked.append(replace(answer, content=b""))
    sizes = {host: one.table("ranks.ranks")["world_size"].max() for host, one in recordings.items()}
    marked = _of_one_size(marked, {host: size for host, size in sizes.items() if isinstance(size, int)})
    recordings = {one.host: recordings[one.host] for one in marked if one.status == "answered"}
    undecided = Joint(slow.Data(reasons=["few_ranks"]), None, marked)
    if not recordings:
        return undecided
    try:
        claims = disputed(recordings)
        rows = [Disputed(rank=rank, hosts=hosts) for rank, hosts in claims.items()]
        undecided = replace(undecided, disputed=rows)
        recording = regather(recordings, without=claims.keys())
    except ToolError as error:
        return replace(undecided, data=slow.Data(reasons=[error.message]))
    found = judge_slow(recording, params)
    return Joint(
        found.data.model_copy(update={"next": []}),  # the traces are on the hosts
        None if found.data.verdict == "cannot_tell" else found.data.verdict != "none",
        marked,
        _of_hosts(found.findings, recordings),
        rows,
        {host: 1 for host, one in recordings.items() if _in_part(one)},
    )


def _of_hosts(findings: Iterable[Finding], recordings: Mapping[str, Recording]) -> list[tuple[list[str], Finding]]:
    """Return abnormal findings with the host that gave the rank; of several ranks, with all hosts."""
    of_rank = {rank: host for host, one in recordings.items() for rank in one.table("ranks.ranks")["rank"].to_list()}
    found = []
    for one in findings:
        host = of_rank.get(one.subject.rank) if one.subject.rank is not None else None
        if one.polarity is Polarity.ABNORMAL:
            placed = one.model_copy(update={"subject": one.subject.model_copy(update={"host": host})})
            found.append(([host] if host else list(recordings), placed))
    return found


def _in_part(recording: Recording) -> bool:
    return any(spot.code == "ranks_unread" for spot in recording.manifest.collectors["ranks"].not_seen)


def _unused(answer: Answer, status: Status, detail: str) -> Answer:
    return replace(answer, status=status, detail=detail)


_JUDGES: dict[str, Callable[[Mapping[str, Any], Sequence[Answer]], Joint]] = {"hang": _hang, "slow_node_check": _slow}
JOINT = frozenset(_JUDGES)
"""Tools whose answers are judged together."""
