"""hang: which rank of a running job the others wait for, without a profiler and without stopping anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.contract.params import JobParams
from whystall.tools.contract.registry import ArtifactContent, Judgement, Tool
from whystall.tools.contract.result import Model
from whystall.tools.host.common.findings import finding, window
from whystall.tools.host.common.thread_states import ThreadStates, thread_states_of
from whystall.tools.host.hang.failures import EXITED, KILLED, Failure, failures_of
from whystall.tools.host.hang.judge import ENDING, FIRST_FAILURE, Hang, LateRank, Mismatched, hang_of
from whystall.tools.host.hang.ranks import GroupKey, RankState, early_pids, ranks_of
from whystall.tools.host.hang.stack_tree import stack_tree
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.rank_data.rank_list import rank_list


class Params(JobParams):
    """Parameters of hang."""

    duration: Annotated[float, Field(ge=0.5, le=600, description="seconds in which the job must not move")] = 5.0


class Doing(Model):
    """A rank, and what it does: ``running``, or what its thread waits for, of `object`. `whom`: the holder of that,
    with its line; `line`: of the program; `idle_s`: for how long at least its thread has not run, None if it runs or
    that is not known."""

    rank: int
    pid: int
    comm: str
    doing: str
    object: str
    whom: str
    line: str
    idle_s: float | None = None


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


class FailedRow(Model):
    """A rank that has failed or left the job, the first one first. `how`: a constant of `failures`; `code`: the signal
    or the exit status; `ago_s`: since it ended; `exception`: ``ValueError: text`` by `log`; `line`: of the program, in
    it; `oom_group`: the kernel killed it (`oom_it`), or processes of the job, for lack of memory in this cgroup;
    `consequence`: so end ranks when another one has ended. None or empty: not known."""

    rank: int
    pid: int | None
    how: str
    code: int | None
    ago_s: float | None
    exception: str
    line: str
    log: str
    oom_group: str
    oom_it: bool
    consequence: bool


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
    """`verdict`: a constant of `judge`, or ``no_ranks``. `failed`: ranks that have ended or failed; `late`: those to
    look at first; `waiting`: those in a collective, as ``0-1, 3``, the longest for at least `waited_s` (None: not
    known). `tree`: stacks of all ranks, merged."""

    verdict: str = "no_ranks"
    failed: list[FailedRow] = Field(default_factory=list)
    late: list[LateRow] = Field(default_factory=list)
    waiting: str = ""
    waited_s: float | None = None
    absent: str = ""
    rows: list[RankRow] = Field(default_factory=list)
    groups: list[GroupRow] = Field(default_factory=list)
    tree: list[str] = Field(default_factory=list)


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Return what holds the job in `recording` back."""
    known = thread_states_of(recording)
    ranks = ranks_of(recording, known)
    if not ranks:
        return Judgement(findings=[], data=Data(verdict=ENDING) if early_pids(recording) else Data(), seen=0)
    found = hang_of(ranks, failures_of(recording, ranks, known))
    idle = _idle(recording)
    waited = [(one.rank, idle.get(one.thread.tid)) for one in ranks if one.waits_for_ranks]
    accused = _accused(found, ranks, known, idle)
    late = {one.pid for one in accused}
    tree = stack_tree((one.rank, one.thread.frames or one.thread.kernel) for one in ranks)
    rows = [_row(one, known, idle, late=one.pid in late) for one in sorted(ranks, key=lambda one: one.pid not in late)]
    data = Data(
        verdict=found.verdict,
        failed=[_failed_row(one) for one in found.failed][: params.top],
        late=accused[: params.top],
        waiting=rank_list(rank for rank, _ in waited),
        waited_s=max((idle_s for _, idle_s in waited if idle_s is not None), default=None),
        absent="; ".join(f"{key.name}: {rank_list(gone)}" for key, gone in found.absent.items()),
        rows=rows[: params.top],
        groups=[_group(key, ranks) for key in _keys(ranks)][: params.top],
        tree=tree[: 4 * params.top],
    )
    return Judgement(
        findings=_findings(found, known, recording, data),
        data=data,
        seen=len(ranks),
        totals={
            "failed": len(found.failed),
            "late": len(accused),
            "rows": len(rows),
            "groups": len(_keys(ranks)),
            "tree": len(tree),
        },
        artifacts=[ArtifactContent("rank-stacks.txt", "Stacks of all ranks", "text/plain", "\n".join(tree) + "\n")],
        basis=found,
    )


def _keys(ranks: list[RankState]) -> list[GroupKey]:
    return sorted({key for one in ranks for key in one.groups}, key=lambda key: (-key.size, key.name))


