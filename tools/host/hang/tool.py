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
from whystall.tools.host.hang.judge import LateRank, Mismatched, hang_of
from whystall.tools.host.hang.ranks import RankState, ranks_of
from whystall.tools.host.hang.stack_tree import stack_tree
from whystall.tools.host.hang.tables import Data, group_rows, late_rows, rank_row
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.rank_data.rank_list import rank_list


class Params(JobParams):
    """Parameters of hang."""

    duration: Annotated[float, Field(ge=0.5, le=600, description="seconds in which the job must not move")] = 5.0


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Return what holds the job in `recording` back."""
    ranks = ranks_of(recording, thread_states_of(recording))
    return judge_ranks(ranks, recording.manifest.window_ns, params.top)


def judge_ranks(ranks: Sequence[RankState], window_ns: int, top: int) -> Judgement[Data]:
    """Return what holds the job of `ranks` back, which were observed for `window_ns`; at most `top` rows per table."""
    if not ranks:
        return Judgement(findings=[], data=Data(), seen=0)
    found = hang_of(ranks)
    accused = late_rows(found, ranks)
    late = {(one.host, one.pid) for one in accused}
    tree = stack_tree((one.rank, one.frames) for one in ranks)
    rows = [rank_row(one, late=one.process in late) for one in sorted(ranks, key=lambda one: one.process not in late)]
    groups = group_rows(ranks)
    data = Data(
        verdict=found.verdict,
        late=accused[:top],
        absent="; ".join(f"{key.name}: {rank_list(gone)}" for key, gone in found.absent.items()),
        rows=rows[:top],
        groups=groups[:top],
        tree=tree[: 4 * top],
    )
    late_ones = [_late(one, window_ns) for one in found.late]
    return Judgement(
        findings=[*late_ones, *(row for odd in found.mismatched for row in _mismatched(odd, ranks, window_ns))],
        data=data,
        seen=len(ranks),
        totals={"late": len(accused), "rows": len(rows), "groups": len(groups), "tree": len(tree)},
        artifacts=[ArtifactContent("rank-stacks.txt", "Stacks of all ranks", "text/plain", "\n".join(tree) + "\n")],
        basis=found,
    )


def _subject(one: RankState) -> Subject:
    rank = one.rank if one.rank >= 0 else None
    return Subject(type="rank", pid=one.pid, tid=one.tid, comm=one.comm, rank=rank, host=one.host or None)


def _late(one: LateRank, window_ns: int) -> Finding:
    state = one.state
    metrics = {"seq": one.number, "waiting": len(one.waiting), "waiting_s": window_ns / 1e9, "window_pct": 100.0}
    words = {"name": one.group.name, "wait": state.doing, "code": state.line}
    words |= {"object": state.object, "holder": state.whom}
    words = {name: word for name, word in words.items() if word}
    bad = Severity.MINOR if state.running else Severity.CRITICAL  # a healthy job may compute for long
    return finding("rank.not_entered", _subject(state), window(window_ns), metrics, bad, words)


def _mismatched(one: Mismatched, ranks: Sequence[RankState], window_ns: int) -> list[Finding]:
    usual = next(function for rank, function in one.functions.items() if rank not in one.odd)
    return [
        finding(
            "rank.mismatch",
            _subject(state),
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
        "Which rank of a running torch.distributed job the others wait for, where it is, and for what it waits, by the "
        "number of operations that each rank has begun (read from memory); merged stacks of all ranks. Nothing has to "
        "be enabled in the job."
    ),
    params=Params,
    data=Data,
    needs=lambda params: [Need("objects")],
    judge=judge,
    kinds=frozenset({"rank.not_entered", "rank.mismatch"}),
    cost=0.5,
)
