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


# --- paraphrases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "pods on gpu-03 cannot resolve internal host names",
            "DNS lookups time out inside the containers of gpu-03, the names of our services are not found",
        ),
        ("node-22 掉卡，dmesg 里有 Xid 79", "node-22 上有一张显卡从总线上掉了，只剩七张"),
        ("Jobs on node-31 die with uncorrectable ECC errors on card 2", "node-31 的 2 号卡有不可纠正的 ECC 错误"),
    ],
)
def test_a_fault_in_other_words_is_possibly_the_same(kb: KnowledgeBase, one: str, other: str) -> None:
    kb.similar_texts.put("1", order(one))
    kb.similar_texts.put("2", order("The certificate of the registry expired and nobody can pull an image"))
    (found,) = kb.similar_texts.find(order(other))
    assert (found.ticket, found.paraphrase) == ("1", True)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("node-14 lost a GPU, dmesg says Xid 79", "node-15 lost a GPU, dmesg says Xid 79"),
        ("host-88 reports Xid 79 and the job died", "Xid 31 on host-88 killed a job"),
        ("3 号卡过热降频", "5 号卡过热降频到 900MHz"),
        ("CUDA out of memory after raising the batch size", "container was OOMKilled at its memory limit of 64 GiB"),
        ("TLS certificate of the registry expired", "token of the registry expired"),
        ("training is slow", "the training is so slow"),
    ],
)
def test_another_place_or_fault_is_not_the_same(kb: KnowledgeBase, one: str, other: str) -> None:
    kb.similar_texts.put("1", order(one))
    assert not [found for found in kb.similar_texts.find(order(other)) if found.paraphrase]


def test_labels_of_places_count(kb: KnowledgeBase) -> None:
    def placed(text: str, host: str) -> Report:
        return order(text).model_copy(update={"labels": {"host": host}})

    kb.similar_texts.put("1", placed("uncorrectable ECC errors, jobs die", "a-1"))
    assert kb.similar_texts.find(placed("ECC 不可纠正，任务挂了", "b-2")) == []
    assert [one.ticket for one in kb.similar_texts.find(placed("ECC 不可纠正，任务挂了", "a-1"))] == ["1"]


def test_what_is_as_near_to_two_faults_is_neither(kb: KnowledgeBase) -> None:
    kb.similar_texts.put("1", order("node-14 lost a GPU, Xid 79 in dmesg"))
    kb.similar_texts.put("2", order("node-15 lost a GPU, Xid 79 in dmesg"))
    assert kb.similar_texts.find(order("a card fell off the bus, Xid 79")) == []
