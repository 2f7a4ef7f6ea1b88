"""Probabilities of categories from rules, votes and words."""

from __future__ import annotations

import math

import pytest

from whystall.knowledge_base.classify.centroids import Similarity
from whystall.knowledge_base.classify.incident_votes import Source, Vote, counted, votes
from whystall.knowledge_base.classify.rules import UNKNOWN, categories
from whystall.knowledge_base.classify.weighing import RULES_LIMIT, Strength, Weights, calibration, strengths, weigh
from whystall.knowledge_base.models import Match, Words

WEIGHTS = Weights(rules=1.0, votes=2.0, words=3.0, none=-1.0)


def none() -> dict[str, Strength]:
    return {name: Strength() for name in categories()}


def test_probabilities_are_those_of_the_logistic_model() -> None:
    found = weigh(none() | {"storage": Strength(rules=3, votes=0.5), "cpu": Strength(words=0.5)}, WEIGHTS)
    odds = [math.exp(4.0), math.exp(1.5), *[1.0] * (len(categories()) - 2), math.exp(-1)]
    assert [one.category for one in found[:2]] == ["storage", "cpu"]
    assert [one.kind for one in found[:2]] == ["rules", "words"]
    assert [one.probability for one in found] == pytest.approx([odd / sum(odds) for odd in odds])


def test_without_evidence_nothing_is_probable() -> None:
    found = weigh(none())
    assert sum(one.probability for one in found) == pytest.approx(1)
    assert found[0].probability < calibration().answer_from


def test_repeated_words_make_no_category_surer() -> None:
    from whystall.knowledge_base.classify.rules import RuleScore

    assert strengths([RuleScore("storage", 40.0)], [], [])["storage"].rules == RULES_LIMIT


def test_examples_confirmed_here_are_a_hint_if_they_stand_alone() -> None:
    near = Similarity("storage", 0.6, ["a", "b", "c"], confirmed=True)
    far = Similarity("cpu", 0.1, ["a"])
    assert strengths([], [], [near, far])["storage"].rules == 1
    assert strengths([], [], [near, Similarity("cpu", 0.5, ["a"])])["storage"].rules == 0
    assert strengths([], [], [Similarity("storage", 0.6, ["a", "b", "c"]), far])["storage"].rules == 0


def test_the_shipped_calibration_is_reliable_where_it_answers() -> None:
    found = calibration()
    assert found.source
    answering = [row for row in found.reliability if row.start >= found.answer_from]
    assert answering
    texts = sum(row.texts for row in answering)
    assert sum(row.texts * abs(row.right - row.mean) for row in answering) / texts < 0.1


def match(incident: str, shared: int = 5, **fields: object) -> Match:
    words = Words(en=incident, zh=incident)
    return Match(incident=incident, title=words, how="text", shared=["word:x"] * shared, rank=1).model_copy(
        update=fields
    )


def test_votes_fall_with_the_rank_and_with_few_shared_words() -> None:
    sources = {"a": Source("dns_timeout"), "b": Source("disk_full"), "c": Source(None, ["accelerator-fault"])}
    cast = votes([match("a"), match("b"), match("c", shared=1)], sources)
    assert [(v.incident, v.category, v.rank) for v in cast] == [
        ("a", "network", 1),
        ("b", "storage", 2),
        ("c", "accelerator", 3),
    ]
    assert counted(cast) == pytest.approx({"network": 1.0, "storage": 0.5, "accelerator": 1 / 15})


def test_who_votes_for_nothing_keeps_its_rank() -> None:
    sources = {"a": Source(None, ["inference"]), "b": Source("disk_full"), "c": Source("disk_full")}
    cast = votes([match("a"), match("b"), match("c")], sources)
    assert [(v.incident, v.rank) for v in cast] == [("b", 2)]


@pytest.mark.parametrize("fields", [{"weak": True}, {"state": "draft"}])
def test_weak_and_unreviewed_cards_have_no_vote(fields: dict[str, object]) -> None:
    assert votes([match("a", **fields)], {"a": Source("disk_full")}) == []


def test_a_vote_names_cause_category_and_component() -> None:
    (vote,) = votes([match("a")], {"a": Source("disk_full")})
    assert vote == Vote("a", "disk_full", "storage", "disk-space", 1, 1.0)
    assert UNKNOWN not in categories()
