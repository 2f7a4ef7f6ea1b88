"""Which reports of hosts about one job can be compared, and the joint judgement that is made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from whystall.agent_server.fleet.answers import Answer, Status
from whystall.tools.contract.findings import Finding
from whystall.tools.contract.result import Artifact, Model

TOP = 200
"""Rows that each host is asked for, so that none of its ranks is left out."""
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
    many reports of ranks were not valid, by host; `artifacts`: stored pages and pictures.
    """

    data: Model
    abnormal: bool | None
    answers: list[Answer]
    findings: Sequence[tuple[list[str], Finding]] = ()
    disputed: list[Disputed] = field(default_factory=list)
    unread: Mapping[str, int] = field(default_factory=dict)
    artifacts: Sequence[Artifact] = ()


def of_one_job(answers: Sequence[Answer]) -> list[Answer]:
    """Mark hosts that found another job by the same words; the job of most hosts is meant."""
    ids = {i: one.located.job for i, one in enumerate(answers) if one.located and one.located.job.startswith(_COMMON)}
    if len(counts := Counter(ids.values())) < 2:
        return list(answers)
    (meant, count), (_, second), *_ = counts.most_common()
    detail = "its job is {}" if count > second else "hosts found different jobs, equally often; its is {}"
    return [
        unused(one, "other_job", detail.format(ids[i])) if i in ids and (ids[i] != meant or count == second) else one
        for i, one in enumerate(answers)
    ]


def of_one_size(answers: Sequence[Answer], sizes: Mapping[str, int]) -> list[Answer]:
    """Mark hosts whose job has another number of ranks (`sizes`, 0 unknown) than that of most."""
    counts = Counter(size for size in sizes.values() if size > 0)
    usual = counts.most_common(1)[0][0] if counts else 0
    return [
        unused(one, "other_job", f"its job has {size} ranks")
        if one.status == "answered" and (size := sizes.get(one.host, 0)) > 0 and size != usual
        else one
        for one in answers
    ]


def together(answers: Sequence[Answer], window_s: float, stored: bool) -> list[Answer]:
    """Mark hosts that did not observe at the instant at which most others did.

    Numbers of operations can be compared only if there was an instant that all windows contain: what stood still in
    each of them stood still at that one. A live window lies between call and reply, so that the centre's clock limits
    when it was observed; of recordings only the hosts' own clocks are known.
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
        unused(one, "apart", "it did not observe at the same time as the others")
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
    if not isinstance(coverage, dict):
        return None
    try:
        start = datetime.fromisoformat(str(coverage["start"]).replace("Z", "+00:00")).timestamp()
        length = float(coverage["window_s"])
        return (start, start + length) if 0 <= length <= _LONGEST_S else None
    except (TypeError, KeyError, ValueError, OverflowError):
        return None


def unused(answer: Answer, status: Status, detail: str) -> Answer:
    """Return `answer` as one that is not used, for the reason `status`."""
    return replace(answer, status=status, detail=detail)