def _idle(recording: Recording) -> dict[int, float]:
    """Return for how long threads have not run, in seconds: main threads, by their process."""
    if not recording.has("job_processes"):
        return {}
    return {pid: ns / 1e9 for pid, ns in recording.table("job_processes.idle").select("pid", "idle_ns").iter_rows()}


def _failed_row(one: Failure) -> FailedRow:
    return FailedRow(
        rank=one.rank,
        pid=one.pid if one.pid > 0 else None,
        how=one.how,
        code=one.code if one.code >= 0 else None,
        ago_s=one.ago_ns / 1e9 if one.ago_ns >= 0 else None,
        exception=one.exception,
        line=one.line,
        log=one.log,
        oom_group=one.oom_group,
        oom_it=one.oom_it,
        consequence=one.consequence,
    )


def _accused(found: Hang, ranks: list[RankState], known: ThreadStates, idle: Mapping[int, float]) -> list[LateRow]:
    rows = [
        _late_row(one.state, known, idle, one.group, one.number, rank_list(each.rank for each in one.waiting))
        for one in found.late
    ]
    for odd in found.mismatched:
        others = rank_list(rank for rank in odd.functions if rank not in odd.odd)
        rows += [_late_row(one, known, idle, odd.group, odd.number, others) for one in ranks if one.rank in odd.odd]
    return rows


def _late_row(
    one: RankState, known: ThreadStates, idle: Mapping[int, float], group: GroupKey, number: int, waiting: str
) -> LateRow:
    return LateRow(**_doing(one, known, idle), group=group.name, number=number, waiting=waiting)


def _row(one: RankState, known: ThreadStates, idle: Mapping[int, float], *, late: bool) -> RankRow:
    return RankRow(**_doing(one, known, idle), collective=one.collective, still=one.still, late=late)


def _doing(one: RankState, known: ThreadStates, idle: Mapping[int, float]) -> dict[str, Any]:
    """Return the fields of `Doing`."""
    return {
        "rank": one.rank,
        "pid": one.pid,
        "comm": one.comm,
        "doing": one.thread.kind.code,
        "object": known.objects.name(one.thread.object),
        "whom": known.whom(one.thread),
        "line": one.thread.place.line,
        "idle_s": None if one.running else idle.get(one.thread.tid),
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


def _findings(found: Hang, known: ThreadStates, recording: Recording, data: Data) -> list[Finding]:
    ns = recording.manifest.window_ns
    waited_s = max(ns / 1e9, data.waited_s or 0)
    rows = [_failed_finding(one, waited_s, ns) for one in found.failed] if found.verdict == FIRST_FAILURE else []
    rows += [_late_finding(one, known, waited_s, ns) for one in found.late]
    return rows + [row for one in found.mismatched for row in _mismatched(one, ns)]


def _failed_finding(one: Failure, waited_s: float, window_ns: int) -> Finding:
    metrics = {
        "signal": one.code if one.how == KILLED else None,
        "exit_status": one.code if one.how == EXITED else None,
        "ended_s": one.ago_ns / 1e9 if one.ago_ns >= 0 else None,
        "waiting_s": waited_s,
        "window_pct": 100.0,
    }
    words = {"detail": one.exception, "code": one.line, "path": one.log, "limit_of": one.oom_group}
    return finding(
        "rank.failed",
        Subject(type="rank", pid=one.pid if one.pid > 0 else None, comm=one.comm or None, rank=_or_none(one.rank)),
        window(window_ns),
        metrics,
        Severity.MAJOR if one.consequence else Severity.CRITICAL,
        {k: v for k, v in words.items() if v},
    )


def _late_finding(one: LateRank, known: ThreadStates, waited_s: float, window_ns: int) -> Finding:
    state = one.state
    subject = Subject(type="rank", pid=state.pid, tid=state.thread.tid, comm=state.comm, rank=_or_none(state.rank))
    metrics = {"seq": one.number, "waiting": len(one.waiting), "waiting_s": waited_s, "window_pct": 100.0}
    words = {"name": one.group.name, "wait": state.thread.kind.code, "code": state.thread.place.line}
    words |= {"object": known.objects.name(state.thread.object), "holder": known.whom(state.thread)}
    # a healthy job may compute for long
    bad = Severity.MINOR if state.running or all(other.spins for other in one.waiting) else Severity.CRITICAL
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
        "Which rank of a running torch.distributed job the others wait for, where and for what it waits, by the "
        "operations that each has begun, or which failed first (exit status, log, OOM kill); merged stacks. Nothing "
        "has to be enabled in the job."
    ),
    params=Params,
    data=Data,
    needs=lambda params: [Need("objects"), Need("job_processes", optional=True)],
    judge=judge,
    kinds=frozenset({"rank.failed", "rank.not_entered", "rank.mismatch"}),
    cost=0.5,
)
