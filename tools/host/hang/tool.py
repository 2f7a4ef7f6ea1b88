"""hang: which rank of a running job the others wait for, without a profiler and without stopping anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.contract.params import JobParams
from whystall.tools.contract.registry import ArtifactContent, Judgement, Tool
from whystall.tools.host.common.findings import finding, window
from whystall.tools.host.common.thread_states import thread_states_of
from whystall.tools.host.hang.failures import EXITED, KILLED, Failure, Failures, failures_of
from whystall.tools.host.hang.judge import ENDING, FIRST_FAILURE, Hang, LateRank, Mismatched, hang_of
from whystall.tools.host.hang.ranks import RankState, early_pids, ranks_of
from whystall.tools.host.hang.stack_tree import stack_tree
from whystall.tools.host.hang.tables import Data, failed_row, group_rows, late_rows, rank_row
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.rank_data.rank_list import rank_list


class Params(JobParams):
    """Parameters of hang."""

    duration: Annotated[float, Field(ge=0.5, le=600, description="seconds in which the job must not move")] = 5.0


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Return what holds the job in `recording` back."""
    known = thread_states_of(recording)
    ranks = ranks_of(recording, known)
    if not ranks:
        return Judgement(findings=[], data=Data(verdict=ENDING) if early_pids(recording) else Data(), seen=0)
    return judge_ranks(ranks, failures_of(recording, ranks, known), recording.manifest.window_ns, params.top)


def judge_ranks(ranks: Sequence[RankState], failures: Failures, window_ns: int, top: int) -> Judgement[Data]:
    """Return what holds the job of `ranks` back, which were observed for `window_ns`; at most `top` rows per table.
    `failures`: of ranks of the same job."""
    if not ranks:
        return Judgement(findings=[], data=Data(), seen=0)
    found = hang_of(ranks, failures)
    accused = late_rows(found, ranks)
    late = {(one.host, one.pid) for one in accused}
    tree = stack_tree((one.rank, one.frames) for one in ranks)
    rows = [rank_row(one, late=one.process in late) for one in sorted(ranks, key=lambda one: one.process not in late)]
    groups = group_rows(ranks)
    waiting = [one for one in ranks if one.waits_for_ranks]
    data = Data(
        verdict=found.verdict,
        failed=[failed_row(one) for one in found.failed[:top]],
        just_left=list(failures.just_left[:top]),
        late=accused[:top],
        waiting=rank_list(one.rank for one in waiting),
        waited_s=max((one.idle_s for one in waiting if one.idle_s is not None), default=None),
        absent="; ".join(f"{key.name}: {rank_list(gone)}" for key, gone in found.absent.items()),
        rows=rows[:top],
        groups=groups[:top],
        tree=tree[: 4 * top],
    )
    return Judgement(
        findings=_findings(found, ranks, window_ns, data.waited_s or 0),
        data=data,
        seen=len(ranks),
        totals={
            "failed": len(found.failed),
            "late": len(accused),
            "rows": len(rows),
            "groups": len(groups),
            "tree": len(tree),
        },
        artifacts=[ArtifactContent("rank-stacks.txt", "Stacks of all ranks", "text/plain", "\n".join(tree) + "\n")],
        basis=found,
    )


def _findings(found: Hang, ranks: Sequence[RankState], window_ns: int, waited_s: float) -> list[Finding]:
    waited_s = max(window_ns / 1e9, waited_s)
    rows = [_failed(one, waited_s, window_ns) for one in found.failed] if found.verdict == FIRST_FAILURE else []
    rows += [_late(one, waited_s, window_ns) for one in found.late]
    return rows + [row for odd in found.mismatched for row in _mismatched(odd, ranks, window_ns)]


def _subject(one: RankState | Failure, tid: int | None = None) -> Subject:
    return Subject(
        type="rank",
        pid=one.pid if one.pid > 0 else None,
        tid=tid,
        comm=one.comm or None,
        rank=one.rank if one.rank >= 0 else None,
        host=one.host or None,
    )


def _failed(one: Failure, waited_s: float, window_ns: int) -> Finding:
    metrics = {
        "signal": one.code if one.how == KILLED else None,
        "exit_status": one.code if one.how == EXITED else None,
        "ended_s": one.ago_ns / 1e9 if one.ago_ns >= 0 else None,
        "waiting_s": waited_s,
        "window_pct": 100.0,
    }
    words = {"detail": one.exception, "code": one.line, "path": one.log, "limit_of": one.oom_group}
    words = {name: word for name, word in words.items() if word}
    bad = Severity.MAJOR if one.consequence else Severity.CRITICAL
    return finding("rank.failed", _subject(one), window(window_ns), metrics, bad, words)


def _late(one: LateRank, waited_s: float, window_ns: int) -> Finding:
    state = one.state
    metrics = {"seq": one.number, "waiting": len(one.waiting), "waiting_s": waited_s, "window_pct": 100.0}
    words = {"name": one.group.name, "wait": state.doing, "code": state.line}
    words |= {"object": state.object, "holder": state.whom}
    words = {name: word for name, word in words.items() if word}
    # a healthy job may compute for long
    bad = Severity.MINOR if state.running or all(other.spins for other in one.waiting) else Severity.CRITICAL
    return finding("rank.not_entered", _subject(state, state.tid), window(window_ns), metrics, bad, words)


def _mismatched(one: Mismatched, ranks: Sequence[RankState], window_ns: int) -> list[Finding]:
    usual = next(function for rank, function in one.functions.items() if rank not in one.odd)
    return [
        finding(
            "rank.mismatch",
            _subject(state, state.tid),
            window(window_ns),
            {"seq": one.number},
            Severity.CRITICAL,
            {"name": one.group.name, "what": "operation", "expected": usual, "found": one.functions[state.rank]},
        )
        for state in ranks
        if state.rank in one.odd
    ]


TOOL = Tool(
    name="hang",
    title="Hang",
    description=(
        "Which rank of a running torch.distributed job the others wait for, where and for what it waits, by the "
        "operations that each has begun, or which failed first (exit status, log, OOM kill); merged stacks."
    ),
    params=Params,
    data=Data,
    needs=lambda params: [Need("objects"), Need("job_processes", optional=True)],
    judge=judge,
    kinds=frozenset({"rank.failed", "rank.not_entered", "rank.mismatch"}),
    cost=0.5,
)
