"""hang: which rank of a running job the others wait for, without a profiler and without stopping anything."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.contract.params import JobParams
from whystall.tools.contract.registry import ArtifactContent, Judgement, Tool
from whystall.tools.contract.result import Model
from whystall.tools.host.common.findings import finding, window
from whystall.tools.host.common.thread_states import ThreadStates, thread_states_of
from whystall.tools.host.hang.judge import Hang, LateRank, Mismatched, hang_of
from whystall.tools.host.hang.ranks import GroupKey, RankState, ranks_of
from whystall.tools.host.hang.stack_tree import stack_tree
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.rank_data.rank_list import rank_list


class Params(JobParams):
    """Parameters of hang."""

    duration: Annotated[float, Field(ge=0.5, le=600, description="seconds in which the job must not move")] = 5.0


class Doing(Model):
    """A rank, and what it does: ``running``, or what its thread waits for, of `object`. `whom`: the holder of that,
    with its line; `line`: of the program."""

    rank: int
    pid: int
    comm: str
    doing: str
    object: str
    whom: str
    line: str


class RankRow(Doing):
    """A rank on this host. `collective`: the function in which it waits for others; `still`: it did not move in the
    window."""

    collective: str
    still: bool
    late: bool


class LateRow(Doing):
    """A rank to look at first. `number`: of the operation of `group` that it has not begun, counted from 1, or that
    differs from the others'; `waiting`: ranks that wait for it, as ``0-1, 3``."""

    group: str
    number: int
    waiting: str


class GroupRow(Model):
    """A process group. `size`: members on all hosts; `ranks`: those read here, by their number in the group;
    `started`: operations begun, as ``38: 0-2, 4-7; 37: 3``; `began`: within the window."""

    backend: str
    name: str
    description: str
    size: int
    ranks: str
    started: str
    began: int


