"""Ranks as text."""

from __future__ import annotations

from collections.abc import Iterable


def rank_list(ranks: Iterable[int]) -> str:
    """Return the ranks in ascending order with runs shortened: ``0-3, 8``."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][-1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
