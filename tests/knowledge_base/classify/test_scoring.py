"""Accuracy, abstention and confusion, with intervals."""

from __future__ import annotations

from whystall.knowledge_base.classify.scoring import Tally


def test_counts_have_intervals() -> None:
    tally = Tally()
    for truth, given, by, count in (
        ("storage", "storage", "rule:x", 6),
        ("storage", "network", "incidents", 2),
        ("network", "unknown", "default", 1),
        ("unknown", "unknown", "default", 1),
    ):
        for _ in range(count):
            tally.add(truth, given, by)
    score = tally.score()
    assert score.right is not None
    assert score.answered is not None
    assert score.precise is not None
    assert (score.right.hits, score.right.of) == (7, 10)
    assert score.right.low < 0.7 < score.right.high
    assert (score.answered.hits, score.precise.hits, score.precise.of) == (8, 6, 8)
    assert {name: share.value for name, share in score.by.items()} == {"rule": 1.0, "incidents": 0.0}
    assert [(c.truth, c.given, c.count) for c in score.confusion] == [
        ("storage", "network", 2),
        ("network", "unknown", 1),
    ]
    storage = next(c for c in score.classes if c.category == "storage")
    assert storage.recall is not None
    assert storage.precision is not None
    assert (storage.recall.hits, storage.recall.of, storage.precision.of, storage.abstained) == (6, 8, 6, 0)


def test_nothing_counted_is_no_score() -> None:
    assert Tally().score().right is None
