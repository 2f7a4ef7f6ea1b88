"""Votes of the nearest confirmed incidents for a category: at most five, each of another cause. Pure functions.

RCACopilot (EuroSys 2024) takes the five nearest of distinct categories, so that a frequent fault does not outvote a
nearer one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Match

VOTES = 5


@dataclass(frozen=True)
class Vote:
    """The incident, its cause, its category and component, and the number of shared terms."""

    incident: str
    cause: str
    category: str
    component: str
    weight: float
    shared: int


def votes(matches: Sequence[Match], causes: Mapping[str, str | None]) -> list[Vote]:
    """Return the votes of `matches`, nearest first; `causes`: by incident. Only reviewed cards that answer the question
    vote; the second nearest cause has half a vote, the third a third.
    """
    known = load_causes()
    found: list[Vote] = []
    seen: set[str] = set()
    for match in matches:
        cause = known.get(causes.get(match.incident) or "")
        if cause is None or cause.category == "none" or match.weak or match.state != "reviewed" or cause.id in seen:
            continue
        seen.add(cause.id)
        weight = 1 / (len(found) + 1)
        found.append(Vote(match.incident, cause.id, cause.category, cause.component, weight, len(match.shared)))
        if len(found) == VOTES:
            break
    return found


def counted(cast: Sequence[Vote]) -> dict[str, float]:
    """Return the weight of the votes by category, largest first."""
    sums: dict[str, float] = {}
    for vote in cast:
        sums[vote.category] = sums.get(vote.category, 0.0) + vote.weight
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
