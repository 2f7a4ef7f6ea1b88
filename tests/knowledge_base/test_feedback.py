"""Feedback on matches: the latest counts, and a card rejected beyond chance needs a review."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from making import checkpoint

from whystall.knowledge_base.evidence import evidence_of
from whystall.knowledge_base.feedback import flagged
from whystall.knowledge_base.models import Match, Record
from whystall.knowledge_base.store import KnowledgeBase
from whystall.tools.contract.errors import ErrorCode, ToolError

CARD = "checkpoint-blocks-training-checkfreq"


@pytest.fixture
def kb(tmp_path: Path) -> Iterator[KnowledgeBase]:
    """A base with five diagnoses that matched `CARD`, none of which recurs on it."""
    with KnowledgeBase(tmp_path / "k.db") as base:
        for n in range(5):
            matches = base.remember(checkpoint(id=f"d{n}"), ticket=False).matches
            assert CARD in [match.incident for match in matches]
        yield base


@pytest.mark.parametrize(("helped", "wrong"), [(0, 3), (2, 4), (4, 5), (11, 9), (100, 60), (0, 2000)])
def test_rejected_more_often_than_chance_allows(helped: int, wrong: int) -> None:
    assert flagged(helped, wrong)


@pytest.mark.parametrize(
    ("helped", "wrong"), [(0, 0), (5, 0), (0, 1), (0, 2), (1, 3), (3, 4), (5, 5), (12, 9), (75, 25), (1500, 500)]
)
def test_occasional_rejections_do_not_flag_a_card(helped: int, wrong: int) -> None:
    assert not flagged(helped, wrong)


def test_the_last_word_of_a_diagnosis_counts(kb: KnowledgeBase) -> None:
    assert kb.cards.feedback(CARD, "wrong", diagnosis="d1") == Record(wrong=1)
    assert kb.cards.feedback(CARD, "wrong", diagnosis="d1", comment="again") == Record(wrong=1)
    assert kb.cards.feedback(CARD, "helped", diagnosis="d1", comment="after all") == Record(helped=1)
    assert kb.cards.feedback(CARD, "wrong", diagnosis="d2") == Record(helped=1, wrong=1)
    assert {(f.diagnosis, f.verdict, f.comment) for f in kb.cards.track_record(CARD)[2]} == {
        ("d1", "helped", "after all"),
        ("d2", "wrong", ""),
    }


def test_a_rejected_card_is_flagged_listed_ranked_lower_and_settled_by_a_review(kb: KnowledgeBase) -> None:
    def ranked() -> list[Match]:
        return kb.similar(evidence_of(checkpoint(id="d9")), limit=100)

    assert ranked()[0].incident == CARD
    for n in range(3):
        record = kb.cards.feedback(CARD, "wrong", diagnosis=f"d{n}")
    assert record.flagged
    assert [c.id for c in kb.cards.backlog()] == [CARD]
    assert kb.cards.stats().flagged == [CARD]
    rank, said = next((m.rank, m.record) for m in ranked() if m.incident == CARD)
    assert rank > 1
    assert said == record
    kb.cards.accept(CARD, "ann")
    assert kb.cards.backlog() == []
    assert kb.cards.records([CARD])[CARD] == Record(wrong=3)  # what was said still counts for its precision
    assert not kb.cards.feedback(CARD, "wrong", diagnosis="d3").flagged


def test_precision_is_shown_with_its_interval(kb: KnowledgeBase) -> None:
    assert kb.cards.stats().precision is None
    for n, verdict in enumerate(("helped", "helped", "helped", "wrong")):
        kb.cards.feedback(CARD, verdict, diagnosis=f"d{n}")  # type: ignore[arg-type]
    stats = kb.cards.stats()
    assert (stats.helped, stats.wrong, stats.precision) == (3, 1, 0.75)
    assert stats.interval is not None
    assert 0.2 < stats.interval[0] < 0.75 < stats.interval[1] < 1


def test_stats_count_cards_by_state_and_cause(kb: KnowledgeBase) -> None:
    before = kb.cards.stats()
    card = kb.tickets.resolve(kb.tickets.draft("d0").id, "asynchronous now", "ann").card or ""
    after = kb.cards.stats()
    assert after.cards == before.cards + 1
    assert after.states["draft"] == 1
    assert after.oldest_draft_days is not None
    assert after.causes["sync_checkpoint_write"] == before.causes["sync_checkpoint_write"] + 1
    kb.cards.retire(card, "no")
    assert kb.cards.stats().causes == before.causes
    assert kb.cards.stats().states["retired"] == 1


@pytest.mark.parametrize(
    ("incident", "diagnosis", "comment", "code"),
    [
        ("nope", "d1", "", ErrorCode.NOT_FOUND),
        (CARD, "nope", "", ErrorCode.NOT_FOUND),
        (CARD, "\udcff", "", ErrorCode.NOT_FOUND),
        ("random-bytes-from-the-kernel", "d1", "", ErrorCode.BAD_ARGUMENT),
        (CARD, "d1", "x" * 1001, ErrorCode.BAD_ARGUMENT),
    ],
)
def test_feedback_is_about_a_match(
    kb: KnowledgeBase, incident: str, diagnosis: str, comment: str, code: ErrorCode
) -> None:
    with pytest.raises(ToolError) as caught:
        kb.cards.feedback(incident, "wrong", diagnosis=diagnosis, comment=comment)
    assert caught.value.code is code
    assert kb.cards.stats().wrong == 0


def test_a_hostile_comment_is_inert(kb: KnowledgeBase) -> None:
    kb.cards.feedback(CARD, "wrong", diagnosis="d1", comment="\x1b[2J\u202e'); DROP TABLE feedback; --\nx")
    comment = kb.cards.track_record(CARD)[2][0].comment
    assert "\x1b" not in comment
    assert "\u202e" not in comment
    assert "\n" not in comment
