"""A share with its confidence interval."""

from __future__ import annotations

from whystall.knowledge_base.models import Model
from whystall.tools.contract.proportion import wilson


class Share(Model):
    """`hits` of `of`, with the 95 % Wilson interval; fractions of 1."""

    hits: int
    of: int
    value: float
    low: float
    high: float


def share(hits: int, of: int) -> Share | None:
    """Return `hits` of `of` with its interval; None if `of` is 0."""
    if not of:
        return None
    low, high = wilson(hits, of)
    return Share(hits=hits, of=of, value=round(hits / of, 4), low=round(low, 4), high=round(high, 4))
