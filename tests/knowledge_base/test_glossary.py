"""The glossary: each phrase has one concept, and every entry is used."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import pytest

from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.data import catalog, read_yaml
from whystall.knowledge_base.incidents import curated
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.questions import questions
from whystall.knowledge_base.tokens import concepts, known_concepts

GLOSSARY: dict[str, dict[str, list[str]]] = read_yaml(catalog("glossary.yaml"))
# A Chinese phrase may stand inside one of another concept only where the longer one says the shorter one too, as the
# English does: shared memory is memory, a slow node is slow. (inner, outer).
SAYS_BOTH = {
    ("contention", "lock"),
    ("memory", "out_of_memory"),
    ("memory", "page_fault"),
    ("memory", "reclaim"),
    ("memory", "shared_memory"),
    ("network", "network_storage"),
    ("slow", "read"),
    ("slow", "straggler"),
    ("slow", "uneven"),
    ("slow", "write"),
    ("starvation", "wakeup"),
    ("storage", "network_storage"),
    ("storage", "object_storage"),
    ("training", "step"),
}


def phrases(lang: str) -> Iterable[tuple[str, str]]:
    return ((name, phrase) for name, words in GLOSSARY.items() for phrase in words[lang])


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_phrase_has_one_concept(lang: str) -> None:
    assert [p for p, count in Counter(phrase for _, phrase in phrases(lang)).items() if count > 1] == []


def test_every_concept_has_words_of_both_languages() -> None:
    assert {name for name, words in GLOSSARY.items() if not words["en"] or not words["zh"]} == set()


def test_english_phrases_are_written_as_text_is_split() -> None:
    odd = [phrase for _, phrase in phrases("en") if " ".join(re.findall(r"[a-z0-9_]+", phrase)) != phrase]
    assert odd == []


def test_no_chinese_phrase_hides_in_one_of_another_meaning() -> None:
    all_of_them = list(phrases("zh"))
    hidden = {
        (name, other): (inner, outer)
        for name, inner in all_of_them
        for other, outer in all_of_them
        if name != other and inner in outer
    }
    assert {pair: found for pair, found in hidden.items() if pair not in SAYS_BOTH} == {}
    assert set(hidden) == SAYS_BOTH, "an exception that is none any more"


def test_no_chinese_phrase_is_needless() -> None:
    again = [
        (inner, outer)
        for words in GLOSSARY.values()
        for inner in words["zh"]
        for outer in words["zh"]
        if inner != outer and inner in outer
    ]
    assert again == []


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_concept_occurs_in_what_is_written_or_asked(lang: Lang) -> None:
    told = [words.get(lang) for c in curated() for words in (c.title, c.symptom, c.root_cause, c.fix)]
    told += [words.get(lang) for c in load_causes().values() for words in (c.title, c.summary, c.verify)]
    told += [remedy.text.get(lang) for c in load_causes().values() for remedy in c.remedies]
    told += [question.ask for asked in questions(lang).values() for question in asked]
    used: set[str] = set()
    for text in told:
        used |= concepts(text)
    assert known_concepts() - used == set()


@pytest.mark.parametrize(
    ("text", "concept"),
    [
        ("主机的锁页内存用完了", "lock"),
        ("Python 垃圾回收停了 300 毫秒", "reclaim"),
        ("NFS 服务器没有应答", "inference"),
        ("磁盘随机读很慢", "random"),
        ("no fault is reported, the device is fine", "page_fault"),
        ("the NFS server is gone", "inference"),
        ("it was moved to another rack", "migration"),
    ],
)
def test_a_word_of_another_meaning_is_not_taken_for_it(text: str, concept: str) -> None:
    assert concept in known_concepts()
    assert concept not in concepts(text)


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("the worker is stuck in d state on nfs", "进程以 D 状态卡住，网络盘无响应"),
        ("memory pressure, the pod swaps", "容器内存压力大，一直换页"),
        ("one slow rank of the pipeline stage", "流水线阶段里有慢节点"),
    ],
)
def test_both_languages_say_the_same(english: str, chinese: str) -> None:
    shared = concepts(english) & concepts(chinese)
    assert len(shared) >= 2
