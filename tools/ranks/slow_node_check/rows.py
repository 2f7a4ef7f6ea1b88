"""The tables of slow_node_check: one row per rank, link, replica and accused rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whystall.tools.contract.text import clean
from whystall.tools.ranks.slow_node_check.outcome import Accused, Outcome
from whystall.tools.ranks.slow_node_check.tables import AccusedRow, EvidenceRow, LinkRow, RankRow, ReplicaRow, SlowSteps
from whystall.tools.ranks.slow_node_check.votes import last_ranks
from whystall.tools.timeline.rank_data.rank_list import rank_list

if TYPE_CHECKING:
    from whystall.tools.ranks.analysis.analyse import JobAnalysis
    from whystall.tools.ranks.hangs.find import Hangs
    from whystall.tools.ranks.job import Job
    from whystall.tools.ranks.slow_node_check.links import Transfers


# Numbers of slow steps that are listed.
_LISTED = 200


def where(job: Job, rank: int) -> tuple[str, int | None]:
    """Return host and process of `rank`; empty and None unknown."""
    rows = job.table("ranks").filter(pl.col("rank") == rank)
    if rows.is_empty():
        return "", None
    pid = int(rows["pid"][0])
    return clean(rows["host"][0]), pid if pid > 0 else None


def accused_row(job: Job, one: Accused) -> AccusedRow:
    """Return an accused rank with its evidence."""
    host, pid = where(job, one.rank)
    evidence = [row.model_copy(update={"name": clean(row.name)}) for row in one.kind.evidence]
    if one.transfers is not None:
        evidence.append(_transfer(one.transfers))
    return AccusedRow(
        rank=one.rank,
        host=host,
        pid=pid,
        slow_class=one.kind.slow_class,
        lost_ms_per_step=one.cost_ns / 1e6,
        of_step_pct=100 * one.of_step,
        job_pct=100 * one.of_job,
        votes=one.late.votes,
        steps=one.late.steps,
        p_value=one.late.p_value,
        began_step=one.began if one.began >= 0 else None,
        confidence=one.confidence,
        slow_steps=_slow_steps(one),
        evidence=evidence,
    )


def _slow_steps(one: Accused) -> SlowSteps | None:
    found = one.at_times
    if found is None:
        return None
    usual_ms = one.kind.peers_ms.get("own", 0.0)
    return SlowSteps(
        shape=found.shape,
        steps=list(one.slow_steps[:_LISTED]),
        count=len(one.slow_steps),
        first=one.slow_steps[0],
        last=one.slow_steps[-1],
        lost_ms=found.lost_ns / 1e6,
        period=found.period or None,
        growth_pct=found.slope_ns / usual_ms / 1e4 if found.slope_ns and usual_ms else None,
    )


def _transfer(row: Transfers) -> EvidenceRow:
    name = clean(row.description or row.group)
    return EvidenceRow(what="transfer", name=name, mine=row.transfer_ns / 1e6, peers=row.peers_ns / 1e6, unit="ms")


def hang_rows(job: Job, stuck: Hangs) -> list[AccusedRow]:
    """Return rows of the ranks whose missing, unfinished or different operations others wait in."""
    rows = []
    for rank in stuck.accused:
        host, pid = where(job, rank)
        of_rank = [one for one in stuck.findings if one.subject.rank == rank]
        operations = [
            f"{one.attributes.get('operation', '')} {one.attributes.get('name', '')}".strip() for one in of_rank
        ]
        waiting = [one.metrics.get("waiting", 0.0) for one in of_rank]
        rows.append(
            AccusedRow(
                rank=rank,
                host=host,
                pid=pid,
                slow_class="hang",
                lost_ms_per_step=None,
                of_step_pct=None,
                job_pct=max((one.window_pct for one in of_rank), default=0.0),
                votes=None,
                steps=None,
                p_value=None,
                began_step=None,
                # counted, not estimated: only which of several it is remains open
                confidence="high" if stuck.accused == (rank,) else "medium",
                evidence=[
                    EvidenceRow(
                        what=one.kind.removeprefix("rank."), name=clean(name), mine=0.0, peers=count, unit="count"
                    )
                    for one, name, count in zip(of_rank, operations, waiting, strict=True)
                ],
            )
        )
    return rows


def rank_rows(analysis: JobAnalysis, out: Outcome) -> list[RankRow]:
    """Return every rank, the one with the longest own time first."""
    last: dict[int, float] = {}
    for board in out.grids:
        voted = last_ranks(board)
        last |= {rank: 100 * voted.count(rank) / max(1, len(voted)) for rank in board.ranks}
    peers = {rank: one.label for one in analysis.peers for rank in one.ranks}
    sources = dict(analysis.job.table("ranks").select("rank", "source").iter_rows())
    rows = []
    for (rank,), steps in sorted(analysis.own.partition_by("rank", as_dict=True).items()):
        host, _ = where(analysis.job, rank)
        offset, residual = analysis.clocks.offset_ns.get(rank), analysis.clocks.residual_ns.get(rank)
        rows.append(
            RankRow(
                rank=rank,
                host=host,
                source=sources.get(rank, ""),
                peers=clean(peers.get(rank, "")),
                steps=steps.height,
                step_ms=_mean_ms(steps["step_ns"]) or 0.0,
                own_ms=_mean_ms(steps["own_ns"]) or 0.0,
                wait_ms=_mean_ms(steps["wait_ns"]) or 0.0,
                compute_ms=_mean_ms(steps["compute_ns"]),
                gap_ms=_mean_ms(steps["gap_ns"]),
                exposed_comm_ms=_mean_ms(steps["exposed_comm_ns"]),
                offset_us=None if offset is None else offset / 1e3,
                residual_us=None if residual is None else residual / 1e3,
                last_pct=last.get(rank, 0.0),
            )
        )
    return sorted(rows, key=lambda row: (-row.own_ms, row.rank))


def _mean_ms(part_ns: pl.Series) -> float | None:
    """Return the mean over the steps with the part: in others it is below zero. Not trimmed: parts add up."""
    known = part_ns.filter(part_ns >= 0)
    return float(str(known.mean())) / 1e6 if len(known) else None


def link_rows(out: Outcome) -> list[LinkRow]:
    """Return groups and pairs whose transfers could be compared, slow ones first."""
    return [
        LinkRow(
            ranks=_members(row),
            group=clean(row.description or row.group),
            op=row.op,
            bytes=row.bytes if row.bytes >= 0 else None,
            count=row.count,
            transfer_ms=row.transfer_ns / 1e6,
            peers_ms=row.peers_ns / 1e6,
            gb_per_s=row.gb_per_s,
        )
        for row in (out.links.rows if out.links is not None else [])
        if row.peers_ns > 0
    ]


def _members(row: Transfers) -> str:
    """Return ``0-3``, or of a pair ``2 to 3``: both directions are rows of their own."""
    if row.source not in row.ranks or len(row.ranks) != 2:
        return rank_list(row.ranks)
    (target,) = (rank for rank in row.ranks if rank != row.source)
    return f"{row.source} to {target}"


def replica_rows(job: Job, out: Outcome) -> list[ReplicaRow]:
    """Return replicas, the slowest first."""
    rows = [
        ReplicaRow(
            rank=one.rank,
            host=where(job, one.rank)[0],
            steps=one.steps,
            p50_ms=one.p50_ns / 1e6,
            p99_ms=one.p99_ns / 1e6,
            ratio=one.ratio,
        )
        for one in out.replicas
    ]
    return sorted(rows, key=lambda row: (-row.ratio, row.rank))
