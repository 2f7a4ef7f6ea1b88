"""Judge jobs without collectives: replicas that serve alike, compared by the latency of their steps.

No rank waits for another here, so a slow replica is slow itself. Its steps are compared with all the others' by rank
order (`two_samples.rank_test`): latencies have long tails, and neighbouring ones are correlated. Replicas may have had
different work: an operator that ran more often is in the evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from whystall.tools.ranks.slow_node_check.votes import SURE
from whystall.tools.ranks.statistics import probability
from whystall.tools.ranks.statistics.two_samples import rank_test

# At most so many values of each replica, medians of runs of steps: neighbours add little, and sorting costs time.
_BLOCKS = 64
# Nor more than so many of all others together.
_OTHERS = 4096


@dataclass(frozen=True)
class Replica:
    """A replica compared with the others: `peers_ns` is the median of their medians; `longer` of `votes` runs of steps
    were longer than that. `p_value` is the rank test's, corrected."""

    rank: int
    steps: int
    p50_ns: float
    p99_ns: float
    peers_ns: float
    longer: int
    votes: int
    p_value: float

    @property
    def ratio(self) -> float:
        """Ratio of its step to the others'; 1 where there are none."""
        return self.p50_ns / self.peers_ns if self.peers_ns > 0 else 1.0

    def seems_slow(self, floor: float) -> bool:
        """Return whether it is slower than the others by at least the share `floor`, regardless of chance."""
        return self.ratio >= 1 + floor

    def slow(self, floor: float) -> bool:
        """Return whether it is slower, and not by chance: there is no second measure to confirm it."""
        return self.p_value < SURE and self.seems_slow(floor)


def compare(steps: pl.DataFrame) -> list[Replica]:
    """Compare every rank in `steps` (rows of `rank_data.tables.STEPS`) with the others, by rank."""
    spans = steps.select("rank", "start_ns", ns=pl.col("end_ns") - pl.col("start_ns")).filter(pl.col("ns") > 0)
    of_rank = {
        rank: frame.sort("start_ns")["ns"].to_list()
        for (rank,), frame in spans.partition_by("rank", as_dict=True).items()
    }
    medians = {rank: probability.median(values) for rank, values in of_rank.items()}
    blocks = {rank: _blocks(values) for rank, values in of_rank.items()}
    return [_compared(rank, of_rank[rank], blocks, medians) for rank in sorted(of_rank)]


def _compared(rank: int, values: list[int], every: dict[int, list[float]], medians: dict[int, float]) -> Replica:
    peers = probability.median(value for other, value in medians.items() if other != rank)
    blocks = every[rank]
    others = [value for other, found in every.items() if other != rank for value in found]
    p_value, above = rank_test(others[:: -(-len(others) // _OTHERS) or 1], blocks)
    ordered = sorted(values)
    return Replica(
        rank=rank,
        steps=len(values),
        p50_ns=medians[rank],
        p99_ns=float(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]),
        peers_ns=peers,
        longer=sum(value > peers for value in blocks),
        votes=len(blocks),
        # one-sided: only the slower one matters
        p_value=probability.corrected(p_value / 2 if above > 0.5 else 1.0, len(medians)),
    )


def _blocks(values: list[int]) -> list[float]:
    size = -(-len(values) // _BLOCKS)
    return [probability.median(values[at : at + size]) for at in range(0, len(values), size)]


def own(steps: pl.DataFrame) -> pl.DataFrame:
    """Return `job.OWN` of replicas: they do not wait, and their steps are numbered from their first."""
    return steps.sort("rank", "start_ns").select(
        pl.col("rank"),
        step=pl.int_range(pl.len()).over("rank").cast(pl.Int32),
        step_ns=pl.col("end_ns") - pl.col("start_ns"),
        wait_ns=pl.lit(0, pl.Int64),
        own_ns=pl.col("end_ns") - pl.col("start_ns"),
        compute_ns=pl.col("compute_ns"),
        gap_ns=pl.col("gap_ns"),
        loader_ns=pl.col("loader_ns"),
        exposed_comm_ns=pl.col("exposed_comm_ns"),
        launch_delay_ns=pl.col("launch_delay_ns"),
    )
