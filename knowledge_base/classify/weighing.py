"""Probability of each category, from the rules, the votes of similar incidents, and the words of known examples.

A multinomial logistic model with one weight per kind of evidence, shared by all categories, and one for `UNKNOWN`:
p(c) is proportional to exp(rules * R(c) + votes * V(c) + words * W(c)). With so few weights the examples cannot be
learnt by heart. ``catalog/calibration.yaml`` has the weights, their source, and how often which probability was right;
``benchmarks/classification.py`` fits them (Guo et al., On Calibration of Modern Neural Networks, ICML 2017, for the
reliability table).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from pydantic import Field

from whystall.knowledge_base.classify.centroids import Similarity
from whystall.knowledge_base.classify.incident_votes import Vote, counted
from whystall.knowledge_base.classify.rules import UNKNOWN, RuleScore, categories
from whystall.knowledge_base.data import as_model, catalog, read_yaml
from whystall.knowledge_base.models import Model

RULES_LIMIT = 6.0
"""Rules of one category count up to this weight: repeated words make a category no surer."""
# Examples that people confirmed here decide like a hint, if their class stands alone: the cosine of the nearest class,
# its ratio to the second, and the words that contribute.
_NEAR, _NEARER, _SHARED = 0.2, 1.5, 3

Kind = Literal["rules", "votes", "words"]


class Weights(Model):
    """`none`: for `UNKNOWN`, which has no evidence."""

    rules: float
    votes: float
    words: float
    none: float


class Reliability(Model):
    """Of the texts whose best probability was from `start` below `end`: their number, mean probability, share right."""

    start: float = Field(ge=0, le=1)
    end: float = Field(ge=0, le=1.01)
    texts: int
    mean: float
    right: float


class Calibration(Model):
    """`answer_from`: least probability of a category that is answered. `source`: what the weights were fitted to."""

    source: str
    weights: Weights
    answer_from: float = Field(gt=0, lt=1)
    reliability: list[Reliability]


@dataclass(frozen=True)
class Standing:
    """A category and its probability. `kind`: of evidence that contributes most."""

    category: str
    probability: float
    kind: Kind


@dataclass(frozen=True)
class Strength:
    """Evidence for one category: weight of its rules, of its votes, similarity of its examples."""

    rules: float = 0.0
    votes: float = 0.0
    words: float = 0.0


def strengths(scores: Sequence[RuleScore], cast: Sequence[Vote], near: Sequence[Similarity]) -> dict[str, Strength]:
    """Return the evidence for each category."""
    by_rule = {score.category: min(score.weight, RULES_LIMIT) for score in scores}
    by_vote, by_word = counted(cast), {like.category: like.cosine for like in near}
    confirmed = _confirmed(near)
    if confirmed is not None:
        by_rule[confirmed] = min(by_rule.get(confirmed, 0.0) + 1, RULES_LIMIT)
    return {
        name: Strength(by_rule.get(name, 0.0), by_vote.get(name, 0.0), by_word.get(name, 0.0)) for name in categories()
    }


def weigh(evidence: Mapping[str, Strength], weights: Weights | None = None) -> list[Standing]:
    """Return all categories, the most probable first, and `UNKNOWN` among them. `weights`: by default the shipped."""
    by = weights or calibration().weights
    parts: dict[str, dict[Kind, float]] = {
        name: {"rules": by.rules * one.rules, "votes": by.votes * one.votes, "words": by.words * one.words}
        for name, one in evidence.items()
    }
    logits = {name: sum(one.values()) for name, one in parts.items()} | {UNKNOWN: by.none}
    highest = max(logits.values())
    odds = {name: math.exp(logit - highest) for name, logit in logits.items()}
    total = sum(odds.values())
    kinds = {name: max(one, key=lambda kind: one[kind]) for name, one in parts.items()}
    found = [Standing(name, share / total, kinds.get(name, "rules")) for name, share in odds.items()]
    return sorted(found, key=lambda one: -one.probability)


def _confirmed(near: Sequence[Similarity]) -> str | None:
    """Return the category whose examples, confirmed here, are alone near the text."""
    if not near or not near[0].confirmed or near[0].cosine < _NEAR:
        return None
    alone = len(near) == 1 or near[0].cosine >= _NEARER * near[1].cosine
    several = len({word.removeprefix("c_") for word in near[0].words}) >= _SHARED
    return near[0].category if alone and several else None


@cache
def calibration() -> Calibration:
    """Return the calibration; raise `ToolError` (bad_argument) for a malformed file."""
    path = catalog("calibration.yaml")
    return as_model(Calibration, read_yaml(path), path)
