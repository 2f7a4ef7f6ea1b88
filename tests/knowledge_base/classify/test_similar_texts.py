"""Tickets with similar texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from whystall.knowledge_base.classify.report import Report
from whystall.knowledge_base.store import KnowledgeBase


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A base as it comes, made once."""
    path = tmp_path_factory.mktemp("seeded") / "k.db"
    KnowledgeBase(path).close()
    return path.read_bytes()


@pytest.fixture
def kb(tmp_path: Path, seeded: bytes) -> Iterator[KnowledgeBase]:
    (tmp_path / "k.db").write_bytes(seeded)
    with KnowledgeBase(tmp_path / "k.db") as base:
        yield base


def order(title: str) -> Report:
    return Report(origin="work_order", title=title, created="2026-01-01T00:00:00Z")


ONE = "Saving the optimizer state to the shared volume blocks all ranks for a minute every five hundred steps"
ALIKE = "Saving the optimizer state to the shared volume blocks all our ranks for minutes every five hundred iterations"


def test_what_shares_most_words_is_found(kb: KnowledgeBase) -> None:
    kb.similar_texts.put("1", order(ONE))
    kb.similar_texts.put("2", order("The certificate of the registry expired and nobody can pull an image"))
    (found,) = kb.similar_texts.find(order(ALIKE))
    assert found.ticket == "1"
    assert 0.6 <= found.alike < 1


def test_the_most_alike_goes_first_then_the_latest(kb: KnowledgeBase) -> None:
    kb.similar_texts.put("1", order(ONE))
    kb.similar_texts.put("2", order(ALIKE))
    kb.similar_texts.put("3", order(ONE))
    assert [near.ticket for near in kb.similar_texts.find(order(ONE))] == ["3", "1", "2"]


def test_chinese_texts_are_compared_by_pairs_of_characters(kb: KnowledgeBase) -> None:
    kb.similar_texts.put("1", order("每五百步保存一次优化器状态，所有卡都要停一分钟，盘是共享存储"))
    found = kb.similar_texts.find(order("每五百步保存一次优化器状态，所有卡要停两分钟，盘是共享存储"))
    assert [near.ticket for near in found] == ["1"]


@pytest.mark.parametrize("text", ["slow", "训练慢", "", "help me please"])
def test_short_texts_are_like_nothing(kb: KnowledgeBase, text: str) -> None:
    kb.similar_texts.put("1", order(text))
    assert kb.similar_texts.find(order(text)) == []


def test_thousands_with_the_same_words_cost_no_more(kb: KnowledgeBase) -> None:
    with kb.transaction():
        for n in range(1, 400):
            kb.similar_texts.put(str(n), order(ONE))
    assert [near.ticket for near in kb.similar_texts.find(order(ONE))] == ["399", "398", "397"]