class Data(Model):
    """`verdict`: a constant of `judge`, or ``no_ranks``. `late`: the ranks to look at first. `tree`: stacks of all
    ranks, merged."""

    verdict: str = "no_ranks"
    late: list[LateRow] = Field(default_factory=list)
    absent: str = ""
    rows: list[RankRow] = Field(default_factory=list)
    groups: list[GroupRow] = Field(default_factory=list)
    tree: list[str] = Field(default_factory=list)


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Return what holds the job in `recording` back."""
    known = thread_states_of(recording)
    ranks = ranks_of(recording, known)
    if not ranks:
        return Judgement(findings=[], data=Data(), seen=0)
    found = hang_of(ranks)
    accused = _accused(found, ranks, known)
    late = {one.pid for one in accused}
    tree = stack_tree((one.rank, one.thread.frames or one.thread.kernel) for one in ranks)
    rows = [_row(one, known, late=one.pid in late) for one in sorted(ranks, key=lambda one: one.pid not in late)]
    data = Data(
        verdict=found.verdict,
        late=accused[: params.top],
        absent="; ".join(f"{key.name}: {rank_list(gone)}" for key, gone in found.absent.items()),
        rows=rows[: params.top],
        groups=[_group(key, ranks) for key in _keys(ranks)][: params.top],
        tree=tree[: 4 * params.top],
    )
    return Judgement(
        findings=_findings(found, known, recording),
        data=data,
        seen=len(ranks),
        totals={"late": len(accused), "rows": len(rows), "groups": len(_keys(ranks)), "tree": len(tree)},
        artifacts=[ArtifactContent("rank-stacks.txt", "Stacks of all ranks", "text/plain", "\n".join(tree) + "\n")],
        basis=found,
    )


def _keys(ranks: list[RankState]) -> list[GroupKey]:
    return sorted({key for one in ranks for key in one.groups}, key=lambda key: (-key.size, key.name))


def _accused(found: Hang, ranks: list[RankState], known: ThreadStates) -> list[LateRow]:
    rows = [
        _late_row(one.state, known, one.group, one.number, rank_list(each.rank for each in one.waiting))
        for one in found.late
    ]
    for odd in found.mismatched:
        others = rank_list(rank for rank in odd.functions if rank not in odd.odd)
        rows += [_late_row(one, known, odd.group, odd.number, others) for one in ranks if one.rank in odd.odd]
    return rows


def _late_row(one: RankState, known: ThreadStates, group: GroupKey, number: int, waiting: str) -> LateRow:
    return LateRow(**_doing(one, known), group=group.name, number=number, waiting=waiting)


def _row(one: RankState, known: ThreadStates, *, late: bool) -> RankRow:
    return RankRow(**_doing(one, known), collective=one.collective, still=one.still, late=late)


def _doing(one: RankState, known: ThreadStates) -> dict[str, Any]:
    """Return the fields of `Doing`."""
    return {
        "rank": one.rank,
        "pid": one.pid,
        "comm": one.comm,
        "doing": one.thread.kind.code,
        "object": known.objects.name(one.thread.object),
        "whom": known.whom(one.thread),
        "line": one.thread.place.line,
    }


def _group(key: GroupKey, ranks: list[RankState]) -> GroupRow:
    members = [one.groups[key] for one in ranks if key in one.groups]
    by_count: dict[int, list[int]] = {}
    for member in members:
        by_count.setdefault(member.started, []).append(member.rank)
    return GroupRow(
        backend=key.backend,
        name=key.name,
        description=next((one.description for one in members if one.description), ""),
        size=key.size,
        ranks=rank_list(one.rank for one in members),
        started="; ".join(f"{count}: {rank_list(of)}" for count, of in sorted(by_count.items(), reverse=True)),
        began=max(one.started - (one.started if one.before is None else one.before) for one in members),
    )


# --- findings ---------------------------------------------------------------------------------------------------


def _findings(found: Hang, known: ThreadStates, recording: Recording) -> list[Finding]:
    ns = recording.manifest.window_ns
    return [_late_finding(one, known, ns) for one in found.late] + [
        row for one in found.mismatched for row in _mismatched(one, ns)
    ]


def _late_finding(one: LateRank, known: ThreadStates, window_ns: int) -> Finding:
    state = one.state
    subject = Subject(type="rank", pid=state.pid, tid=state.thread.tid, comm=state.comm, rank=_or_none(state.rank))
    metrics = {"seq": one.number, "waiting": len(one.waiting), "waiting_s": window_ns / 1e9, "window_pct": 100.0}
    words = {"name": one.group.name, "wait": state.thread.kind.code, "code": state.thread.place.line}
    words |= {"object": known.objects.name(state.thread.object), "holder": known.whom(state.thread)}
    bad = Severity.MINOR if state.running else Severity.CRITICAL  # a healthy job may compute for long
    return finding("rank.not_entered", subject, window(window_ns), metrics, bad, {k: v for k, v in words.items() if v})


def _mismatched(one: Mismatched, window_ns: int) -> list[Finding]:
    usual = next(function for rank, function in one.functions.items() if rank not in one.odd)
    return [
        finding(
            "rank.mismatch",
            Subject(type="rank", rank=_or_none(rank)),
            window(window_ns),
            {"seq": one.number},
            Severity.CRITICAL,
            {"name": one.group.name, "what": "operation", "expected": usual, "found": one.functions[rank]},
        )
        for rank in one.odd
    ]


def _or_none(rank: int) -> int | None:
    return rank if rank >= 0 else None


TOOL = Tool(
    name="hang",
    title="Hang",
    description=(
        "Which rank of a running torch.distributed job the others wait for, where it is, and for what it waits, by "
        "the number of operations that each rank has begun; merged stacks of all ranks."
    ),
    params=Params,
    data=Data,
    needs=lambda params: [Need("objects")],
    judge=judge,
    kinds=frozenset({"rank.not_entered", "rank.mismatch"}),
    cost=0.5,
)
