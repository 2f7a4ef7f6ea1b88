"""Match operations that ranks enqueued on a device, by their order. Pure.

Nothing shows when such an operation is executed, and the library's calls have no number. Sequences of two ranks are
laid beside each other so that operations and sizes agree and the instants differ least. Hosts run ahead of their
devices, by whole rounds of the same operations at times; where another place fits nearly as well, nothing is matched.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from whystall.tools.ranks.statistics.probability import median

_MOST_SHIFT = 64
_LEAST = 8  # operations that two sequences must have in common
_CLEARLY = 0.5
_Token = tuple[str, int, int]


def enqueued(calls: pl.DataFrame) -> pl.DataFrame:
    """Return `calls` (of `window.Window`, of one group) with ``instance``, for those that were matched with all other
    ranks; in the order of time."""
    parts = {
        int(str(rank)): part for (rank,), part in calls.sort("start_ns").partition_by("rank", as_dict=True).items()
    }
    if len(parts) < 2:
        return calls.clear().with_columns(instance=pl.lit(0, pl.Int64))
    first = max(parts, key=lambda rank: (parts[rank].height, -rank))
    placed = []
    for rank, part in parts.items():
        shift = 0 if rank == first else _shift(_sequence(parts[first]), _sequence(part))
        if shift is None:
            return calls.clear().with_columns(instance=pl.lit(0, pl.Int64))
        placed.append(part.with_columns(instance=pl.int_range(part.height, dtype=pl.Int64) + shift))
    rows = pl.concat(placed)
    return rows.filter(pl.len().over("instance") == len(parts)).sort("instance", "rank")


def _sequence(part: pl.DataFrame) -> tuple[list[_Token], list[int]]:
    return part.select("op", "count", "bytes").rows(), part["start_ns"].to_list()


def _shift(one: tuple[Sequence[_Token], Sequence[int]], other: tuple[Sequence[_Token], Sequence[int]]) -> int | None:
    """Return at which place of `one` the `other` begins; None if that is not clear."""
    (tokens, times), (others, their_times) = one, other
    scores = []
    for shift in range(-_MOST_SHIFT, _MOST_SHIFT + 1):
        low, high = max(0, shift), min(len(tokens), len(others) + shift)
        if high - low < max(_LEAST, 0.5 * min(len(tokens), len(others))):
            continue
        if list(tokens[low:high]) == list(others[low - shift : high - shift]):
            apart = (abs(a - b) for a, b in zip(times[low:high], their_times[low - shift : high - shift], strict=True))
            scores.append((median(apart), shift))
    scores.sort()
    if not scores or (len(scores) > 1 and scores[0][0] > _CLEARLY * scores[1][0]):
        return None
    return scores[0][1]
