"""Votes of the nearest confirmed incidents for a category: at most five, each of another cause. Pure functions.

RCACopilot (EuroSys 2024) takes the five nearest of distinct categories, so that a frequent fault does not outvote a
nearer one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.classify.rules import category_of_component
from whystall.knowledge_base.models import Match

VOTES = 5
_MUCH = 5  # shared terms of a full vote; fewer count in proportion


@dataclass(frozen=True)
class Source:
    """Of an incident: its catalogued cause, None if it has none, and its components."""

    cause: str | None
    components: Sequence[str] = ()


@dataclass(frozen=True)
class Vote:
    """The incident, its cause, its category and component. `rank`: from 1, among the incidents asked, also those that
    vote for nothing. `cause`: None if the catalogue has none for it.
    """

    incident: str
    cause: str | None
    category: str
    component: str
    rank: int
    weight: float


def votes(matches: Sequence[Match], sources: Mapping[str, Source]) -> list[Vote]:
    """Return the votes of `matches`, nearest first; `sources`: by incident. Only reviewed cards that answer the
    question are asked; the second nearest has half a vote, the third a third. An incident without a catalogued cause
    votes by its components.
    """
    found: list[Vote] = []
    seen: set[str] = set()
    rank = 0
    for match in matches:
        source = sources.get(match.incident)
        if source is None or match.weak or match.state != "reviewed" or source.cause in seen:
            continue
        if rank == VOTES:
            break
        rank += 1
        weight = min(1.0, len(match.shared) / _MUCH) / rank
        cause = load_causes().get(source.cause or "")
        if cause is not None:
            seen.add(cause.id)
            if cause.category != "none":
                found.append(Vote(match.incident, cause.id, cause.category, cause.component, rank, weight))
            continue
        known = category_of_component()
        part = next((name for name in source.components if name in known), None)
        if part is not None:
            found.append(Vote(match.incident, None, known[part], part, rank, weight))
    return found


def counted(cast: Sequence[Vote]) -> dict[str, float]:
    """Return the weight of the votes by category, largest first."""
    sums: dict[str, float] = {}
    for vote in cast:
        sums[vote.category] = sums.get(vote.category, 0.0) + vote.weight
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
