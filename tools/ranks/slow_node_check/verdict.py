"""Decide which ranks hold the job back, why, at what cost and how surely - or why that is undecided.

Two measures must agree before a rank is accused: the others waited for it (the durations of collectives, `votes`), and
it took longer itself (its work between them, `classify`). The largest cost gives the verdict. No rank is accused on a
mixed signal, on too few steps, where noise or the clocks' residual is as large as the claim, or where an absent rank
may be the one that all wait for. `none` is a measurement too: it is reported only if a rank that costs `Floors.warn`
would have been found. A rank that is slow in some steps only is `intermittent`: that alone does not make its node bad.

Confidence of an accusation: *high* - p < 0.001, it costs at least `Floors.critical` of a step, and both measures agree;
*medium* - p < 0.001 and both agree; *low* - the rest. A job with ranks missing or with operations that could not be
matched gives one grade less. Replicas do not wait, which leaves one measure: at most *medium*. So are sums of steps:
their measures are parts of one time.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from whystall.tools.ranks.slow_node_check import votes
from whystall.tools.ranks.slow_node_check.classify import Kind, classify
from whystall.tools.ranks.slow_node_check.detectable import smallest_ns
from whystall.tools.ranks.slow_node_check.examine import examine
from whystall.tools.ranks.slow_node_check.grid import Grid, ahead_of_all, grid, highest, known, lost_in
from whystall.tools.ranks.slow_node_check.intermittent import Intermittent
from whystall.tools.ranks.slow_node_check.links import Links, links
from whystall.tools.ranks.slow_node_check.missing_operations import incomplete_ranks
from whystall.tools.ranks.slow_node_check.outcome import Accused, Confidence, Floors, Outcome
from whystall.tools.ranks.slow_node_check.replicas_verdict import decide_replicas
from whystall.tools.ranks.slow_node_check.stages import slow_stages
from whystall.tools.ranks.slow_node_check.tables import Verdict
from whystall.tools.ranks.statistics import probability
from whystall.tools.timeline.collectives import SYNCHRONISING

if TYPE_CHECKING:
    from whystall.tools.ranks.analysis.analyse import JobAnalysis

# More than this share of operations not found on all their ranks: the rest is no fair sample.
MOST_UNMATCHED = 0.3
# From this share on the answer is less sure.
SOME_UNMATCHED = 0.05
# Transfers above this share of a step may be slow; without others to compare with that is undecided.
MOSTLY_TRANSFERS = 0.5
# One-sided 99 %: what noise can hide.
_Z = 2.33
# At least this share of the loss by waits must show in the work too: else the two measures contradict each other.
_AGREE = 0.5


def decide(analysis: JobAnalysis, floors: Floors) -> Outcome:
    """Return the verdict on the job of `analysis`, hangs excluded."""
    if analysis.summed:
        return _summed(analysis, floors)
    if analysis.job.table("collectives").is_empty():
        return decide_replicas(analysis, floors)
    return _Case(analysis, floors).close()


def _summed(analysis: JobAnalysis, floors: Floors) -> Outcome:
    """Return the verdict by sums of each step. A rank is accused if it communicates shorter than all its peers - they
    wait for it - and what is measured of its own work (not the idle rest of the step) makes up the difference."""
    waits = int(str(analysis.own["exposed_comm_ns"].sum())) > 0
    works = analysis.own.height and int(str(analysis.own["compute_ns"].min())) >= 0
    if waits and works:
        return _Case(analysis, floors).close()
    out = Outcome(reasons=["no_work_seen" if waits else "no_waits"], steps=analysis.own["step"].n_unique())
    out.step_ns = probability.median(analysis.own["step_ns"].to_list())
    return out


class _Case:
    """One job while it is judged."""

    def __init__(self, analysis: JobAnalysis, floors: Floors) -> None:
        self.analysis = analysis
        self.floors = floors
        self.own = analysis.own
        # without work in the traces there is one measure only
        self.has_work = not self.own.is_empty() and int(str(self.own["compute_ns"].min())) >= 0
        self.incomplete = incomplete_ranks(analysis.job, analysis.matched, self.own)
        complete = (
            replace(one, ranks=tuple(r for r in one.ranks if r not in self.incomplete)) for one in analysis.peers
        )
        self.peers = [one for one in complete if one.ranks]
        self.result = Outcome(incomplete=tuple(sorted(self.incomplete)))
        self.abstain: list[str] = []
        self.result.steps = self.own["step"].n_unique()
        self.result.step_ns = probability.median(self.own["step_ns"].to_list())
        self.floor_ns = floors.warn * self.result.step_ns
        if self.result.steps and (analysis.summed or not analysis.waits.is_empty()):
            self.result.lost = float(self.own["wait_ns"].sum()) / max(1, int(self.own["step_ns"].sum()))

    def close(self) -> Outcome:
        """Examine ranks, links and stages, and weigh them."""
        out = self.result
        if not out.step_ns:
            ended = (self.analysis.job.table("collectives")["end_ns"] > 0).any()
            out.because("few_steps" if ended else "no_durations")
            return out
        if self.analysis.summed:
            out.because("step_sums")
        if not self.has_work:
            out.because("no_work_seen")
        out.links = links(self.analysis.job, self.analysis.matched, self.analysis.waits, out.step_ns)
        self._ranks()
        self._links()
        self._stages()
        self._weigh()
        return out

    # --- examining --------------------------------------------------------------------------------------------------

    def _ranks(self) -> None:
        out = self.result
        comparable = [one for one in self.peers if len(one.ranks) > 1]
        if not comparable:
            self.abstain.append("few_ranks")
        for peers in comparable:
            lost = lost_in(self.analysis.matched, peers.ranks)
            own = _measured(self.own) if self.analysis.summed else self.own
            board = grid(own, peers.ranks, has_work=self.has_work, lost=lost)
            out.grids.append(board)
            if len(board.steps) < votes.enough_steps(board):
                self.abstain.append("few_steps")
                continue
            found = examine(board, self.floor_ns, len(comparable))
            if found.turns is not None:
                out.turns.append(found.turns)
                continue
            innocent = board.others([*(one.rank for one in found.late), *(one.rank for one in found.at_times)])
            accused = [self._accuse(one, innocent, board) for one in found.late if self._agreed(one)]
            accused += [self._accuse_at_times(one, innocent, board) for one in found.at_times if self._agreed(one.late)]
            if found.doubtful:
                self.abstain.append("few_slow_steps")
            out.accused += accused
            if not accused:
                self._what_noise_hides(board)

    def _agreed(self, late: votes.Late) -> bool:
        """Return whether the work between collectives agrees; a clear contradiction is noted."""
        if (absent := self._absent()) and self._exposed(late.rank) >= self.floors.warn:
            self.abstain += absent  # it may wait for an absent rank itself: then it costs nothing
            return False
        if late.work_lost_ns is None and late.p_value >= votes.SURE:
            self.abstain.append("no_work_seen")
            return False
        if late.work_lost_ns is None or late.work_lost_ns >= self.floor_ns:
            return self._beyond_residual(late)
        if late.work_lost_ns < _AGREE * late.lost_ns:
            self.abstain.append("mixed_signals")
        return False

    def _absent(self) -> list[str]:
        """Return why another rank may be the one all wait for: without a trace, or with operations missing."""
        missing = ["ranks_missing"] if self.analysis.job.missing else []
        return [*missing, "unmatched"] if self.incomplete else missing

    def _beyond_residual(self, late: votes.Late) -> bool:
        """Return whether ranks leave operations so close together that durations show which came last."""
        if late.cost_ns > max(self.analysis.clocks.residual_ns.values(), default=0):
            return True
        self.abstain.append("clocks")
        return False

    def _accuse(self, late: votes.Late, innocent: tuple[int, ...], board: Grid) -> Accused:
        since = board.steps[late.began] if late.began >= 0 else None
        rows = self.own if since is None else self.own.filter(pl.col("step") >= since)
        kind = classify(rows, self.analysis.job.table("operators"), late.rank, innocent, self.result.steps)
        return self._accused(late, kind, innocent, late.cost_ns, -1 if since is None else since, agreed=self.has_work)

    def _accuse_at_times(self, one: Intermittent, innocent: tuple[int, ...], board: Grid) -> Accused:
        numbers = tuple(board.steps[row] for row in one.rows)
        rows = self.own.filter(pl.col("step").is_in(numbers))
        kind = classify(rows, self.analysis.job.table("operators"), one.rank, innocent, self.result.steps)
        of_rank = self.own.filter(pl.col("rank") == one.rank)
        slow_ns = int(of_rank.filter(pl.col("step").is_in(numbers))["step_ns"].sum())
        of_step = min(1.0, one.lost_ns / max(1, slow_ns))
        of_job = min(1.0, one.lost_ns / max(1, int(of_rank["step_ns"].sum())))
        sure = self._confidence(one.p_value, of_step, agreed=self.has_work)
        began = numbers[0] if one.shape in ("since", "drift") else -1
        cost = one.late.cost_ns
        return Accused(
            one.rank, one.late, kind, innocent, cost, of_step, of_job, began, sure, at_times=one, slow_steps=numbers
        )

    def _accused(
        self, late: votes.Late, kind: Kind, peers: tuple[int, ...], cost_ns: float, began: int, *, agreed: bool
    ) -> Accused:
        of_rank = self.own.filter(pl.col("rank") == late.rank)
        slow = of_rank if began < 0 else of_rank.filter(pl.col("step") >= began)
        # from the start: the median step of the job, which is the one reported
        step_ns = self.result.step_ns if began < 0 else probability.median(slow["step_ns"].to_list())
        of_step = cost_ns / step_ns if step_ns > 0 else 0.0
        of_job = cost_ns * slow.height / max(1, int(of_rank["step_ns"].sum()))
        sure = self._confidence(late.p_value, of_step, agreed=agreed)
        return Accused(late.rank, late, kind, peers, cost_ns, of_step, min(1.0, of_job), began, sure)

    def _confidence(self, p_value: float, of_step: float, *, agreed: bool) -> Confidence:
        grades: tuple[Confidence, ...] = ("low", "medium", "high")
        grade = 0
        if p_value < votes.SURE and agreed:
            grade = 2 if not self.analysis.summed and of_step >= self.floors.critical else 1
        if self._absent() or self._unmatched() > SOME_UNMATCHED:
            grade -= 1
        return grades[max(0, grade)]

    def _what_noise_hides(self, board: Grid) -> None:
        """Abstain where a rank may cost as much as the floor, by both measures, and steps vary too much to decide."""
        frames = [ahead_of_all(frame) for frame in (board.own, board.work) if frame is not None]
        if any(min(_at_most(frame[str(rank)]) for frame in frames) >= self.floor_ns for rank in board.ranks):
            self.abstain.append("noise")

    def _links(self) -> None:
        """Accuse ranks whose transfers are slow: by comparison with others, and as far as they lengthen the steps."""
        out = self.result
        found = out.links
        if found is None or not found.slow:
            return
        cost_ns = min(found.cost_ns, self._exposed_excess(found))
        if cost_ns < self.floor_ns:
            return
        row = found.slow[0]
        if len(found.suspects) > 2:
            out.because("link_of_group")
            out.links = replace(found, cost_ns=cost_ns)
            return
        for rank in found.suspects:
            if any(one.rank == rank for one in out.accused):
                continue
            innocent = tuple(r for r in self._peers_of(rank) if r not in found.suspects)
            late = votes.Late(rank, row.votes, row.steps, row.p_value, cost_ns, None, -1)
            kind_of_rank = classify(self.own, self.analysis.job.table("operators"), rank, innocent, out.steps)
            kind = replace(kind_of_rank, slow_class="communication_slow", name=row.description or row.group)
            one = self._accused(late, kind, innocent, cost_ns, row.began, agreed=True)
            out.accused.append(replace(one, transfers=row))
        out.links = replace(found, cost_ns=cost_ns)

    def _peers_of(self, rank: int) -> tuple[int, ...]:
        return next((one.ranks for one in self.peers if rank in one.ranks), ())

    def _exposed_excess(self, found: Links) -> float:
        """Return how much longer the members of the slow groups took than peers that are in none: a transfer that is
        hidden behind work costs nothing. Without such peers it is unknown, and not limited."""
        members = {rank for row in found.slow for rank in row.ranks}
        felt = []
        for board in self.result.grids:
            of_rank, others = [r for r in board.ranks if r in members], board.others(members)
            if of_rank and others:
                ahead = highest(board.own, of_rank) - highest(board.own, others)
                felt.append(probability.trimmed_mean(known(ahead)))
        return max(felt, default=math.inf)

    def _stages(self) -> None:
        out = self.result
        staged = [one for one in self.peers if one.how != "all"]
        # first with all ranks: noise makes one of a slow stage appear slow too. Then without those that are.
        for apart in (set[int](), {one.rank for one in out.accused}):
            out.stages = slow_stages(self.own, staged, apart, self.floor_ns, has_work=self.has_work)
            if out.stages:
                return

    # --- weighing ---------------------------------------------------------------------------------------------------

    def _weigh(self) -> None:
        out = self.result
        out.accused.sort(key=lambda one: (-one.of_job, one.rank))
        linked = [one for one in out.accused if one.transfers is not None]
        at_times = [one for one in out.accused if one.at_times is not None]
        slow = [one for one in out.accused if one not in linked and one not in at_times]
        costs: dict[Verdict, float] = {
            "moving": max((one.lost_ns for one in out.turns), default=0.0),
            "several" if len(slow) > 1 else "rank": max((one.cost_ns for one in slow), default=0.0),
            "intermittent": max((one.of_job * out.step_ns for one in at_times), default=0.0),
            "link": max((one.cost_ns for one in linked), default=0.0),
            "stage": max((one.late.cost_ns for one in out.stages), default=0.0),
        }
        if "link_of_group" in out.reasons and out.links is not None:
            costs["link"] = max(costs["link"], out.links.cost_ns)
        verdict, cost = max(costs.items(), key=lambda item: item[1])
        if cost > 0:
            out.verdict = verdict
            if verdict in ("stage", "moving", "link"):  # uncertain findings are dropped beside one that explains more
                out.accused = [one for one in out.accused if one in linked or one.confidence != "low"]
            if any(len(one.peers.ranks) == 1 for one in out.stages):
                out.because("stage_of_one")
            if any(one.kind.slow_class == "host_slow" and "loader" not in one.kind.peers_ms for one in out.accused):
                out.because("loader_unseen")
            return
        self._acquit()

    def _acquit(self) -> None:
        """No rank is accused: either none is slow, or it is undecided."""
        out = self.result
        unmatched = self._unmatched()
        if unmatched > MOST_UNMATCHED:
            self.abstain.append("unmatched")
        if (absent := self._absent()) and self._exposed() >= self.floors.warn:
            self.abstain += absent
        if not (out.links and out.links.compared) and self._exposed() - (out.lost or 0.0) > MOSTLY_TRANSFERS:
            self.abstain.append("no_baseline")
        if any(self._hidden(board) for board in out.grids):
            self.abstain.append("mixed_signals")
        for code in self.abstain:
            out.because(code)
        if set(self.abstain) <= {"noise", "few_slow_steps"} and out.grids:
            sizes = [smallest_ns(board, self.floor_ns, len(out.grids)) for board in out.grids if len(board.ranks) > 1]
            residual_ns = max(self.analysis.clocks.residual_ns.values(), default=0)
            out.detectable = max([residual_ns, *sizes]) / out.step_ns
        if self.abstain:
            return
        out.verdict = "none"
        if any(self._uneven(board) for board in out.grids):
            out.because("uneven_steps")

    def _unmatched(self) -> float:
        """Return the share of the synchronising operations without a counterpart on another rank."""
        rows = self.analysis.job.table("collectives").filter(pl.col("op").is_in([*SYNCHRONISING, "recv"]))
        if self.analysis.summed:
            return 0.0
        count = rows.height - self.analysis.counts.get("single", 0)
        return 1 - self.analysis.waits.height / count if count > 0 else 1.0

    def _exposed(self, rank: int | None = None) -> float:
        """Return the share of the steps spent only communicating or waiting: the most an absent rank costs."""
        rows = self.own if rank is None else self.own.filter(pl.col("rank") == rank)
        return float(rows["exposed_comm_ns"].sum()) / max(1, int(rows["step_ns"].sum()))

    def _hidden(self, board: Grid) -> bool:
        """Return whether a rank computes longer than the others, who wait for it in something that no trace has."""
        if board.work is None or len(board.steps) < votes.enough_steps(board):
            return False
        busy = grid(self.own.with_columns(own_ns=pl.col("compute_ns"), wait_ns=-pl.col("compute_ns")), board.ranks)
        return any(one.cost_ns >= self.floor_ns for one in votes.late(busy, self.floor_ns))

    def _uneven(self, board: Grid) -> bool:
        """Return whether the slowest ranks of all steps together cost as much as one slow rank would."""
        first = highest(board.own, board.ranks)
        usual = board.own.select(pl.concat_list(pl.all()).list.median()).to_series()
        return probability.trimmed_mean(known(first - usual)) >= self.floor_ns


def _measured(own: pl.DataFrame) -> pl.DataFrame:
    """Return `own` (`OWN`, of sums) with the idle time that was measured: in which data were fetched."""
    return own.with_columns(gap_ns=pl.col("loader_ns").clip(0))


def _at_most(ahead_of_others: pl.Series) -> float:
    """Return how much longer a rank takes than the slowest other one, at most by the noise."""
    ahead = known(ahead_of_others)
    return probability.trimmed_mean(ahead) + _Z * probability.spread(ahead) / math.sqrt(max(1, len(ahead)))
