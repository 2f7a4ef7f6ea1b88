"""Decide which replica is slow, in a job without collectives (`replicas`): their own latency is the only measure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from whystall.tools.ranks.slow_node_check import replicas, votes
from whystall.tools.ranks.slow_node_check.classify import classify
from whystall.tools.ranks.slow_node_check.outcome import Accused, Confidence, Floors, Outcome
from whystall.tools.ranks.statistics import probability
from whystall.tools.timeline.tables.mapping import sources

if TYPE_CHECKING:
    from whystall.tools.ranks.analysis.analyse import JobAnalysis


def decide_replicas(analysis: JobAnalysis, floors: Floors) -> Outcome:
    """Return the verdict on replicas; `cannot_tell` if they are too few, or do not differ beyond chance."""
    steps = analysis.job.table("steps")
    out = Outcome(reasons=["no_collectives"], replicas=replicas.compare(steps))
    counts = [one.steps for one in out.replicas]
    out.steps = min(counts, default=0)
    out.step_ns = probability.median(one.p50_ns for one in out.replicas)
    if not counts:
        out.reasons = ["no_durations"]
        return out
    if len(counts) < 2:
        out.because("few_ranks")
        return out
    if out.steps < votes.FEWEST_STEPS:
        out.because("few_steps")
        return out
    slow = sorted((one for one in out.replicas if one.slow(floors.warn)), key=lambda one: -one.ratio)
    if len(slow) * 2 > len(counts):
        out.because("mixed_signals")
        return out
    if not slow and any(one.seems_slow(floors.warn) for one in out.replicas):
        out.because("noise")
        return out
    if not slow and sources() & set(analysis.job.table("ranks")["source"].to_list()):
        out.because("no_waits")  # a table need not name what synchronises its ranks, whose steps then are alike
        return out
    innocent = tuple(one.rank for one in out.replicas if one not in slow)
    out.accused = [_slow_replica(analysis, one, innocent, floors) for one in slow]
    out.verdict = "none" if not slow else "rank" if len(slow) == 1 else "several"
    return out


def _slow_replica(analysis: JobAnalysis, one: replicas.Replica, innocent: Sequence[int], floors: Floors) -> Accused:
    cost = one.p50_ns - one.peers_ns
    late = votes.Late(one.rank, one.longer, one.votes, one.p_value, cost, None, -1)
    own = replicas.own(analysis.job.table("steps"))
    kind = classify(own, analysis.job.table("operators"), one.rank, innocent, own["step"].n_unique())
    share = cost / one.p50_ns
    # one measure: at most medium
    sure: Confidence = "medium" if share >= floors.critical else "low"
    return Accused(one.rank, late, kind, tuple(innocent), cost, share, share, -1, sure)
