"""Find a pipeline stage whose ranks all take longer than those of other stages: the model is split unevenly.

Stages are compared like ranks (`votes`), each by its median rank per step, and by what ran between collectives if that
is recorded: in a pipeline the time without waits also depends on the position in it. Every step takes longer by the
difference between the slowest stage and the next one. A stage is slow only if every one of its innocent ranks is above
the others; one slow rank does not make a slow stage.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import polars as pl

from whystall.tools.ranks.job import Peers
from whystall.tools.ranks.slow_node_check import votes
from whystall.tools.ranks.slow_node_check.grid import Grid, grid, known, middle
from whystall.tools.ranks.statistics import probability

# Every rank of a slow stage has at least this part of the stage's extra time.
_EVENLY = 0.5


@dataclass(frozen=True)
class SlowStage:
    """A stage compared with the others. `own_ns` per step of its median rank, `peers_ns` of the median other stage;
    `began`: the step's number, -1 from the start."""

    peers: Peers
    late: votes.Late
    own_ns: float
    peers_ns: float
    began: int


def slow_stages(
    own: pl.DataFrame, peers: Sequence[Peers], accused: Collection[int], floor_ns: float, *, has_work: bool
) -> list[SlowStage]:
    """Return the stages that hold the others back by at least `floor_ns` per step, apart from the ranks `accused`."""
    stages = [one for one in peers if set(one.ranks) - set(accused)]
    if len(stages) < 2:
        return []
    ranks = sorted(rank for one in stages for rank in one.ranks if rank not in accused)
    every = grid(own, ranks, has_work=has_work)
    if every.work is not None:
        every = replace(every, own=every.work)
    board = _board(every, stages, accused)
    if len(board.steps) < votes.enough_steps(board):
        return []
    found = []
    for late in votes.late(board, floor_ns):
        stage = stages[late.rank]
        innocent = [rank for rank in stage.ranks if rank not in accused]
        stage_ns = probability.trimmed_mean(known(board.own[str(late.rank)]))
        others = probability.trimmed_mean(known(middle(board.own, board.others((late.rank,)))))
        least = min(probability.trimmed_mean(known(every.own[str(rank)])) for rank in innocent)
        if least - others >= _EVENLY * (stage_ns - others):
            began = board.steps[late.began] if late.began >= 0 else -1
            found.append(SlowStage(stage, late, stage_ns, others, began))
    return found


def _board(every: Grid, stages: Sequence[Peers], accused: Collection[int]) -> Grid:
    def medians(frame: pl.DataFrame) -> pl.DataFrame:
        return pl.DataFrame(
            {
                str(index): middle(frame, [rank for rank in stage.ranks if rank not in accused])
                for index, stage in enumerate(stages)
            }
        )

    work = medians(every.work) if every.work is not None else None
    return Grid(tuple(range(len(stages))), every.steps, medians(every.own), medians(every.wait), work, every.step_ns)
