"""The replay of incidents as tickets: what is told, and what is counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.generated_cards import card, case
from benchmarks.learning import Replay, _Part, _Review
from benchmarks.reported_incidents import Reported, carried, diagnosis_of
from whystall.knowledge_base.faults import same_fault
from whystall.knowledge_base.incidents import curated
from whystall.knowledge_base.models import Incident


@pytest.fixture(scope="module")
def incidents() -> list[Incident]:
    return curated()


@pytest.fixture
def replay(tmp_path: Path, incidents: list[Incident]) -> Iterator[Replay]:
    causes = ("fsync_storm", "page_cache_thrash", "memory_reclaim")
    made = Replay(tmp_path / "k.db", [one for one in incidents if one.cause in causes], seed=4)
    with closing(made.kb):
        yield made


def test_an_incident_reported_again_is_the_same_fault_only_for_the_same_job(incidents: list[Incident]) -> None:
    one = next(incident for incident in incidents if incident.cause == "fsync_storm")
    first = diagnosis_of(one, Reported(7, "node1"), cause=one.cause)
    assert same_fault(first, diagnosis_of(one, Reported(7, "node2", visit=1), cause=one.cause))
    assert not same_fault(first, diagnosis_of(one, Reported(8, "node1"), cause=one.cause))
    other = diagnosis_of(one, Reported(7, "node1", lang="zh"))
    assert (other.cause, other.culprit, other.symptom) == (None, None, one.symptom.zh)


def test_findings_carry_most_features_of_the_cards(incidents: list[Incident]) -> None:
    features = sum(len(one.features) for one in incidents)
    assert sum(len(carried(one)) for one in incidents) > 0.85 * features


def test_a_replay_learns_recognises_and_finds_wrong_cards(replay: Replay) -> None:
    parts, review = [_Part(), _Part()], _Review()
    replay.learn(parts)
    assert sum(part.tickets for part in parts) == len(replay.incidents) == len(replay.named)
    assert parts[0].answerable < parts[1].answerable
    assert parts[1].hits["ours"] > 0
    victim = next(iter(replay.named))  # a wrong card for certain
    replay.named[victim] = replay.kb.cards.edit(victim, {"cause": "dns_timeout"}).cause
    replay.kb.cards.accept(victim)
    replay.wrong.add(victim)
    for number in range(len(replay.incidents)):
        assert replay.kb.tickets.get(str(number + 1)).state == "resolved"
    replay.review(review, visits=5)
    assert review.flagged["wrong"] >= 1
    assert review.flagged["right"] == 0
    assert min(review.rejections) >= 3  # never at the first complaint
    assert replay.named[victim] == replay.of[victim].cause


def test_generated_cards_are_the_same_each_time_and_differ() -> None:
    assert card(3) == card(3)
    assert card(3).symptom != card(4).symptom
    assert case(5, 100) == case(5, 100)
