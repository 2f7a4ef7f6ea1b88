"""Examine ranks that do the same work: which of them are slow in every step, in some steps only, or in turns.

One loss is explained once: ranks that take turns are no accusation of any of them, and a rank that is slow in some
steps only is not counted as slow in every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from whystall.tools.ranks.slow_node_check import votes
from whystall.tools.ranks.slow_node_check.grid import Grid
from whystall.tools.ranks.slow_node_check.intermittent import EVENT, AtTimes, Intermittent, intermittent, seldom
from whystall.tools.ranks.statistics.placement import lasting


@dataclass(frozen=True)
class Suspects:
    """`late`: slow in every step, or since one; `at_times`: in some only; `turns`: one after the other, then the rest
    is empty. `doubtful`: a rank lost time in some steps, too few to tell whether that was chance."""

    turns: votes.Turns | None = None
    late: list[votes.Late] = field(default_factory=list)
    at_times: list[Intermittent] = field(default_factory=list)
    doubtful: bool = False


def examine(board: Grid, floor_ns: float, tests: float = 1) -> Suspects:
    """Return who of the ranks of `board` holds the others back by at least `floor_ns`. `tests`: number of other tests
    made."""
    turns = votes.turns(board, floor_ns, tests)
    at_times = intermittent(board, floor_ns, tests)
    if turns is None and 2 * len(at_times.found) > len(board.ranks):
        turns = _of_all(at_times.found, board)
    if turns is not None:
        return Suspects(turns)
    every = votes.late(board, floor_ns, tests)
    late = [one for one in every if _lasting(one, board, at_times)]
    apart = seldom(at_times, late, floor_ns)
    return Suspects(
        late=[one for one in late if one.rank not in apart],
        at_times=[one for one in at_times.found if one.rank in apart],
        doubtful=bool(at_times.doubtful) or len(late) < len(every),
    )


def _lasting(one: votes.Late, board: Grid, at_times: AtTimes) -> bool:
    """Return whether a rank that is slow since a step, or in half of all steps, was so for longer than by chance: its
    votes are then of a single event."""
    every = at_times.episodes
    if every is None:
        return True
    others = every.lengths(board.others((one.rank,)))
    if one.began > 0:
        return lasting(len(board.steps) - one.began, others, votes.correlation(board.part(one.began))) < EVENT
    own = every.of.get(one.rank, [])
    return len(own) != 1 or 2 * len(own[0].rows) < one.votes or lasting(len(own[0].rows), others, every.r) < EVENT


def _of_all(found: Sequence[Intermittent], board: Grid) -> votes.Turns:
    """Return ranks that each have slow steps of their own as turns: most of them have, so none of them is special."""
    lost_ns = sum(one.lost_ns for one in found) / len(board.steps)
    return votes.Turns({one.rank: list(one.rows) for one in found}, lost_ns, max(one.p_value for one in found))
